r"""DAPO in an environment: writing and repairing programs, on MBPP.

  python -m rl_reason.main --config=configs/python.py \
      --config.model.path=DIR --config.data.train=mbpp:train@DATA

We never ran it at this size; configs/lines.py is for a laptop. Without the
overrides both come from the hub. rl_reason/features/environments/python.py
defines the observations and the reward.
"""

from rl_reason.configs import dapo_qwen


def get_config():
  """Up to four programs per task; the reward is the share of passed tests."""
  c = dapo_qwen.get_config()
  c.environment.name = "python"
  c.model.path = "Qwen/Qwen2.5-1.5B-Instruct"
  c.data.train, c.data.evaluate = "mbpp:train", "mbpp:test"
  c.data.template = "code"
  c.rollout.batch = 512
  c.rollout.max_prompt, c.rollout.max_tokens = 512, 2048
  c.reward.overlong_buffer = 0
  c.updates.token_budget = 5120
  # A group has signal if its trajectories pass different shares of the tests.
  c.dynamic_sampling.signal = "reward"
  c.environment.workers = 16
  c.rl.steps = 100
  c.evaluate.prompts, c.evaluate.interim_prompts = 500, 100
  c.evaluate.samples = c.evaluate.mean_of = 4
  c.evaluate.top_p = 1.0
  return c
