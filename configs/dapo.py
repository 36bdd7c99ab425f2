"""DAPO (arXiv:2503.14476) on the built-in task.

  python -m rl_reason.main --config=configs/dapo.py

Held-out accuracy: 23% to 98% (16 seeds, results/seeds.md), 4 minutes on 2
cores.
"""

from rl_reason.configs import base

VARIANTS = ("", "shuffled")


def get_config(variant=""):
  """DAPO on the built-in task; variant 'shuffled' is a control."""
  if variant not in VARIANTS:
    raise ValueError("the variants are shuffled and smoke")
  c = techniques(base.arithmetic())
  c.reward.overlong_buffer = 4  # soft overlong punishment, of short responses
  c.reward.shuffle = variant == "shuffled"
  return c


def techniques(c):
  """Adds DAPO's techniques to a config of any task and model."""
  c.surrogate.args.clip_high = 0.28  # clip-higher
  c.surrogate.args.dual_clip = 10.0  # from the released recipe, not the paper
  c.dynamic_sampling.enabled = True  # dynamic sampling
  c.reduction.name = "token_mean"  # token-level loss
  return c
