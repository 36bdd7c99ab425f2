"""DPPO (arXiv:2602.04879): a mask by the change of a token's probability.

  python -m rl_reason.main --config=configs/dppo.py

Held-out accuracy: 24% to 93% after 30 of its 40 steps (32 seeds,
studies/table/table.md).
"""

from rl_reason.configs import base


def get_config():
  """Binary total variation, at most .2 in both directions."""
  c = base.arithmetic()
  c.surrogate.name = "dppo"
  c.reduction.name = "token_mean"
  return c
