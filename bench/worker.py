"""A system under measurement: one process that runs when it is told to.

The standard library only, since a peer runs it in an environment of its own.
A job comes as one line of JSON on stdin, then one line for each turn; for each
turn one line of JSON goes back.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable


class Turns:
  """The worker's end of the pipe.

  Attributes:
    job: what to run, as `harness.job` makes it.
  """

  def __init__(self):
    self.job = json.loads(sys.stdin.readline())
    self._out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers

  def begin(self) -> bool:
    """Waits for a turn, then starts the clock; False: there are no more."""
    if not sys.stdin.readline():
      return False
    self._began = time.perf_counter()
    return True

  def end(self, **facts) -> None:
    """Stops the clock and answers; the work must be done, not under way."""
    seconds = time.perf_counter() - self._began
    answer = dict(seconds=seconds, peak_mib=peak_mib(), **facts)
    print(json.dumps(answer), file=self._out, flush=True)


def peak_mib() -> float:
  """The most memory that this process ever had resident, MiB (Linux)."""
  with open("/proc/self/status") as f:
    return int(re.findall(r"VmHWM:\s*(\d+) kB", f.read())[0]) / 1024


def serve(tasks: dict[str, Callable[[Turns], None]]) -> None:
  """Runs the job's task; a task takes its turns itself, trainers included."""
  turns = Turns()
  tasks[turns.job["task"]](turns)


def repeat(turns: Turns, step: Callable[[], dict]) -> None:
  """A turn is a call of `step`, which returns facts once all is done."""
  while turns.begin():
    turns.end(**step())


def fastest(run: Callable[[], object], times: int = 12) -> float:
  """Seconds of the quickest of some calls, after one that does not count."""
  run()
  out = []
  for _ in range(times):
    began = time.perf_counter()
    run()
    out.append(time.perf_counter() - began)
  return min(out)


def batches(rows: list, size: int) -> list[list]:
  """Rows in their order, `size` at a time."""
  return [rows[i : i + size] for i in range(0, len(rows), size)]
