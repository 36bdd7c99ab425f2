"""VAPO (arXiv:2504.05118) of Qwen2.5-32B, as published.

  python -m rl_reason.main --config=configs/paper/vapo.py

We never ran it at this size and have no time or score. The paper reports 60.4
on AIME 2024, avg@32, within 5,000 steps, which we interpret as updates. Model
and data come from the hub; `model.path`, `data.train` and `data.evaluate` take
local copies. Memory: docs/start.md.
"""

from rl_reason.configs.paper import ppo


def get_config():
  """PPO and the seven techniques; 512 prompts x 16, minibatches of 512."""
  c = ppo.get_config()
  c.critic.pretrain_steps = 50
  c.critic.lam, c.critic.lr = 1.0, 2e-6
  c.advantage.name = "gae_length_adaptive"
  c.advantage.args = dict(alpha=0.05)
  c.surrogate.args.clip_high = 0.28
  c.reduction.name = "token_mean"
  c.loss.positive_nll = 0.1
  c.rollout.group_size = 16
  return c
