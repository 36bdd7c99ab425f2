"""LitePPO (arXiv:2508.08221): group mean, batch spread, token-level loss.

  python -m rl_reason.main --config=configs/lite_ppo.py

27% to 90% held out in 30 of its 40 steps (five seeds,
results/algorithms.md), about 2 minutes on 2 cores.
"""

from configs import base


def get_config():
  """Two techniques over plain PPO, and no critic."""
  c = base.get_config()
  c.advantage.name = "group_mean_batch_std"
  c.reduction.name = "token_mean"
  return c
