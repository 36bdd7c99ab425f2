"""SFT alone on the built-in task, with the compute of RL: a control for RL.

python -m rl_reason.main --config=configs/sft_control.py

`--config=configs/grpo.py --config.rl.steps=0` is the SFT that RL starts from.
"""

from rl_reason.configs import base


def get_config():
  """More of the same habits, as many as RL's compute pays for."""
  c = base.arithmetic()
  c.rl.steps = 0
  # Compute in forward passes of a row. RL: 40 steps x 256 rows x (6 to 7 rounds
  # of generation + old log-probs + 3 for an update). An SFT step: a batch x 3.
  c.sft.habits.steps += 40 * 256 * (7 + 1 + 3) // (c.sft.batch * 3)
  return c
