"""LUSPO (arXiv:2602.05261): GSPO with the loss of a response times its length.

  python -m rl_reason.main --config=configs/luspo.py
  python -m rl_reason.main --config=configs/luspo.py:paper

Held-out accuracy: 24% to 93% after 30 of its 40 steps (32 seeds,
studies/table/table.md).
"""

from rl_reason.configs import base

VARIANTS = ("", "paper")


def get_config(variant=""):
  """The paper's range, the variant, is for a learning rate of about 1e-6."""
  if variant not in VARIANTS:
    raise ValueError("the variants are paper and smoke")
  c = base.arithmetic()
  c.surrogate.name = "gspo"
  c.surrogate.args = dict(clip_low=0.03, clip_high=0.04)
  if variant == "paper":
    c.surrogate.args = dict(clip_low=2e-3, clip_high=2.5e-3)
  c.reduction.name = "seq_mean_token_sum"
  return c
