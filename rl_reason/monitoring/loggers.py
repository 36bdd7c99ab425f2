"""Further loggers: TensorBoard, wandb, trackio, and loggers of the user.

A logger is an object with `write(step, metrics)` and `close()`, or a function
of (metrics, step). Names of metrics begin with the stage: `rl/train/accuracy`.
An object with a method `show(step, texts, histograms)` also gets the responses
and the distributions of a step. One with a method `cut(last)` hears, when a
stage begins, the last step of each stage that a resumed run keeps.

Each logger has a thread and a bounded queue. A logger that raises an exception,
hangs or falls behind is reported once and then dropped: neither a full disk nor
a lost network can stop a run.
"""

import functools
import html
import importlib.util
import os
import pathlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from rl_reason.base import errors, functions

PROJECT = "rl_reason"  # of wandb and trackio
CAPACITY = 1000  # writes in the queue
PATIENCE = 120.0  # seconds of a single write; wandb.init takes some
CLOSING = 30.0  # seconds until a logger has to finish at the end of a run


class Logger(Protocol):
  """The interface of a logger; plain functions of (metrics, step) also work."""

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Logs the finite metrics of one step of a stage."""

  def close(self) -> None:
    """Writes what is pending."""


# --- loggers by name ---------------------------------------------------------


class TensorBoard:
  """Event files: scalars, text, histograms, and the config as hparams.

  Events are written synchronously, since the logger has its own thread: the
  thread of tensorboardX's SummaryWriter dies silently on a full disk, and the
  next write then blocks forever.
  """

  def __init__(self, workdir: pathlib.Path, fields: Mapping[str, Any]):
    from tensorboardX import event_file_writer, summary
    from tensorboardX.proto import event_pb2

    folder = workdir / "tensorboard"
    folder.mkdir(parents=True, exist_ok=True)
    # The name of a file has the second of the start: of each start another one.
    while [*folder.glob(f"events.out.tfevents.{int(time.time())}.*")]:
      time.sleep(0.1)
    self._earlier = sorted(folder.glob("events.out.tfevents.*"))
    self._events = event_file_writer.EventsWriter(str(folder / "events"))
    self._summary, self._event = summary, event_pb2.Event
    plain = {k: x if _is_scalar(x) else str(x) for k, x in fields.items()}
    # The metrics of the HPARAMS tab, by which runs are compared.
    compared = ["evaluate/val-aux/score", "rl/train/accuracy"]
    for part in summary.hparams(plain, dict.fromkeys(compared, 0.0)):
      self._add(0, part)

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Writes scalars."""
    for name, value in metrics.items():
      self._add(step, self._summary.scalar(name, value))
    self._events.flush()

  def show(
      self, step: int, texts: dict[str, str], histograms: dict[str, np.ndarray]
  ) -> None:
    """Writes texts, in Markdown, and histograms."""
    for name, text in texts.items():
      self._add(step, self._summary.text(name, text))
    for name, values in histograms.items():
      self._add(step, self._summary.histogram(name, values, bins=30))
    self._events.flush()

  def cut(self, last: Mapping[str, int]) -> None:
    """Removes later steps, which the run makes again, from earlier files.

    `purge_step` of TensorBoard would purge the steps of all stages.
    """
    for path in self._earlier:
      _cut(path, last)

  def close(self) -> None:
    """Closes the event file."""
    self._events.close()

  def _add(self, step: int, summary: Any) -> None:
    self._events.write_event(
        self._event(wall_time=time.time(), step=step, summary=summary)
    )


def _cut(path: pathlib.Path, last: Mapping[str, int]) -> None:
  """Removes the events of a file after the last step of their stages.

  A file of events is a sequence of: size (8 bytes), its checksum (4), an event,
  its checksum (4).
  """
  from tensorboardX.proto import event_pb2

  data, kept, at = path.read_bytes(), [], 0
  while at + 12 <= len(data):
    end = at + 16 + int.from_bytes(data[at : at + 8], "little")
    if end > len(data):
      break  # a killed process wrote a part
    event = event_pb2.Event.FromString(data[at + 12 : end - 4])
    stages = {x.tag.partition("/")[0] for x in event.summary.value}
    if all(event.step <= last.get(x, -1) or x == "_hparams_" for x in stages):
      kept.append(data[at:end])
    at = end
  if sum(map(len, kept)) < len(data):
    new = path.with_name("cut")
    new.write_bytes(b"".join(kept))
    new.replace(path)


