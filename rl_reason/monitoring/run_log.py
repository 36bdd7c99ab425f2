"""Logs of a run: metrics.jsonl, samples.jsonl, starts.jsonl, and loggers.

The files are append-only. A checkpoint notes the sizes and hashes of the first
two, and a resumed run truncates them to these sizes: each step appears once,
however a run ended. A file that differs from its note is never truncated.
"""

import datetime
import hashlib
import json
import math
import os
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl_reason.base import own_code
from rl_reason.base.errors import RunError
from rl_reason.base.json_files import damage_named, number, read_jsonl
from rl_reason.monitoring.loggers import Writer

FILES = ("metrics.jsonl", "samples.jsonl")
DOUBTFUL = "doubtful"  # "stage" of rejected responses that may be correct
# Prefixes of metrics that earlier versions wrote, and the present prefixes.
OLD_NAMES = {"alarm/": "alert/", "sign/": "health/"}
Noted = tuple[int, str]  # size in bytes and SHA-256 ('': unknown) of a file


def read_metrics(workdir: pathlib.Path) -> list[dict]:
  """The lines of metrics.jsonl, for each step of a stage the newest.

  A file can have a step twice if it was edited, since a resumed run does not
  truncate an edited file. Lines of a step without a common metric are all kept,
  such as the loss and then the accuracy of the last step of SFT.

  Args:
    workdir: of the run.

  Raises:
    RunError: a line is not JSON, or no line of metrics.
  """
  path = workdir / FILES[0]
  names: dict[tuple, set[str]] = {}  # of metrics in later lines of the step
  out = []
  rows = read_jsonl(path)
  for at, logged in reversed([*enumerate(rows, 1)]):
    if why := _fault(logged):
      raise RunError(
          f"{path}: line {at} is damaged: {why}; remove it, then --stage=report"
      )
    line = current_names(logged)
    own = line.keys() - {"stage", "step"}
    later = names.setdefault((line.get("stage"), line.get("step")), set())
    if later.isdisjoint(own):
      out.append(line)
    later |= own
  return out[::-1]


def _fault(line: Mapping[str, Any]) -> str:
  """Why a line is none that `Log.metrics` writes; '' if it is one."""
  stage, step = line.get("stage"), line.get("step")
  if not isinstance(stage, str) or type(step) is not int:
    return "it has no stage, or no step"
  for name, x in line.items():
    if name == "stage" or x is None:
      continue
    if not isinstance(x, int | float) or not math.isfinite(x):
      return f"{name} = {x!r} is no number"
  return ""


def current_names(values: dict[str, Any]) -> dict[str, Any]:
  """Metrics that an earlier version wrote, by their present names."""
  for before, now in OLD_NAMES.items():
    values = {
        now + k.removeprefix(before) if k.startswith(before) else k: x
        for k, x in values.items()
    }
  return values


class _File:
  """An append-only file, and what a checkpoint noted about it."""

  def __init__(self, path: pathlib.Path):
    self.path, self.noted, self.differs = path, 0, False
    self.open()

  def open(self) -> None:
    """Opens the file; the next note hashes it from the beginning."""
    self.file = self.path.open("a")
    self._forget()

  def _forget(self) -> None:
    self._hash, self._hashed = hashlib.sha256(), 0

  def _digest(self, size: int) -> str:
    """The hash of the first `size` bytes; reads only new bytes."""
    if size < self._hashed:
      self._forget()
    with self.path.open("rb") as f:
      f.seek(self._hashed)
      while self._hashed < size and (
          block := f.read(min(1 << 20, size - self._hashed))
      ):
        self._hash.update(block)
        self._hashed += len(block)
    return self._hash.hexdigest()

  def is_gone(self) -> bool:
    """Whether the path now names another file, or none."""
    try:
      return not os.path.samestat(
          self.path.stat(), os.fstat(self.file.fileno())
      )
    except FileNotFoundError:
      return True

  def note(self) -> Noted:
    """Writes the file to disk; returns its size and its hash."""
    self.file.flush()
    os.fsync(self.file.fileno())
    self.noted, self.differs = self.path.stat().st_size, False
    return self.noted, self._digest(self.noted)

  def compare(self, size: int, digest: str) -> str:
    """Remembers the note of a checkpoint; returns how the file differs."""
    found, self.noted = self.path.stat().st_size, size
    self.differs, why = True, ""
    if found < size:
      why = f"it has {found} bytes: it was cut or removed"
    elif digest and self._digest(size) != digest:
      why = "its lines differ: it was edited"
    else:
      self.differs = False
    return why

  def truncate(self) -> None:
    """Truncates the file to the note, or an edited one to whole lines."""
    size = self.noted
    if self.differs:
      size = self.path.read_bytes().rfind(b"\n") + 1
      self._forget()
    if self.path.stat().st_size > size:
      os.truncate(self.path, size)


