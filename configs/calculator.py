"""DAPO in an environment: sums, and when to use a calculator.

  python -m rl_reason.main --config=configs/calculator.py

SFT teaches the policy to answer at once and, rarely, to ask the calculator; RL
learns when a question pays off.
"""

from rl_reason.configs import dapo


def get_config():
  """A question costs a tenth of a correct response."""
  c = dapo.get_config()
  c.task.name = "calculator"
  c.task.difficulties = (2, 3, 4, 5, 6)
  c.sft.update(mixture="tool:1,direct:1", threshold=0.0)
  c.sft.habits.update(mixture="tool:1,direct:9")
  c.reward.overlong_buffer = 0
  c.dynamic_sampling.signal = "reward"
  return c
