"""DAPO (arXiv:2503.14476) of Qwen2.5-32B, as published.

  python -m rl_reason.main --config=configs/paper/dapo.py

We never ran it at this size and have no time or score. The paper reports 50 on
AIME 2024, avg@32. Comments say which numbers are of the paper, of the recipe
that its authors released, and ours: the number of steps, for example, is in
neither. Model and data come from the hub; `model.path`, `data.train` and
`data.evaluate` take local copies. Memory: docs/start.md.
"""

from rl_reason.configs.paper import size


def get_config():
  """512 prompts x 16, 16 updates, soft punishment over 4096 tokens."""
  c = size.qwen_32b()
  # The paper.
  c.rollout.batch, c.rollout.group_size = 8192, 16
  c.updates.minibatches = 16
  c.surrogate.args.clip_low, c.surrogate.args.clip_high = 0.2, 0.28
  c.reduction.name = "token_mean"
  c.reward.overlong_buffer = 4096
  c.dynamic_sampling.enabled = True
  c.optimizer.warmup_steps = 20
  # The recipe.
  c.surrogate.args.dual_clip = 10.0
  c.dynamic_sampling.batches, c.dynamic_sampling.max_rounds = 3, 10
  c.dynamic_sampling.shortfall = "raise"
  return c
