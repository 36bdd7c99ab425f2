"""DAPO with the numbers of a guide, which no paper has: docs/guide_presets.md.

  python -m rl_reason.main --config=configs/guide/dapo.py

We never ran it and do not recommend it; `configs/paper/dapo.py` is the paper's.
"""

from rl_reason.configs.guide import on_math


def get_config():
  """Asymmetric clip, responses weighed by length, a penalty of length."""
  c = on_math.qwen_7b()
  c.log.targets.update(kl=0.1, entropy=0.5, grad_norm=1.0)
  c.surrogate.args.clip_low, c.surrogate.args.clip_high = 0.1, 0.3
  c.rollout.batch, c.rollout.group_size = 64, 8
  c.updates.token_budget = 65536
  c.loss.length_alpha = 0.2
  c.reward.length_penalty.name = "logquad"
  c.reward.length_penalty.args = dict(coef=0.05, decay=2.0)
  c.optimizer.lr = 3e-6
  c.reduction.name = "token_mean"  # with the next line, of DAPO's paper
  c.dynamic_sampling.enabled = True
  return c
