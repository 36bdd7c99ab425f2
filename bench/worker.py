"""The process of a system under measurement, which runs one turn at a time.

It uses the standard library only, since peers run in their own environments. A
job arrives as one line of JSON on stdin, followed by one line per turn; each
turn is answered by one line of JSON.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable


class Turns:
  """The worker's end of the connection.

  Attributes:
    job: the job of `harness.job`.
  """

  def __init__(self):
    self.job = json.loads(sys.stdin.readline())
    self._out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers

  def begin(self) -> bool:
    """Waits for a turn and starts the clock; False after the last turn."""
    if not sys.stdin.readline():
      return False
    self._start = time.perf_counter()
    return True

  def end(self, **measured) -> None:
    """Stops the clock and answers; the work must be complete."""
    seconds = time.perf_counter() - self._start
    answer = dict(seconds=seconds, peak_mib=peak_mib(), **measured)
    print(json.dumps(answer), file=self._out, flush=True)


def peak_mib() -> float:
  """Returns the peak resident memory of this process in MiB (Linux)."""
  with open("/proc/self/status") as f:
    return int(re.findall(r"VmHWM:\s*(\d+) kB", f.read())[0]) / 1024


def serve(tasks: dict[str, Callable[[Turns], None]]) -> None:
  """Runs the task of the job, which takes its turns itself."""
  turns = Turns()
  tasks[turns.job["task"]](turns)


def repeat(turns: Turns, step: Callable[[], dict]) -> None:
  """Calls `step` once per turn; it returns what it measured when it is done."""
  while turns.begin():
    turns.end(**step())


def fastest(run: Callable[[], object], times: int = 12) -> float:
  """Returns the minimum seconds of several calls, after one warm-up call."""
  run()
  out = []
  for _ in range(times):
    start = time.perf_counter()
    run()
    out.append(time.perf_counter() - start)
  return min(out)


def batches(rows: list, size: int) -> list[list]:
  """Splits rows into batches of `size`, in order."""
  return [rows[i : i + size] for i in range(0, len(rows), size)]
