"""Replay of older groups: experience replay with a bound on age.

Each batch has some graded groups of earlier steps in place of new ones, and the
policy samples fewer responses. Replayed rows count as sampled by another
policy: their old log-probs are the trainer's before the update, as for new
rows, and `correction` multiplies their advantages by the truncated ratio of the
two policies, pi_old / pi_sampler (`mismatch_corrections`), with the sampler's
log-probs of the step that sampled the group. Hence the ratio of the surrogate
begins at 1, and its clip bounds the update, as for all rows.

Groups with signal enter the buffer in the step that samples them, stay until
they are older than the bound, and may be drawn several times. The draw is
uniform, and depends on seed and step alone.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base import feature
from rl_reason.base.structs import Experience
from rl_reason.collect.experience import (
    concatenate,
    groups,
    pad,
    take,
    without_padding,
)
from rl_reason.devices.randomness import host_seed
from rl_reason.features.group_replay import stored_groups
from rl_reason.stages import collectors

Signal = Callable[[Experience], np.ndarray]


def empty(c) -> dict[str, Experience]:
  """Padding: the groups of the next batch, and the buffer."""
  r = c.rollout
  return dict(
      kept=collectors.empty_rows(c, r.replay * r.group_size),
      replay=collectors.empty_rows(c, r.replay_age * r.batch),
  )


def start(c, loop: feature.Loop) -> "OlderGroups":
  """The buffer of a run, with the groups of rollout.replay_from.

  Raises:
    DataError: the groups cannot be replayed in this run.
  """
  r = c.rollout
  found = OlderGroups(
      **empty(c),
      signal=loop.signal,
      count=r.replay,
      group_size=r.group_size,
      max_age=r.replay_age,
      seed=host_seed(c.seed, "replay"),
  )
  if r.replay_from:
    where = f"rollout.replay_from = {r.replay_from}"
    rows = stored_groups.read(
        where,
        pathlib.Path(r.replay_from),
        loop.session.tok,
        group_size=r.group_size,
        temperature=r.temperature,
        max_prompt=r.max_prompt,
        max_tokens=r.max_tokens,
    )
    count, groups = found.fill(rows), len(rows.age_B) // r.group_size
    loop.session.output.display.say(
        f"{where}: {count} of {groups} groups in the buffer of replay"
    )
  return found


class OlderGroups(feature.Part):
  """Graded groups of recent steps.

  Args:
    kept: padding, of as many rows as are replayed in a batch.
    replay: padding, of as many rows as may stay in the buffer.
    signal: step -> whether each group has signal, [N] bool.
    count: groups of a batch that are replayed.
    group_size: rows of a group.
    max_age: steps after which a group is dropped.
    seed: of the draw.

  Attributes:
    kept: the older groups of the next batch, then padding.
    rows: groups in the buffer, then padding. Ages count from the step that was
      learned last.
  """

  def __init__(
      self,
      kept: Experience,
      replay: Experience,
      *,
      signal: Callable[[int], Signal],
      count: int,
      group_size: int,
      max_age: int,
      seed: int,
  ):
    self.kept, self.rows, self._empty = kept, replay, replay
    self._signal, self._count, self._group_size = signal, count, group_size
    self._max_age, self._seed = max_age, seed

  def older(self) -> Experience:
    """The older groups of the next batch."""
    return self.kept

  def exchange(self, rows: Experience, step: int) -> dict[str, float]:
    """Stores the new groups of a batch; draws older groups for the next one.

    Args:
      rows: of the batch, with old log-probs.
      step: completed RL steps before this one.

    Returns:
      metrics of this step.
    """
    # All stored groups are a step older; the new ones follow.
    old = without_padding(self.rows)
    old = old.replace(age_B=old.age_B + 1)
    found = groups(rows.rollouts.ids_B)
    new = take(rows, [x for x in found if rows.age_B[x[0]] == 0])
    new = take(new, _with_signal(new, self._signal(step)))
    everything = concatenate([old, new])

    # Drop what would be too old in the next step, then draw.
    found = groups(everything.rollouts.ids_B)
    stay = [x for x in found if everything.age_B[x[0]] < self._max_age]
    metrics = measured(rows) | {
        "replay/groups": len(stay),
        "replay/dropped_by_age": len(found) - len(stay),
    }
    self._store(take(everything, stay))
    self.kept = self._draw(step)
    return metrics

  def fill(self, rows: Experience) -> int:
    """Fills the buffer before the first step with groups of age 0.

    Of the groups with signal it takes as many as can be replayed before they
    are too old, at random; returns their number.
    """
    chosen = _with_signal(rows, self._signal(0))
    rng = np.random.default_rng((self._seed, 0, 0))
    some = rng.permutation(len(chosen))[: self._count * self._max_age]
    self._store(take(rows, [chosen[n] for n in sorted(some)]))
    self.kept = self._draw(-1)
    return len(some)

  def arrays(self) -> dict[str, Experience]:
    """The groups of the next batch, and the buffer."""
    return dict(kept=self.kept, replay=self.rows)

  def restore(self, arrays: dict[str, Any], host: dict) -> None:
    """Goes on with saved groups."""
    self.kept, self.rows = arrays["kept"], arrays["replay"]

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


def _with_signal(rows: Experience, signal: Signal) -> list[np.ndarray]:
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
