"""VAPO with the numbers of a guide, which no paper has: docs/guide_presets.md.

  python -m rl_reason.main --config=configs/guide/vapo.py

We never ran it and do not recommend it; `configs/paper/vapo.py` is the paper's.
"""

from rl_reason.configs.guide import on_math


def get_config():
  """A lambda by offset and level, two critics mixed, an entropy bonus."""
  c = on_math.qwen_7b()
  c.log.targets.update(kl=0.1, entropy=0.5, grad_norm=1.0)
  c.rollout.types = "difficulty"  # the complexity: levels 1 to 5
  c.advantage.name = "gae_exp_complexity"
  c.advantage.args = dict(lam=0.95, decay=0.05, slope=0.1, hardest=5.0)
  c.critic.value_mixture.name = "mixture"
  c.critic.value_mixture.args = dict(mix=0.8, decay=2.0)
  c.critic.pretrain_steps = 50  # the paper's: the guide has no number
  c.optimizer.lr, c.critic.lr = 1e-6, 2e-6
  c.surrogate.args.clip_low = c.surrogate.args.clip_high = 0.2
  c.loss.entropy_coef = 0.01
  return c