class WandB:
  """A run of wandb; WANDB_MODE, WANDB_PROJECT and so on apply."""

  def __init__(self, workdir: pathlib.Path, fields: Mapping[str, Any]):
    import wandb

    # wandb would ask for a key on the terminal, in the middle of a run.
    if wandb.setup().settings.mode == "online" and not wandb.api.api_key:
      raise RuntimeError("not logged in; `wandb login`, or WANDB_MODE=offline")
    # A resumed run continues its run of wandb.
    path = workdir / "wandb.id"
    if not path.exists():
      path.write_text(uuid.uuid4().hex[:8])
    self._wandb = wandb
    self._run = wandb.init(
        project=None if "WANDB_PROJECT" in os.environ else PROJECT,
        name=workdir.resolve().name,
        id=path.read_text(),
        resume="allow",
        dir=str(workdir),
        config=dict(fields),
        settings=wandb.Settings(console="off"),  # `Display` has the screen
    )
    self._stages: set[str] = set()

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Logs scalars, each stage over its own steps."""
    self._log(step, metrics)

  def show(
      self, step: int, texts: dict[str, str], histograms: dict[str, np.ndarray]
  ) -> None:
    """Logs texts and histograms."""
    as_html = "<pre style='white-space: pre-wrap'>{}</pre>".format
    self._log(
        step,
        {
            name: self._wandb.Html(as_html(html.escape(text)), inject=False)
            for name, text in texts.items()
        }
        | {name: self._wandb.Histogram(x) for name, x in histograms.items()},
    )

  def close(self) -> None:
    """Finishes the run."""
    self._run.finish()

  def _log(self, step: int, values: dict[str, Any]) -> None:
    stages = {name.partition("/")[0] for name in values}
    for stage in sorted(stages - self._stages):
      self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
    self._stages |= stages
    self._run.log(values | {f"{stage}/step": step for stage in stages})


class Trackio:
  """A run of trackio, on this machine; TRACKIO_DIR and so on apply."""

  def __init__(self, workdir: pathlib.Path, fields: Mapping[str, Any]):
    import trackio

    # Only a resumed run continues another run of the same name.
    path, name = workdir / "trackio.name", workdir.resolve().name
    resume = "allow" if path.exists() else "never"
    path.write_text(name)
    self._trackio = trackio
    self._run = trackio.init(
        project=PROJECT,
        name=name,
        config=dict(fields),
        resume=resume,
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Logs scalars."""
    self._run.log(metrics, step=step)

  def show(
      self, step: int, texts: dict[str, str], histograms: dict[str, np.ndarray]
  ) -> None:
    """Logs texts, in Markdown, and histograms."""
    values = {name: self._trackio.Markdown(x) for name, x in texts.items()}
    values |= {k: self._trackio.Histogram(x) for k, x in histograms.items()}
    self._run.log(values, step=step)

  def close(self) -> None:
    """Finishes the run."""
    self._run.finish()


