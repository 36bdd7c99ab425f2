"""M2PO (arXiv:2510.01161): GRPO on old data, masked by a second moment.

  python -m rl_reason.main --config=configs/m2po.py

Held-out accuracy: 23% to 68% after 30 of its 40 steps, GRPO on data as old 80%
(eight seeds, studies/recent/recent_more.md). The paper's data are up to 256
updates
old; here they are 8 rollouts, of 8 updates each, old.
"""

from rl_reason.configs import base


def get_config():
  """The threshold is the paper's, .04; the mask replaces the clip."""
  c = base.arithmetic()
  c.rl.update(staleness=8, old_logps="trainer")
  c.correction.name = "second_moment"
  # The bounds are so wide that no ratio is clipped.
  c.surrogate.args = dict(clip_low=1.0, clip_high=1e4)
  c.reduction.name = "token_mean"
  return c
