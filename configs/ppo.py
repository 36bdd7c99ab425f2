"""PPO (arXiv:1707.06347) with a critic, as VAPO's baseline has it.

  python -m rl_reason.main --config=configs/ppo.py
"""

from configs import base


def get_config():
  """GAE at lambda .95 for policy and critic, one response a prompt."""
  c = base.get_config()
  c.rollout.group_size = 1
  c.advantage.name = "gae"
  c.advantage.whiten = True
  return c
