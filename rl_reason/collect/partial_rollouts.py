"""Partial rollouts: a round may leave its last groups to the next round.

Within a training step only the order of the work changes: the next round
samples new prompts while the last responses of this round finish. Across steps
(`rollout.partial_across_steps`) the policy of the next step samples the
remaining tokens, and a round ends as soon as it has enough finished groups,
which favours short responses; the run warns of it.
"""

import functools

import jax
import numpy as np

from rl_reason.base.structs import Experience, Rollouts
from rl_reason.collect.collector import RolloutCollector
from rl_reason.collect.experience import (
    groups,
    pad,
    round_robin,
    take,
    without_padding,
)
from rl_reason.collect.grading import AsyncGrader
from rl_reason.rollout.sampler import Sampled


class PartialRolloutCollector(RolloutCollector):
  """A collector whose rounds may leave groups unfinished.

  Args:
    unfinished: padding, of as many rows as may stay unfinished.
    max_tokens: of a response.
    across_steps: unfinished groups may continue in the next training step.
    num_shards: shards of the rows; each resumes its share of the groups.
    **options: of `RolloutCollector`.

  Attributes:
    unfinished: groups left to the next round, then padding.
  """

  def __init__(
      self,
      *args,
      unfinished: Experience,
      max_tokens: int,
      across_steps: bool,
      num_shards: int,
      **options,
  ):
    super().__init__(*args, **options)
    self.unfinished: Experience = unfinished
    self._empty = unfinished
    self._capacity = len(unfinished.age_B) // self._group_size
    self._max_tokens, self._across_steps = max_tokens, across_steps
    self._num_shards = num_shards

  def start_step(self) -> None:
    """Begins a step; all tokens so far come from an older policy."""
    super().start_step()
    old = self.unfinished
    self.unfinished = old.replace(
        stale_lengths_B=old.rollouts.lengths_B,
        age_B=old.age_B + (old.age_B >= 0),
    )

  def collect(
      self,
      weights,
      on_dispatch=lambda: None,
      another_round_follows=lambda *_: False,
  ) -> Experience:
    """As `RolloutCollector.collect`; returns the groups that have finished.

    Across steps, at most the groups of one round.
    """
    group, count = self._group_size, self.num_responses // self._group_size
    resumed = without_padding(self.unfinished)
    capacity = count + self._capacity

    # Unfinished groups come first, then new prompts, then empty groups.
    ids = resumed.rollouts.ids_B[::group].tolist()
    rows = [self.prompts.row(prompt_id) for prompt_id in ids]
    new = capacity - len(ids) if self._across_steps else count
    new_ids, new_rows = self.prompts.draw(new)
    ids, rows = ids + new_ids, rows + new_rows
    num_real, num_empty = len(ids), capacity - len(ids)
    ids += [-1 - n for n in range(num_empty)]
    rows += rows[:1] * num_empty
    rows_B = [row for row in rows for _ in range(group)]

    # Sample and grade, until few enough groups are unfinished.
    start = self._resume(resumed, np.array(ids))
    parts = self._sample_resumed(weights, ids, rows, rows_B, start, on_dispatch)
    stops = functools.partial(self._stops, another_round_follows)
    rollouts, finished_B, grader, scores = self._grade(parts, rows_B, stops)

    experience = self._experience(rollouts, grader.correct_B, rows_B)
    experience = experience.replace(steps=self.rewards.steps(scores))
    old = len(resumed.age_B)
    experience = experience.replace(
        stale_lengths_B=np.concatenate(
            [resumed.stale_lengths_B, experience.stale_lengths_B[old:]]
        ),
        age_B=np.concatenate([resumed.age_B, experience.age_B[old:]]),
    )

    # Return the finished groups; the others wait for the next round.
    group_rows = groups(rollouts.ids_B)
    finished = [n for n in range(num_real) if finished_B[group_rows[n]].all()]
    finished = sorted(finished, key=ids.__getitem__)
    if self._across_steps:
      finished = finished[:count]
    waiting = [group_rows[n] for n in range(num_real) if n not in set(finished)]
    self.unfinished = pad(
        take(experience, waiting), self._capacity * group, self._empty, group
    )
    which = [group_rows[n] for n in finished]
    index = np.concatenate(which)
    rows_of = [rows_B[b] for b in index]
    scores_UB = scores.scores_UB[:, index]
    out = self._score(take(experience, which), scores_UB, rows_of)
    texts = [grader.texts[b] for b in index]
    self.stats.add(out, texts, rows_of)
    self.doubtful.responses(
        texts, rows_of, grader.correct_B[index], rollouts.truncated_B[index]
    )
    self._update_prompts(out, [rows[n] for n in finished])
    self.clock.lap("score")
    return out

  def _stops(self, another_round_follows, grader: AsyncGrader, finished_B):
    """Whether the unfinished groups are left to the next round.

    The decision depends on decode steps and not on the arrival of verdicts, so
    every run makes it at the same place.
    """
    finished_NG = finished_B.reshape(-1, self._group_size)
    unfinished = int((~finished_NG.all(1)).sum())
    if not 0 < unfinished <= self._capacity:
      return False
    if self._across_steps:
      return True
    grader.wait()
    correct_NG = grader.correct_B.reshape(finished_NG.shape)
    mixed_N = (correct_NG == 1).any(1) & (correct_NG == 0).any(1)
    signal_N = finished_NG.all(1) & mixed_N
    return another_round_follows(int(signal_N.sum()), unfinished)

  def _resume(self, resumed: Experience, ids_N: np.ndarray) -> Sampled:
    """Responses at the start of a round, and whether each has finished.

    Empty groups count as finished.
    """
    group = self._group_size
    empty = jax.tree.map(
        lambda x: np.repeat(np.zeros_like(x[:1]), len(ids_N) * group, 0),
        self._empty.rollouts,
    )
    started: Rollouts = jax.tree.map(
        lambda old, new: np.concatenate([old, new[len(old) :]]),
        resumed.rollouts,
        empty,
    )
    started = started.replace(
        ids_B=np.repeat(ids_N, group).astype(np.int32),
        truncated_B=np.where(started.lengths_B > 0, started.truncated_B, True),
    )
    at_limit_B = started.lengths_B == self._max_tokens
    ended_B = ~started.truncated_B | at_limit_B | (started.ids_B < 0)
    return Sampled(started, ended_B)

  def _sample_resumed(self, weights, ids, rows, rows_B, start, on_dispatch):
    """`_sample`, with the groups assigned round-robin to the data shards.

    Each data shard then resumes its share of the unfinished groups.
    """
    order_N = round_robin(list(np.arange(len(ids))[:, None]), self._num_shards)
    groups = np.split(np.arange(len(rows_B)), len(ids))
    order_B = round_robin(groups, self._num_shards)
    back_B = np.argsort(order_B)
    for part in self._sample(
        weights,
        [ids[n] for n in order_N],
        [rows[n] for n in order_N],
        np.full(len(ids), self._group_size),
        [rows_B[b] for b in order_B],
        on_dispatch,
        resumed=start.with_arrays(_rows(order_B)),
        yield_when_unfinished_groups=self._capacity,
    ):
      yield part.with_arrays(_rows(back_B))


def _rows(index_B: np.ndarray):
  """Takes rows by their numbers, of all arrays of a pytree."""
  return functools.partial(jax.tree.map, lambda x: x[index_B])
