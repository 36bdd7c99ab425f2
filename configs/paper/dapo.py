"""DAPO (arXiv:2503.14476) of Qwen2.5-32B, as published.

  python -m rl_reason.main --config=configs/paper/dapo.py

We never ran it at this size and have no time or score. The paper reports 50 on
AIME 2024, avg@32. The number of steps is our choice: the paper states none.
Model and data come from the hub; `model.path`, `data.train` and `data.evaluate`
take local copies. Memory: docs/start.md.
"""

from rl_reason.configs.paper import size


def get_config():
  """512 prompts x 16, 16 updates, soft punishment over 4096 tokens."""
  c = size.qwen_32b()
  c.rollout.batch, c.rollout.group_size = 8192, 16
  c.updates.minibatches = 16
  c.surrogate.args = dict(clip_high=0.28, dual_clip=10.0)
  c.reduction.name = "token_mean"
  c.reward.overlong_buffer = 4096
  c.dynamic_sampling.enabled, c.dynamic_sampling.shortfall = True, "raise"
  c.dynamic_sampling.batches = 3
  c.optimizer.warmup_steps = 20
  return c
