"""Resumable stages: checkpoints of training loops, which survive a kill.

SFT, value pretraining, RL and stages of features use the same frame:

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
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from rl_reason.base import feature
from rl_reason.base.errors import RunError, Stopped
from rl_reason.base.resume_rules import differences
from rl_reason.base.structs import TrainState, Tree
from rl_reason.checkpointing.checkpoint import Checkpoints, newest_host
from rl_reason.devices import sharding
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.health import why_not_finite
from rl_reason.monitoring.run_log import FILES, Log

# Stage -> later stages, which start from its result.
_AFTER_SFT = (*feature.stages(), "value", "rl")
FOLLOWED_BY = {
    "sft": ("habits", *_AFTER_SFT),
    "habits": _AFTER_SFT,
    **{
        name: ("value", "rl")
        for name, x in feature.stages().items()
        if x.policy
    },
    "value": ("rl",),
}


# Stage or network -> its learning rate.
RATES = {
    "sft": "sft.lr",
    "habits": "sft.habits.lr",
    "policy": "optimizer.lr",
    "critic": "critic.lr",
    "value": "critic.lr",
    **{name: x.rate for name, x in feature.stages().items()},
}


class State(Protocol):
  """The complete state of a stage.

  Attributes:
    step: number of completed training steps.
  """

  step: int

  def arrays(self) -> Tree:
    """The pytree of arrays, on the mesh."""

  def host(self) -> dict[str, Any]:
    """Everything else, as JSON."""

  def restore(self, arrays: Tree, host: dict[str, Any]) -> None:
    """Restores what `arrays` and `host` returned at the save."""


@dataclasses.dataclass
class NetworkState:
  """The complete state of a stage that trains one network without RL.

  Attributes:
    train: parameters and optimizer state, or their shapes before a restore.
    stream: checkpointable iterator over batches, or stream of prompts.
    counters: generated 'tokens' and 'flops', if the stage samples.
    complete: whether the stage has ended, including its final checks.
    rewards: `reward_runner.Rewards`, if the stage has them.
    step: number of completed training steps.
  """

  train: TrainState
  stream: Any
  counters: dict[str, float] = dataclasses.field(default_factory=dict)
  complete: bool = False
  rewards: Any = None
  step: int = 0

  def arrays(self) -> Tree:
    """The pytree of arrays, on the mesh."""
    return self.train

  def host(self) -> dict[str, Any]:
    """Everything else, as JSON."""
    rest = dict(counters=self.counters, complete=self.complete)
    if self.rewards is not None and (scores := self.rewards.get_state()):
      rest["scores"] = scores
    return dict(stream=self.stream.get_state(), **rest)

  def restore(self, arrays: Tree, host: dict[str, Any]) -> None:
    """Restores a saved state."""
    self.train, self.complete = arrays, host["complete"]
    self.counters = host["counters"]
    self.stream.set_state(host["stream"])
    if self.rewards is not None:
      self.rewards.set_state(host.get("scores", {}))


def _noted(host: dict[str, Any]) -> dict[str, Any]:
  """Sizes and hashes of the logs at a checkpoint; old ones have no hashes."""
  sizes = host.get("log_sizes", [0] * len(FILES))
  return host.get("logs") or {
      name: (size, "") for name, size in zip(FILES, sizes, strict=True)
  }


class NotFinite(RunError):
  """Parameters are not finite, so a checkpoint would be useless."""


@jax.jit
def _are_finite(params: list[Tree]) -> list[Tree]:
  """For each array, whether all numbers are finite."""
  return jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), params)


def not_finite(arrays: Tree) -> list[str]:
  """Names of parameters that are not finite, at most one for each network."""
  is_network = lambda x: isinstance(x, TrainState)  # noqa: E731
  leaves = jax.tree.leaves_with_path(arrays, is_leaf=is_network)
  networks = [(path, x.params) for path, x in leaves if is_network(x)]
  finite = sharding.fetch(_are_finite([params for _, params in networks]))
  out = []
  for (path, _), tree in zip(networks, finite, strict=True):
    found = jax.tree.leaves_with_path(tree)
    bad = [path + inside for inside, is_finite in found if not is_finite]
    out += [
        jax.tree_util.keystr(x, simple=True, separator=".") for x in bad[:1]
    ]
  return out


def check_stop(stop: threading.Event) -> None:
  """Raises Stopped after SIGTERM, on all processes at the same step."""
  if np.any(multihost_utils.process_allgather(np.array(stop.is_set()))):
    raise Stopped


class ResumableStage:
  """Finds, restores and saves the state of one stage.

  Args:
    name: name of the stage, in checkpoints.
    workdir: work directory of the run.
    fields: flat config; a checkpoint with another value of a field that changes
      results is refused.
    log: truncated to the newest checkpoint when the stage begins.
    display: shows the progress of the stage.
    stop: set by SIGTERM.
    on_save: called after each save.
    **keep: keywords of `Checkpoints`.
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
      on_save: Callable[[], None] = lambda: None,
      **keep: int,
  ):
    self.checkpoints = Checkpoints(workdir / "checkpoints" / name, **keep)
    self._workdir, self._fields, self._log = workdir, fields, log
    self._display, self._stop = display, stop
    self._flush: Callable[[], None] = lambda: None
    self._on_save = on_save

  def restore(self, state: State) -> bool:
    """Restores the newest complete checkpoint, if any, into a state of step 0.

    Raises:
      RunError: the checkpoint has another config.
    """
    checkpoints = self.checkpoints
    checkpoints.tidy()
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
    self._log.remember(_noted(host))
    state.step = step
    state.restore(checkpoints.restore(step, state.arrays()), host)
    checkpoints.prune(step)
    return True

  @contextlib.contextmanager
  def running(
      self,
      title: str,
      total: int,
      state: State,
      flush: Callable[[], None] = lambda: None,
  ) -> Iterator[None]:
    """The context of a training loop of `total` steps, which updates `state`.

    On entry, discards lines that a killed process logged after the newest
    checkpoint. If the loop is stopped, or ends with an error that the user can
    fix, the state is saved, unless its parameters are not finite. `flush` logs
    the step whose metrics are still on the device.

    Raises:
      RunError: a later stage has started from this one, or has logged since.
    """
    resumed = self.checkpoints.saved is not None
    self._keep_others()
    self._log.truncate()
    self._flush = flush
    if resumed:
      self._display.say(f"{title}: resumes at step {state.step} of {total}")
    self._display.stage(title, total, state.step)
    try:
      yield
    except NotFinite:
      raise
    except (Stopped, RunError):
      if self.checkpoints.saved != state.step:
        self.save(state)
      raise
    finally:
      self._display.end_stage()
      self.checkpoints.close()

  def _keep_others(self) -> None:
    """Keeps the log lines of other stages.

    A stage whose checkpoint is lost would train again, although later stages
    have started from its old result, and would truncate their log lines.
    """
    name, places = self.checkpoints.name, self._workdir / "checkpoints"
    own = self.checkpoints.saved
    noted = {} if own is None else _noted(self.checkpoints.host(own))
    newest: dict[str, Any] = {}
    for path in sorted(places.iterdir() if places.exists() else ()):
      if path.name == name or not (found := newest_host(path)):
        continue
      step, there = found[0], _noted(found[1])
      after = noted and there[FILES[0]][0] > noted[FILES[0]][0]
      if after or path.name in FOLLOWED_BY.get(name, ()):
        raise RunError(
            f"{self._workdir}: checkpoints/{name} is"
            f" {f'at step {own} only' if noted else 'lost'}, and"
            f" checkpoints/{path.name} has since reached step {step}. Restore a"
            f" complete copy of checkpoints/{name}; or, to train it again and"
            f" to discard later stages, remove {path}"
        )
      if there[FILES[0]][0] > newest.get(FILES[0], (0,))[0]:
        newest = there
    if newest and not noted:
      self._log.remember(newest)

  def check_stop(self) -> None:
    """Raises Stopped after SIGTERM, on all processes at the same step."""
    check_stop(self._stop)

  def due(self, step: int, every: int) -> bool:
    """Whether a periodic save is due and has not been made."""
    return step > 0 and step % every == 0 and self.checkpoints.saved != step

  def save(self, state: State, score: float | None = None) -> None:
    """Saves the state, after logging the step that is still on the device.

    Raises:
      NotFinite: parameters are not finite; no checkpoint changes.
    """
    self._flush()
    arrays = state.arrays()
    self._require_finite(state.step, arrays)
    host = dict(logs=self._log.note(), config=self._fields, **state.host())
    self.checkpoints.save(state.step, arrays, host, score)
    self._on_save()

  def _require_finite(self, step: int, arrays: Tree) -> None:
    broken, name = not_finite(arrays), self.checkpoints.name
    if not broken:
      return
    network = broken[0].partition(".")[0] if name == "rl" else name
    rate = RATES[network]
    self.checkpoints.wait()
    whole = self.checkpoints.steps()
    raise NotFinite(
        f"checkpoints/{name}: parameters are not finite at step {step}"
        f" ({', '.join(broken)}), so the step is not saved"
        f"{f', and step {whole[-1]} stays the newest' if whole else ''}. An"
        " update was too large, although its gradient was finite:"
        f" {why_not_finite(self._fields, rate)}, in another --workdir"
    )
