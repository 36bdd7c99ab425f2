"""GRPO with the loss summed over tokens (verl's "token-sum").

  python -m rl_reason.main --config=configs/token_sum.py

Held-out accuracy: 23% to 91% after 30 of its 40 steps (eight seeds,
studies/recent/recent_more.md).
"""

from rl_reason.configs import base


def get_config():
  """The clip of the gradient norm and Adam divide the number of tokens out."""
  c = base.arithmetic()
  c.reduction.name = "token_sum"
  return c
