"""Replay of older groups: experience replay with a bound on age.

Each batch has some graded groups of earlier steps in place of new ones, and the
policy samples fewer responses. Replayed rows count as sampled by another
policy: their old log-probs are the trainer's before the update, as for new
rows, and `correction` multiplies their advantages by the truncated ratio of the
two policies, pi_old / pi_sampler (`algorithms.corrections`), with the sampler's
log-probs of the step that sampled the group. Hence the ratio of the surrogate
begins at 1, and its clip bounds the update, as for all rows.

Groups with signal enter the buffer in the step that samples them, stay until
they are older than the bound, and may be drawn several times. The draw is
uniform, and depends on seed and step alone.
"""

from collections.abc import Callable

import numpy as np

from rl_reason.base.structs import Experience
from rl_reason.collect.experience import (
    concatenate,
    groups,
    pad,
    take,
    without_padding,
)


class GroupReplay:
  """Graded groups of recent steps.

  Args:
    empty: padding, of as many rows as may stay in the buffer.
    count: groups of a batch that are replayed.
    group_size: rows of a group.
    max_age: steps after which a group is dropped.
    seed: of the draw.

  Attributes:
    rows: groups in the buffer, then padding; the state of a checkpoint. Ages
      count from the step that was learned last.
  """

  def __init__(
      self,
      empty: Experience,
      *,
      count: int,
      group_size: int,
      max_age: int,
      seed: int,
  ):
    self.rows = empty
    self._empty, self._count, self._group_size = empty, count, group_size
    self._max_age, self._seed = max_age, seed

  def exchange(
      self,
      rows: Experience,
      signal: Callable[[Experience], np.ndarray],
      step: int,
  ) -> tuple[Experience, dict[str, float]]:
    """Stores the new groups of a batch; draws older groups for the next one.

    Args:
      rows: of the batch, with old log-probs.
      signal: whether each group has signal, [N] bool.
      step: completed RL steps before this one.

    Returns:
      the groups of the next batch, padded, as `dynamic_sampling.fill_batch`
      takes them, and metrics of this step.
    """
    # All stored groups are a step older; the new ones follow.
    old = without_padding(self.rows)
    old = old.replace(age_B=old.age_B + 1)
    found = groups(rows.rollouts.ids_B)
    new = take(rows, [x for x in found if rows.age_B[x[0]] == 0])
    new = take(new, _with_signal(new, signal))
    everything = concatenate([old, new])

    # Drop what would be too old in the next step, then draw.
    found = groups(everything.rollouts.ids_B)
    stay = [x for x in found if everything.age_B[x[0]] < self._max_age]
    metrics = measured(rows) | {
        "replay/groups": len(stay),
        "replay/dropped_by_age": len(found) - len(stay),
    }
    self._store(take(everything, stay))
    return self._draw(step), metrics

  def fill(
      self, rows: Experience, signal: Callable[[Experience], np.ndarray]
  ) -> tuple[Experience, int]:
    """Fills the buffer before the first step with groups of age 0.

    Of the groups with signal it takes as many as can be replayed before they
    are too old, at random.

    Returns:
      the groups of the first batch, padded, and the number of stored groups.
    """
    chosen = _with_signal(rows, signal)
    rng = np.random.default_rng((self._seed, 0, 0))
    some = rng.permutation(len(chosen))[: self._count * self._max_age]
    self._store(take(rows, [chosen[n] for n in sorted(some)]))
    return self._draw(-1), len(some)

  def _store(self, rows: Experience) -> None:
    """Replaces the groups of the buffer."""
    count = len(self._empty.age_B)
    self.rows = pad(rows, count, self._empty, self._group_size)

  def _draw(self, step: int) -> Experience:
    """The older groups of the batch after a step, padded."""
    stored = without_padding(self.rows)
    found = groups(stored.rollouts.ids_B)
    rng = np.random.default_rng((self._seed, step + 1))
    some = rng.permutation(len(found))[: self._count]
    drawn = take(stored, [found[n] for n in sorted(some)])
    count = self._count * self._group_size
    return pad(drawn, count, self._empty, self._group_size)


def _with_signal(
    rows: Experience, signal: Callable[[Experience], np.ndarray]
) -> list[np.ndarray]:
  """Row numbers of the groups with signal."""
  found = groups(rows.rollouts.ids_B)
  wanted_N = signal(rows) if found else np.zeros(0, bool)
  return [x for x, wanted in zip(found, wanted_N, strict=True) if wanted]


def measured(rows: Experience) -> dict[str, float]:
  """Metrics of the replayed rows of a batch.

  Their share of all rows, the mean of their age in steps, and the mean over
  their tokens of the importance weight pi_old / pi_sampler, before
  `correction` truncates it.

  Args:
    rows: of the batch, with old log-probs.
  """
  real_B = rows.age_B >= 0
  replayed_B = rows.age_B > 0
  out = {"replay/share": replayed_B.sum() / max(real_B.sum(), 1)}
  if not replayed_B.any():
    return out
  mask_BT = rows.rollouts.mask_BT & replayed_B[:, None]
  log_ratio = (rows.old_logps_BT - rows.rollouts.logps_BT)[mask_BT]
  weights = np.exp(np.clip(log_ratio, -20, 20), dtype=np.float64)
  return out | {
      "replay/age_mean": rows.age_B[replayed_B].mean(),
      "replay/weight_mean": weights.mean() if weights.size else 0.0,
  }
