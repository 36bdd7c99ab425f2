"""REINFORCE (Williams, 1992) with the batch mean as baseline.

  python -m rl_reason.main --config=configs/reinforce.py

Held-out accuracy: 24% to 88% after 30 of its 40 steps (32 seeds,
studies/table/table.md), about 2 minutes on 2 cores.
"""

from rl_reason.configs import base


def get_config():
  """On-policy: one update per rollout, so five times the learning rate."""
  c = base.arithmetic()
  c.rollout.group_size = 1
  c.advantage.name = "group_mean"
  c.advantage.groups = "batch"
  c.surrogate.name = "reinforce"
  c.reduction.name = "seq_mean_token_sum"
  c.updates.minibatches = 1
  c.optimizer.lr = 1e-3
  return c
