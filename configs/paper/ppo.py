"""PPO of Qwen2.5-32B as the baseline of VAPO (arXiv:2504.05118, sec 5.1).

  python -m rl_reason.main --config=configs/paper/ppo.py

We never ran it at this size and have no time or score. The paper reports 5 on
AIME 2024, avg@32. It differs from this config in one respect that a config
cannot set: its critic starts from a reward model, which is not public. Here the
critic starts from the policy; `critic.init` "exported" with `critic.path`
starts it from a reward model of your own. Whitening, the clip of values, the
length of the warm-up (the paper names a "warmup-constant scheduler" without
one) and 20,480 tokens are our choices, as comments say. Model and data come
from the hub; `model.path`, `data.train` and `data.evaluate` take local copies.
Memory: docs/start.md.
"""

from rl_reason.configs.paper import size


def get_config():
  """8192 prompts x 1, minibatches of 512, lambda .95, sample-level loss."""
  c = size.qwen_32b()
  # The paper.
  c.rollout.batch, c.rollout.group_size = 8192, 1
  c.updates.minibatches = 16
  c.advantage.name = "gae"
  c.advantage.args.gamma = 1.0
  c.advantage.args.lam = c.critic.lam = 0.95
  c.surrogate.args.clip_low = c.surrogate.args.clip_high = 0.2
  c.reduction.name = "seq_mean_token_mean"
  c.critic.lr = 2e-6
  # Ours.
  c.critic.init = "policy"  # the paper: a reward model
  c.optimizer.warmup_steps = c.critic.warmup_steps = 20  # as DAPO's
  c.advantage.whiten = True
  c.critic.clip = 0.5
  return c
