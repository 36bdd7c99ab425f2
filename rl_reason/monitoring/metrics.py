"""Logs of a run: metrics.jsonl, samples.jsonl, and loggers beside them.

Both JSONL files are append-only. A checkpoint records their sizes, and a
resumed run truncates them to it: each step appears once, however a run ended.
"""

import json
import math
import os
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np

from rl_reason.monitoring.loggers import Writer
from rl_reason.structs import RunError

FILES = ("metrics.jsonl", "samples.jsonl")


def number(x, digits: int = 9) -> float | int | None:
  """Returns a JSON number; 9 significant digits are enough for any float32."""
  x = float(x)
  if not math.isfinite(x):
    return None
  return (
      int(x) if x.is_integer() and abs(x) < 1e15 else float(f"{x:.{digits}g}")
  )


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file atomically and durably."""
  temporary = path.with_name(path.name + ".tmp")
  with temporary.open("w", encoding="utf-8") as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  temporary.replace(path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes a value as JSON, atomically and durably."""
  write_text(path, json.dumps(value, indent=1))


def read_jsonl(path: pathlib.Path) -> list[dict]:
  """Returns all complete lines of a file; [] if the file is missing.

  Raises:
    RunError: a line is not JSON.
  """
  if not path.exists():
    return []
  rows = []
  lines = path.read_text(errors="replace").split("\n")[:-1]
  for at, line in enumerate(lines, 1):
    try:
      rows.append(json.loads(line))
    except ValueError:
      raise RunError(
          f"{path}: line {at} is damaged; remove it, then --stage=report"
      ) from None
  return rows


class Clock:
  """Splits time into laps: every moment counts for exactly one name.

  Attributes:
    seconds: by name, since the last `take`.
  """

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._since = time.monotonic()

  def lap(self, name: str) -> None:
    """Adds the time since the last lap to `name`."""
    now = time.monotonic()
    self.seconds[name] = self.seconds.get(name, 0) + now - self._since
    self._since = now

  def skip(self) -> None:
    """Discards the time since the last lap."""
    self._since = time.monotonic()

  def take(self) -> dict[str, float]:
    """Returns the seconds by name and resets them."""
    out, self.seconds = self.seconds, {}
    return out


class Log:
  """Appends to the logs of a work directory; only process 0 writes.

  Args:
    workdir: of the run.
    writers: of `loggers.writers`; they get what metrics.jsonl gets.
  """

  def __init__(self, workdir: pathlib.Path, writers: Sequence[Writer] = ()):
    self._active = jax.process_index() == 0
    self._short: set[pathlib.Path] = set()  # files of which this was said
    self._paths = [workdir / name for name in FILES]
    self._writers = writers
    self._sizes = [0] * len(FILES)  # at the newest checkpoint
    if self._active:
      self._files = [p.open("a") for p in self._paths]

  def metrics(self, stage: str, step: int, values: dict) -> None:
    """Appends one line: {"stage", "step", then the values}."""
    values = {k: number(v) for k, v in values.items()}
    self._write(0, dict(stage=stage, step=step) | values)
    finite = {
        f"{stage}/{name}": x for name, x in values.items() if x is not None
    }
    for writer in self._writers:
      writer.put("write", step, finite)

  def lines(self) -> list[dict]:
    """The lines of metrics.jsonl so far."""
    return read_jsonl(self._paths[0])

  def samples(self, rows: list[dict]) -> None:
    """Appends one line per response."""
    for row in rows:
      self._write(1, row)

  def show(
      self,
      stage: str,
      step: int,
      texts: dict[str, str],
      histograms: dict[str, np.ndarray],
  ) -> None:
    """Passes texts and distributions to the loggers that show them.

    Args:
      stage: of the step.
      step: of the stage.
      texts: Markdown by name.
      histograms: values by name, of any shape; those not finite are left out.
    """
    finite = {k: x[np.isfinite(x)] for k, x in histograms.items()}
    for writer in self._writers:
      writer.put(
          "show",
          step,
          {f"{stage}/{k}": x for k, x in texts.items()},
          {f"{stage}/{k}": x for k, x in finite.items() if x.size},
      )

  def _write(self, index: int, line: dict) -> None:
    if self._active:
      self._files[index].write(json.dumps(line) + "\n")
      self._files[index].flush()

  def checkpoint_sizes(self) -> list[int]:
    """Flushes the files to the disk; returns and remembers their sizes."""
    if self._active:
      for f in self._files:
        f.flush()
        os.fsync(f.fileno())
      self._sizes = [p.stat().st_size for p in self._paths]
    return self._sizes

  def remember(self, sizes: list[int]) -> list[str]:
    """Remembers the sizes that a checkpoint recorded.

    Returns:
      what is to be said of files that are shorter, once of each.
    """
    self._sizes, said = sizes, []
    for index, path in enumerate(self._paths if self._active else []):
      found = path.stat().st_size
      if found < sizes[index] and path not in self._short:
        self._short.add(path)
        said.append(
            f"warning: {path} has {found} bytes, and a checkpoint noted"
            f" {sizes[index]}: it was cut or removed, and the report lacks"
            " those steps; the run goes on"
        )
        # The next line must not continue half a line.
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)
    return said

  def truncate(self) -> None:
    """Truncates the files to the newest checkpoint saved or restored so far."""
    if not self._active:
      return
    for path, size in zip(self._paths, self._sizes, strict=True):
      if path.stat().st_size > size:
        os.truncate(path, size)

  def close(self) -> None:
    """Closes the files and the loggers."""
    if self._active:
      for f in self._files:
        f.close()
    for writer in self._writers:
      writer.close()
