"""GRPO with the numbers of a guide, which no paper has: docs/guide_presets.md.

  python -m rl_reason.main --config=configs/guide/grpo.py

We never ran it and do not recommend it; `configs/paper/grpo.py` is the paper's.
"""

from rl_reason.configs.guide import on_math


def get_config():
  """Groups of 8; .7 of the advantage compares within a subject."""
  c = on_math.qwen_7b()
  c.log.targets.update(kl=0.1, entropy=0.5, grad_norm=1.0)
  c.rollout.batch, c.rollout.group_size = 32 * 8, 8
  c.rollout.temperature = 1.0
  c.rollout.types = "subject"
  c.advantage.name = "hierarchical"
  c.advantage.args = dict(mix=0.7)
  c.surrogate.args.clip_low = c.surrogate.args.clip_high = 0.2
  c.optimizer.lr = 1e-6
  return c