class Function:
  """A function of (metrics, step) as a logger."""

  def __init__(self, function: Callable[[dict[str, float], int], Any]):
    self._function = function

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Calls the function."""
    self._function(metrics, step)

  def close(self) -> None:
    """Does nothing."""


def _is_scalar(x: Any) -> bool:
  return isinstance(x, bool | int | float | str)


# Name -> the class, and the package that the class needs.
NAMED: dict[str, tuple[Callable[..., Logger], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WandB, "wandb"),
    "trackio": (Trackio, "trackio"),
}


def names(text: str) -> list[str]:
  """'tensorboard, wandb' -> ['tensorboard', 'wandb']."""
  return [name.strip() for name in text.split(",") if name.strip()]


def check(text: str) -> None:
  """Checks config.log.loggers.

  Args:
    text: names of loggers, or `module:name` of the user, with commas.

  Raises:
    ValueError: a logger is unknown or not installed, with the remedy.
  """
  for name in names(text):
    if ":" in name:
      require_logger(functions.load(name))
    elif name not in NAMED:
      hint = errors.did_you_mean(name, NAMED)
      raise ValueError(
          f"{name!r} is no logger{hint or ';'} choose from"
          f" {', '.join(NAMED)}, or module:function of your own"
      )
    elif importlib.util.find_spec(NAMED[name][1]) is None:
      raise ValueError(
          f"{name!r} is not installed: pip install 'rl_reason[loggers]'"
      )


def require_logger(found: Any) -> None:
  """Checks that an object is a logger, a class of loggers or a function.

  Raises:
    ValueError: it is not.
  """
  if not (hasattr(found, "write") or callable(found)):
    raise ValueError(
        f"{found!r} is no logger: it needs write(step, metrics), or to be a"
        " function of (metrics, step)"
    )


def as_logger(found: Any) -> Logger:
  """The object itself, an instance of the class, or the wrapped function."""
  if isinstance(found, type):
    found = found()
  return found if hasattr(found, "write") else Function(found)


# --- writers -----------------------------------------------------------------


class Writer:
  """Feeds a logger from a thread.

  Args:
    name: of the logger, on the screen.
    make: makes the logger, in the thread.
    say: prints a line.
  """

  def __init__(
      self, name: str, make: Callable[[], Logger], say: Callable[[str], None]
  ):
    self._name, self._make, self._say = name, make, say
    self._queue: queue.Queue = queue.Queue(CAPACITY)
    self._dropped = False
    self._busy_since: float | None = None  # start of the current write
    self._thread = threading.Thread(
        target=self._work, name=f"logger {name}", daemon=True
    )
    self._thread.start()

  def put(self, method: str, *args: Any) -> None:
    """Queues a call of a method of the logger; never blocks."""
    if self._dropped:
      return
    since = self._busy_since
    if since is not None and time.monotonic() - since > PATIENCE:
      self._drop(f"one write has taken more than {PATIENCE:g} s")
      return
    try:
      self._queue.put_nowait((method, args))
    except queue.Full:
      self._drop(f"{CAPACITY} writes are waiting")

  def close(self) -> None:
    """Closes the logger, and waits for it for at most CLOSING seconds."""
    self.put("close")
    self._thread.join(0 if self._dropped else CLOSING)
    if self._thread.is_alive() and not self._dropped:
      self._drop(f"it has not finished within {CLOSING:g} s")

  def _drop(self, reason: str) -> None:
    self._dropped = True
    self._say(
        f"warning: the logger {self._name} is dropped from now on ({reason});"
        " metrics.jsonl has everything"
    )

  def _work(self) -> None:
    """The thread: makes the logger, and calls its methods until `close`."""
    method = ""
    try:
      self._busy_since = time.monotonic()
      logger = self._make()
      while not self._dropped and method != "close":
        self._busy_since = None
        method, args = self._queue.get()
        self._busy_since = time.monotonic()
        if function := getattr(logger, method, None):
          function(*args)
    except BaseException as e:  # any exception of a logger, even SystemExit
      if not self._dropped:
        self._drop(f"{type(e).__name__}: {errors.one_line(e)}")


def writers(
    text: str,
    objects: tuple[Any, ...],
    workdir: pathlib.Path,
    fields: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Writer]:
  """Starts all loggers of a run.

  Args:
    text: config.log.loggers.
    objects: further loggers, as objects or functions.
    workdir: of the run.
    fields: the flat config.
    say: prints a line.

  Raises:
    ValueError: an object is no logger.
  """
  factories: list[tuple[str, Callable[[], Logger]]] = []
  for name in names(text):
    if ":" in name:
      found = functools.partial(as_logger, functions.load(name))
    else:
      found = functools.partial(NAMED[name][0], workdir, fields)
    factories.append((name, found))
  for own in objects:
    require_logger(own)
    factories.append(("of the caller", functools.partial(as_logger, own)))
  return [Writer(name, make, say) for name, make in factories]
