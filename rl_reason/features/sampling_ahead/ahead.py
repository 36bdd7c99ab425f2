"""Asynchronous generation: a thread samples batches of later steps.

With rl.staleness = S, the thread samples the batch of step t + S with the
weights of step t, while the trainer learns the steps from t on. The schedule
counts steps, not seconds: every batch from the S-th on is S steps old, and no
group is dropped because it is slow. The samples depend on weights, prompts and
keys alone, so two runs are equal bit by bit.

A save waits for the batches in flight, which are part of the state. A resumed
run does not need the weights that sampled them.
"""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason.base import feature
from rl_reason.base.structs import Experience, Tree
from rl_reason.collect import experience
from rl_reason.collect.collector import RolloutCollector
from rl_reason.monitoring import resources, run_log
from rl_reason.monitoring.samples import EXTREMES, SampleLog
from rl_reason.stages import collectors


class Batch(NamedTuple):
  """A batch sampled ahead.

  Attributes:
    rows: with their age in the step that learns them.
    host: step, metrics and counts of the batch, as JSON.
  """

  rows: Experience
  host: dict[str, Any]


class Ahead(feature.Part):
  """Samples batches ahead of learning.

  Args:
    collector: of the batches; gets its own clock, which nothing reads.
    staleness: S.
    steps: of the run; later batches are not sampled.
    sampler_logps: whether the old log-probs of stale rows are the sampler's.
    mesh: devices that sample.
    empty: padding in the shapes of the batches in flight, see `no_batches`.
    replay: (rows, weights that sampled them) -> metrics.
  """

  def __init__(
      self,
      collector: RolloutCollector,
      *,
      staleness: int,
      steps: int,
      sampler_logps: bool,
      mesh: jax.sharding.Mesh,
      empty: tuple[tuple[Experience, Experience], ...],
      replay: Callable[[Experience, Tree], dict[str, float]] = lambda *_: {},
  ):
    self._replay, self._collector = replay, collector
    self._staleness, self._steps = staleness, steps
    self._sampler_logps, self._mesh, self._empty = sampler_logps, mesh, empty
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "sampling")
    self._batches: dict[int, concurrent.futures.Future[Batch]] = {}
    self._work: list[list[float]] = []  # [start, end] of recent batches
    self._learning_since: float | None = None

  def collecting(
      self, collect: feature.Collect, samples: SampleLog
  ) -> feature.Collect:
    """Collects ahead; `samples` keep groups of each step."""
    self._collect, self._samples = collect, samples
    clock = self._collector.clock
    self._clock, self._collector.clock = clock, resources.Clock()
    return self._batch

  def _batch(
      self, step: int, weights: Tree, on_dispatch: Callable[[], None]
  ) -> tuple[Experience, dict[str, Any], dict[str, Any]]:
    """Returns the batch of a step; starts batches of up to S steps later.

    `step` counts completed RL steps; `on_dispatch` is called once these batches
    have started.
    """
    learned = time.monotonic()
    # Start the missing batches: one, or S + 1 in the first step.
    last = min(step + self._staleness, self._steps - 1)
    wanted = [x for x in range(step, last + 1) if x not in self._batches]
    if wanted:
      weights = _handed_over(weights, self._mesh)
    for later in wanted:
      self._batches[later] = self._thread.submit(
          self._sample, later, step, weights
      )
    on_dispatch()

    # Wait for the batch of this step, which may be complete already.
    self._clock.lap("host")
    batch = self._batches.pop(step).result()
    self._clock.lap("wait")
    since, self._learning_since = self._learning_since, time.monotonic()
    measured = {}
    if since is not None:
      seconds = self._learning_since - since
      measured["perf/overlap"] = self._worked(since, learned) / seconds
    host = batch.host
    return batch.rows, host["metrics"] | measured, host["counts"]

  def _sample(self, step: int, policy_step: int, weights: Tree) -> Batch:
    """Samples the batch of a step with the weights of an earlier one."""
    span = [time.monotonic(), np.inf]
    self._work = [*self._work[-self._staleness :], span]
    with jax.set_mesh(self._mesh):
      rows, found, counts = self._collect(
          step, weights, on_dispatch=lambda: None
      )
      found |= self._replay(rows, weights)
    counts["version"] = policy_step
    age = step - policy_step
    age_B = np.where(rows.age_B < 0, -1, age).astype(np.int32)
    rows = rows.replace(age_B=age_B)
    if age and self._sampler_logps:
      rows = rows.replace(stale_lengths_B=rows.rollouts.lengths_B)
    span[1] = time.monotonic()
    found["perf/sampling_seconds"] = span[1] - span[0]
    host = dict(step=step, metrics=found, counts=counts)
    return Batch(rows, jax.tree.map(lambda x: np.asarray(x).item(), host))

  def _worked(self, start: float, end: float) -> float:
    """Seconds of a past interval in which a batch was being sampled."""
    spans = [min(end, b) - max(start, a) for a, b in self._work]
    return sum(max(x, 0.0) for x in spans)

  def wait(self) -> None:
    """Waits for the batches in flight."""
    self._in_flight()

  def _in_flight(self) -> list[Batch]:
    """Waits for the batches in flight; returns the ones before a failure."""
    found = []
    for _, batch in sorted(self._batches.items()):
      if batch.exception() is not None:
        break  # `_batch` of its step raises the exception
      found.append(batch.result())
    return found

  def arrays(self) -> dict[str, tuple[tuple[Experience, Experience], ...]]:
    """Rows and extreme groups of the S batches in flight, padded."""
    out = list(self._empty)
    for n, batch in enumerate(self._in_flight()):
      _, places = out[n]
      groups = self._samples.extremes(batch.host["step"])
      parts = [experience.take(places, []), *groups]
      extremes = experience.pad(
          experience.concatenate(parts), len(places.age_B), places, 1
      )
      out[n] = batch.rows, extremes
    return dict(ahead=tuple(out))

  def host(self) -> dict[str, list[dict[str, Any]]]:
    """Step, metrics and counts of the batches in flight, as JSON."""
    return dict(ahead=[batch.host for batch in self._in_flight()])

  def restore(self, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    """Restores a save of `arrays` and `host`."""
    saved = zip(arrays["ahead"], host["ahead"], strict=False)
    for (rows, extremes), found in saved:
      counts = dict(found["counts"])
      if "signs" in counts:  # saved by an earlier version
        counts["responses"] = run_log.current_names(counts.pop("signs"))
      found = found | dict(counts=counts)
      done: concurrent.futures.Future[Batch] = concurrent.futures.Future()
      done.set_result(Batch(rows, found))
      self._batches[found["step"]] = done
      self._samples.keep_extremes(found["step"], extremes)

  def close(self) -> None:
    """Ends the thread after its current batch."""
    self._thread.shutdown(cancel_futures=True)


def _handed_over(weights: Tree, mesh: jax.sharding.Mesh) -> Tree:
  """Copies weights to the devices that sample: updates donate the originals."""
  where = jax.tree.map(
      lambda x: jax.sharding.NamedSharding(mesh, x.sharding.spec), weights
  )
  return jax.device_put(weights, where, may_alias=False)


def no_batches(c) -> tuple[tuple[Experience, Experience], ...]:
  """Padding in the shapes of S batches in flight, and of their extreme groups.

  An extreme group may be as large as a whole round if groups are unequal.
  """
  group = c.rollout.group_size
  if feature.first(c, "sizes") is not None:
    group = c.dynamic_sampling.batches * c.rollout.batch
  rows = collectors.empty_rows(c, c.rollout.batch)
  extremes = collectors.empty_rows(c, len(EXTREMES) * group)
  return ((rows, extremes),) * c.rl.staleness
