"""DAPO on countdown: many responses are correct, and search is a skill.

  python -m rl_reason.main --config=configs/countdown.py

Held-out accuracy: 12% to 31% (seed 0 only), on a laptop.
"""

from rl_reason.configs import dapo


def get_config():
  """SFT teaches searching and giving up early; RL chooses between them."""
  c = dapo.get_config()
  c.task.name = "countdown"
  c.task.difficulties = (2, 3)
  c.sft.batch = 64
  c.sft.mixture = "careful:1,search:1"
  c.sft.threshold = 0.1
  c.sft.habits.mixture = "search:1,hasty:3"
  c.rollout.max_tokens = 96
  c.reward.overlong_buffer = 16
  c.evaluate.prompts = 300  # of 427 held-out; the others are for validation
  return c
