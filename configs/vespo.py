"""VESPO (arXiv:2602.10693): a smooth weight of the ratio of whole responses.

  python -m rl_reason.main --config=configs/vespo.py

Held-out accuracy: 24% to 93% after 30 of its 40 steps (32 seeds,
studies/table/table.md).
"""

from rl_reason.configs import base


def get_config():
  """k = 2 and lambda = 3 for A >= 0, 3 and 2 for A < 0; token-level loss."""
  c = base.arithmetic()
  c.surrogate.name = "vespo"
  c.reduction.name = "token_mean"
  return c