class Log:
  """The logs of a work directory; only process 0 writes.

  Args:
    workdir: of the run.
    writers: of `loggers.writers`; they receive the metrics, too.
    say: prints a line about files that were edited.
  """

  def __init__(
      self,
      workdir: pathlib.Path,
      writers: Sequence[Writer] = (),
      say: Callable[[str], None] = print,
  ):
    self._writers, self._say = writers, say
    self._said: set[str] = set()  # files that were reported
    self._workdir = workdir
    first = jax.process_index() == 0
    self._files = [_File(workdir / name) for name in FILES if first]

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
    return read_metrics(self._workdir)

  def samples(self, rows: list[dict]) -> None:
    """Appends a line for each response."""
    for row in rows:
      self._write(1, row)

  def show(
      self,
      stage: str,
      step: int,
      texts: dict[str, str],
      histograms: dict[str, np.ndarray],
  ) -> None:
    """Passes texts and distributions to the loggers that can show them.

    Texts are Markdown by name. Histograms are values by name, of any shape;
    only finite ones are passed.
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
    if self._files:
      file = self._files[index].file
      file.write(json.dumps(line) + "\n")
      file.flush()

  def note(self) -> dict[str, Noted]:
    """Writes the files to disk; returns and remembers their notes."""
    for file in self._files:
      if file.is_gone():
        self._say(
            f"warning: {file.path} was removed or replaced during the run; the"
            " next lines are appended to the present file"
        )
        file.file.close()
        file.open()
    return {file.path.name: file.note() for file in self._files}

  def remember(self, noted: Mapping[str, Sequence]) -> None:
    """Remembers the notes of a checkpoint, and reports files that differ."""
    for file in self._files:
      why = file.compare(*noted[file.path.name])
      if why and file.path.name not in self._said:
        self._said.add(file.path.name)
        self._say(
            f"warning: {file.path} differs from the note of its checkpoint"
            f" ({file.noted} bytes): {why}. The file is not truncated, the"
            " report shows its lines (of a step that it has twice, the newest),"
            " and the run continues"
        )

  def truncate(self) -> None:
    """Truncates the files to the newest note, and what loggers can cut."""
    for file in self._files:
      file.truncate()
    last: dict[str, int] = {}  # step that is left of each stage
    path = self._workdir / FILES[0]
    for line in read_jsonl(path) if self._files else ():
      if _fault(line):
        continue  # of an edited file, which the user is told
      last[line["stage"]] = max(line["step"], last.get(line["stage"], 0))
    for writer in self._writers:
      writer.put("cut", last)

  def close(self) -> None:
    """Closes the files and the loggers."""
    for file in self._files:
      file.file.close()
    for writer in self._writers:
      writer.close()


def record_start(workdir: pathlib.Path) -> list[str]:
  """Appends the command, the date and the user's code to WORKDIR/starts.jsonl.

  Returns:
    Names of the user's modules whose files have changed since the start before.
  """
  earlier = starts(workdir)
  before = earlier[-1].get("own_code", {}) if earlier else {}
  now_by_module = own_code.digests()
  now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
  words = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
  if words[0] == "main.py":
    words[:1] = ["python", "-m", "rl_reason.main"]
  with (workdir / "starts.jsonl").open("a", encoding="utf-8") as file:
    line = dict(command=shlex.join(words), date=now, own_code=now_by_module)
    file.write(json.dumps(line) + "\n")
  return sorted(
      name
      for name, digest in now_by_module.items()
      if name in before and before[name] != digest
  )


def starts(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """What `record_start` wrote of each start of a run, in order."""
  path = workdir / "starts.jsonl"
  rows = read_jsonl(path)
  with damage_named(path):
    for row in rows:
      kinds = {"command": str, "date": str} | dict.fromkeys(
          {"own_code"} & row.keys(), dict
      )
      if wrong := [k for k, x in kinds.items() if not isinstance(row[k], x)]:
        raise TypeError(f"{wrong[0]} = {row[wrong[0]]!r}")
  return rows
