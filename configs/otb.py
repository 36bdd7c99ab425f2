"""OTB (arXiv:2602.07078): a baseline for each token, the one of least variance.

  python -m rl_reason.main --config=configs/otb.py

Held-out accuracy: 23% to 82% after 30 of its 40 steps (eight seeds,
studies/recent/recent_more.md).
"""

from rl_reason.configs import base


def get_config():
  """verl's script is on-policy, too; so five times the learning rate."""
  c = base.arithmetic()
  c.advantage.name = "optimal_token_baseline"
  c.surrogate.name = "reinforce"
  c.reduction.name = "token_mean"
  c.updates.minibatches = 1
  c.optimizer.lr = 1e-3
  return c
