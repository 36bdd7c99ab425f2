"""A reward model: Bradley-Terry on correct and incorrect responses.

  python -m rl_reason.main --config=configs/reward_model.py --stage=reward_model

The model prefers the correct response in 83% (+- 2) of 1,000 held-out pairs,
with a calibration error of .035 (seed 0). Training takes 2 minutes on 2 cores,
one of them for SFT. Use it as a reward with
--config.reward.functions=DIR*0.05, where DIR is its export/reward_model, or to
initialize a critic with critic.init = "exported". The policy soon exploits it:
at a weight of .2, three steps of GRPO raised its score from -1.4 to 5.3, while
accuracy fell from 26% to 8%.
"""

from rl_reason.configs import base


def get_config():
  """Pairs of correct and incorrect responses of every style."""
  c = base.arithmetic()
  c.reward_model.steps = 1000
  return c
