"""Supervised fine-tuning alone: the start of RL, and a control for it.

python -m rl_reason.main --config=configs/sft.py
python -m rl_reason.main --config=configs/sft.py:control
"""

from rl_reason.configs import base

VARIANTS = ("", "control")


def get_config(variant=""):
  """Variant 'control' spends RL's compute on more of the same SFT."""
  c = base.get_config()
  c.rl.steps = 0
  if variant == "control":
    # Compute in forward passes of a row. RL: 40 steps x 256 rows x (6 to 7
    # rounds of generation + old log-probs + 3 for an update). An SFT step: a
    # batch x 3.
    c.sft.habits.steps += 40 * 256 * (7 + 1 + 3) // (c.sft.batch * 3)
  elif variant:
    raise ValueError("the variants are control and smoke")
  return c
