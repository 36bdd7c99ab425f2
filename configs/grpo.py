"""GRPO (arXiv:2402.03300) on the built-in task, without a KL.

  python -m rl_reason.main --config=configs/grpo.py

25% to 93% held out (five seeds, results/seeds.md) in about a minute on 2 cores,
sooner than DAPO: one round of generation a step instead of about seven.
"""

from configs import base


def get_config():
  """GRPO as the base has it: symmetric clip, mean of means, no refill."""
  return base.get_config()
