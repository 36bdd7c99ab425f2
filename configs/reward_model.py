"""A reward model: Bradley-Terry on right and wrong responses.

  python -m rl_reason.main --config=configs/reward_model.py --stage=reward_model

Then, as a reward: --config.reward.scorers=DIR*0.5, DIR being its
export/reward_model; as the start of a critic: critic.init = "exported".
"""

from configs import base


def get_config():
  """The built-in task: right and wrong responses of every style."""
  c = base.get_config()
  c.reward_model.steps = 1000
  c.critic.head = "scalar"
  return c
