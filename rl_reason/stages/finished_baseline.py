"""loss.truncated_in_baseline: whether filtered responses are in the baseline.

Overlong filtering masks truncated responses out of the loss. With the field
False they leave the statistics of their group as well: advantages are computed,
and groups have signal, as if these responses had not been sampled.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from rl_reason.base.structs import Array

Rows = dict[str, Array]


def applies(c) -> bool:
  """Whether truncated responses are in no baseline."""
  return c.loss.mask_truncated and not c.loss.truncated_in_baseline


def counts(c) -> Callable[[Rows], Array] | None:
  """Rows -> whether each is part of the statistics, [B]; None: all are."""
  return finished if applies(c) else None


def finished(rows: Rows) -> Array:
  """Whether each response has ended, [B]."""
  return ~rows["truncated_B"]


def rewards(c, reward: Callable[[Rows], Array]) -> Callable[[Rows], Array]:
  """Rewards, [B], NaN where a response is in no baseline."""
  return functools.partial(_of_finished, reward) if applies(c) else reward


def _of_finished(reward: Callable[[Rows], Array], rows: Rows) -> Array:
  return jnp.where(finished(rows), reward(rows), jnp.nan)
