"""REINFORCE++-baseline (arXiv:2501.03262): group mean, whitened over the batch.

  python -m rl_reason.main --config=configs/reinforce_pp_baseline.py

Held-out accuracy: 24% to 93% after 30 of its 40 steps (32 seeds,
studies/table/table.md), about 2 minutes on 2 cores.
"""

from rl_reason.configs import base


def get_config():
  """The KL is k2 in the loss: its gradient is the reverse KL's."""
  c = base.arithmetic()
  c.advantage.name = "group_mean"
  c.advantage.whiten = True
  c.kl.kind = "k2"
  c.kl.coef = 0.01
  return c
