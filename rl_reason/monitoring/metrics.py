"""Where numbers go: metrics.jsonl, samples.jsonl and TensorBoard.

Both JSONL files only grow. A checkpoint notes their sizes, and a resumed run
cuts them back to it: whatever was killed, each step is there once.
"""

import json
import math
import os
import pathlib
import time

import jax
import tensorboardX

from rl_reason.structs import RunError

FILES = ("metrics.jsonl", "samples.jsonl")


def number(x) -> float | int | None:
  """A JSON number of 9 significant digits (enough for any float32)."""
  x = float(x)
  if not math.isfinite(x):
    return None
  return int(x) if x.is_integer() and abs(x) < 1e15 else float(f"{x:.9g}")


def write_json(path: pathlib.Path, value) -> None:
  """Writes a whole file or nothing, and onto the disk."""
  temporary = path.with_name(path.name + ".tmp")
  with temporary.open("w") as f:
    json.dump(value, f, indent=1)
    f.flush()
    os.fsync(f.fileno())
  temporary.replace(path)


def read_jsonl(path: pathlib.Path) -> list[dict]:
  """All whole lines of a file; [] if there is none.

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
  """Cuts time into laps: every moment counts for one name, and only one.

  Attributes:
    seconds: by name, since the last `take`.
  """

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._since = time.monotonic()

  def lap(self, name: str) -> None:
    """What passed since the last lap counts for `name`."""
    now = time.monotonic()
    self.seconds[name] = self.seconds.get(name, 0) + now - self._since
    self._since = now

  def skip(self) -> None:
    """What passed since the last lap counts for nothing."""
    self._since = time.monotonic()

  def take(self) -> dict[str, float]:
    """All laps so far; they begin anew."""
    out, self.seconds = self.seconds, {}
    return out


class Log:
  """Appends to the files of a work directory; silent on processes but 0."""

  def __init__(self, workdir: pathlib.Path, tensorboard: bool):
    self._active = jax.process_index() == 0
    self._paths = [workdir / name for name in FILES]
    self._board = None
    self._sizes = [0] * len(FILES)  # at the newest checkpoint
    if self._active:
      self._files = [p.open("a") for p in self._paths]
      if tensorboard:
        self._board = tensorboardX.SummaryWriter(str(workdir / "tensorboard"))

  def metrics(self, stage: str, step: int, values: dict) -> None:
    """One line: {"stage", "step", then the values}."""
    values = {k: number(v) for k, v in values.items()}
    self._write(0, dict(stage=stage, step=step) | values)
    if self._board:
      for name, value in values.items():
        if value is not None:
          self._board.add_scalar(f"{stage}/{name}", value, step)

  def samples(self, rows: list[dict]) -> None:
    """One line a response."""
    for row in rows:
      self._write(1, row)

  def _write(self, index: int, line: dict) -> None:
    if self._active:
      self._files[index].write(json.dumps(line) + "\n")
      self._files[index].flush()

  def checkpoint_sizes(self) -> list[int]:
    """Bytes of each file, once on the disk; a resumed run is cut back to them.

    Remembers the sizes, as `remember` does.
    """
    if self._active:
      for f in self._files:
        f.flush()
        os.fsync(f.fileno())
      self._sizes = [p.stat().st_size for p in self._paths]
    return self._sizes

  def remember(self, sizes: list[int]) -> None:
    """Takes over the sizes that a checkpoint noted."""
    self._sizes = sizes

  def cut(self) -> None:
    """Cuts the files back to the newest checkpoint made or restored so far."""
    if not self._active:
      return
    for path, size in zip(self._paths, self._sizes, strict=True):
      if path.stat().st_size > size:
        os.truncate(path, size)

  def close(self) -> None:
    """Flushes and closes."""
    if self._active:
      for f in self._files:
        f.close()
      if self._board:
        self._board.close()
