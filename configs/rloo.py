"""RLOO (arXiv:2402.14740): REINFORCE with a leave-one-out baseline.

  python -m rl_reason.main --config=configs/rloo.py

Held-out accuracy: 24% to 86% after 30 of its 40 steps (32 seeds,
studies/table/table.md), about 2 minutes on 2 cores.
"""

from rl_reason.configs import reinforce


def get_config():
  """No clip, no critic; the KL to the SFT model is part of the reward."""
  c = reinforce.get_config()
  c.rollout.group_size = 8
  c.advantage.name = "leave_one_out"
  c.advantage.groups = "prompt"
  c.kl.kind = "k1"
  c.kl.place = "reward"
  c.kl.coef = 0.03
  return c
