"""Supervised fine-tuning alone: what RL starts from, and its control.

  python -m rl_reason.main --config=configs/sft.py
  python -m rl_reason.main --config=configs/sft.py:control
"""

from configs import base

VARIANTS = ("", "control")


def get_config(variant=""):
  """variant: '', or 'control': RL's compute spent on more of the same SFT."""
  c = base.get_config()
  c.rl.steps = 0
  if variant == "control":
    c.sft.habits.steps += 480
  elif variant:
    raise ValueError(f"sft.py:{variant}: there are {VARIANTS[1:]}")
  return c
