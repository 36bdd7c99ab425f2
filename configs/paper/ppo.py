"""PPO of Qwen2.5-32B as the baseline of VAPO (arXiv:2504.05118, sec 5.1).

  python -m rl_reason.main --config=configs/paper/ppo.py

We never ran it at this size and have no time or score. The paper reports 5 on
AIME 2024, avg@32. Its critic is initialized from a reward model; here it is
initialized from the policy, and `critic.init` and `critic.path` select your own
reward model. Model and data come from the hub; `model.path`, `data.train` and
`data.evaluate` take local copies. Memory: docs/start.md.
"""

from rl_reason.configs.paper import size


def get_config():
  """8192 prompts x 1, minibatches of 512, lambda .95, sample-level loss."""
  c = size.qwen_32b()
  c.rollout.batch, c.rollout.group_size = 8192, 1
  c.updates.minibatches = 16
  c.advantage.name = "gae"
  c.critic.lr = 2e-6
  c.advantage.args.lam = c.critic.lam = 0.95
  c.advantage.whiten = True
  return c
