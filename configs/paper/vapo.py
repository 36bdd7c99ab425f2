"""VAPO (arXiv:2504.05118) of Qwen2.5-32B, as published.

  python -m rl_reason.main --config=configs/paper/vapo.py

We never ran it at this size and have no time or score. The paper reports 60.4
on AIME 2024, avg@32, within 5,000 gradient updates. It differs from this config
in one respect that a config cannot set: its critic starts from a reward model,
which is not public, and is then pretrained. Here the critic starts from the
policy; `critic.init` "exported" with `critic.path` starts it from a reward
model of your own. Whitening, the clip of values, the length of the warm-up (the
paper names a "warmup-constant scheduler" without one), a lambda of at least 0
and 20,480 tokens are our choices, as comments here and in configs/paper/ppo.py
say. Model and data come from the hub; `model.path`, `data.train` and
`data.evaluate` take local copies. Memory: docs/start.md.
"""

from rl_reason.configs.paper import ppo


def get_config():
  """PPO and the seven techniques; 512 prompts x 16, minibatches of 512."""
  c = ppo.get_config()
  # The paper.
  c.critic.pretrain_steps = 50
  c.critic.lam = 1.0
  c.advantage.name = "gae_length_adaptive"
  c.advantage.args = dict(alpha=0.05)
  c.surrogate.args.clip_high = 0.28
  c.reduction.name = "token_mean"
  c.loss.positive_nll = 0.1
  c.rollout.group_size = 16
  return c
