"""GSPO (arXiv:2507.18071): one ratio and clip per response.

  python -m rl_reason.main --config=configs/gspo.py

Held-out accuracy: 24% to 92% after 30 of its 40 steps (32 seeds,
studies/table/table.md), about 2 minutes on 2 cores.
"""

from rl_reason.configs import base


def get_config():
  """The paper's range, 3e-4 / 4e-4, is for a learning rate of about 1e-6."""
  c = base.arithmetic()
  c.surrogate.name = "gspo"
  c.surrogate.args = dict(clip_low=0.03, clip_high=0.04)
  return c
