"""A bound of the KL by which one rollout may move the policy.

`updates.max_kl` ends the updates of a rollout; see README.md.
"""

import functools
from collections.abc import Callable

from rl_reason.base import config, feature
from rl_reason.base.fields import number

_REMEDY = "updates.max_kl 0.02"


class _BoundedUpdates(feature.Declaration):
  remedies = {"Updates too large": _REMEDY, "Ratio out of bounds": _REMEDY}

  def fields(self, c) -> None:
    config.extend(
        c,
        "updates",
        # Ends the updates of a rollout; 0 is off.
        max_kl=number(0.0, low=0, needs="several updates"),
    )

  def used(self, c) -> bool:
    return c.updates.max_kl > 0

  def update(self, c, cfg) -> dict[str, Callable]:
    return dict(admits=functools.partial(_is_near, max_kl=c.updates.max_kl))


def _is_near(metrics, *, max_kl: float):
  """Whether the policy has moved by at most `max_kl` before an update."""
  return metrics["kl_old_new"] <= max_kl


FEATURE = _BoundedUpdates()
