"""Resumable stages: what each training loop needs to survive a kill.

SFT, the reward model, value pretraining and RL all train in the same frame:

    if stage.restore(state) and state.complete: ...      # found, resumed
    with stage.running("SFT", total, state, flush):      # saves when stopped
      while state.step < total:
        stage.check_stop()                               # SIGTERM
        ...                                              # one training step
        state.step += 1
        if stage.due(state.step, every):
          stage.save(state)
"""

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.config import differences
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.metrics import Log
from rl_reason.structs import RunError, Stopped, Tree


class State(Protocol):
  """The complete state of a stage.

  Attributes:
    step: training steps that are done.
  """

  step: int

  def arrays(self) -> Tree:
    """The pytree of arrays, on the mesh."""

  def host(self) -> dict[str, Any]:
    """Everything else, as JSON."""

  def restore(self, arrays: Tree, host: dict[str, Any]) -> None:
    """Restores what `arrays` and `host` returned at the save."""


def check_stop(stop: threading.Event) -> None:
  """Raises Stopped after SIGTERM, on all processes at the same step."""
  stopped = stop.is_set()
  if jax.process_count() > 1:
    stopped = bool(np.any(multihost_utils.process_allgather(np.array(stopped))))
  if stopped:
    raise Stopped


class ResumableStage:
  """Finds, restores and saves the state of one stage.

  Args:
    name: of the stage, in checkpoints.
    workdir: everything that the run writes.
    fields: flat config; a checkpoint is refused if a field that changes the
      results differs.
    log: truncated to the newest checkpoint when the stage begins.
    display: progress of the stage.
    stop: set by SIGTERM.
    keep_last: number of newest checkpoints that are kept.
    keep_best: number of checkpoints with the highest score that are kept in
      addition.
  """

  def __init__(
      self,
      name: str,
      workdir: pathlib.Path,
      *,
      fields: dict[str, Any],
      log: Log,
      display: Display,
      stop: threading.Event,
      keep_last: int = 1,
      keep_best: int = 0,
  ):
    self.checkpoints = Checkpoints(
        workdir / "checkpoints" / name, keep_last, keep_best
    )
    self._workdir, self._fields, self._log = workdir, fields, log
    self._display, self._stop = display, stop
    self._flush: Callable[[], None] = lambda: None

  def restore(self, state: State) -> bool:
    """Restores the newest complete checkpoint, if there is one.

    Args:
      state: of step 0; its arrays have the shapes and shardings to restore.

    Raises:
      RunError: the checkpoint was made by a config with other numbers.
    """
    checkpoints = self.checkpoints
    step = checkpoints.newest(self._display.say)
    if step is None:
      return False
    host = checkpoints.host(step)
    different = differences(host["config"], self._fields)
    if different:
      raise RunError(
          f"checkpoint {checkpoints.name}/{step} of {self._workdir} was made by"
          f" another config ({'; '.join(different)}); choose another --workdir"
      )
    self._log.remember(host["log_sizes"])
    state.step = step
    state.restore(checkpoints.restore(step, state.arrays()), host)
    return True

  @contextlib.contextmanager
  def running(
      self,
      title: str,
      total: int,
      state: State,
      flush: Callable[[], None] = lambda: None,
  ) -> Iterator[None]:
    """The context of a training loop.

    On entry, discards what a killed process logged after the newest checkpoint.
    If the loop is stopped, or ends with an error that the user can fix, the
    state is saved first.

    Args:
      title: of the stage, on the screen.
      total: training steps.
      state: of the stage, which the loop advances.
      flush: logs the step whose metrics are still on the device.
    """
    self._log.truncate()
    self._flush = flush
    if state.step or self.checkpoints.saved is not None:
      self._display.say(f"{title}: resumes at step {state.step} of {total}")
    self._display.stage(title, total, state.step)
    try:
      yield
    except (Stopped, RunError):
      if self.checkpoints.saved != state.step:
        self.save(state)
      raise
    finally:
      self._display.end_stage()
      self.checkpoints.close()

  def check_stop(self) -> None:
    """Raises Stopped after SIGTERM, on all processes at the same step."""
    check_stop(self._stop)

  def due(self, step: int, every: int) -> bool:
    """Whether a periodic save is due and has not been made yet."""
    return step > 0 and step % every == 0 and self.checkpoints.saved != step

  def save(self, state: State, score: float | None = None) -> None:
    """Saves the state; first logs the step that is still on the device."""
    self._flush()
    host = dict(
        log_sizes=self._log.checkpoint_sizes(),
        config=self._fields,
        **state.host(),
    )
    self.checkpoints.save(state.step, state.arrays(), host, score)
