"""A watchdog: shows where a run hangs, and can end it.

With a device that hangs, a file system that does not answer or a deadlock, a
run looks alive. After some seconds without progress the watchdog writes the
stacks of all threads; after more seconds it can end the run.
"""

import contextlib
import faulthandler
import os
import threading
import time

from rl_reason.base.errors import LOST
from rl_reason.monitoring.display import Display

WORKING = 10  # factor of the seconds while the process compiles or computes
IDLE = 0.2  # of a core: a process that uses less waits for something else


class Watchdog:
  """Watches the progress of a display from a thread.

  Args:
    display: of the run.
    seconds: without progress until stacks are written, multiplied by WORKING
      during compilation and while the process computes, because a program of a
      CPU may take minutes and shows no progress in between; 0: never.
    end: seconds without progress until the run ends with exit code LOST; 0:
      never.
  """

  def __init__(self, display: Display, seconds: float, end: float):
    self._display, self._seconds, self._limit = display, seconds, end
    self._closed = threading.Event()
    if seconds or end:
      threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

  def close(self) -> None:
    """Stops watching."""
    self._closed.set()

  def _watch(self) -> None:
    begin, said, last, computed = time.monotonic(), 0.0, 0.0, 0.0
    smallest = min(x for x in (self._seconds, self._limit) if x)
    while not self._closed.wait(min(1.0, smallest / 4)):
      # Waiting on an event, unlike sleeping, ends at once with the run.
      since = max(begin, self._display.progressed)
      if since != last:
        last, computed = since, time.process_time()
      waited = time.monotonic() - since
      where = self._display.where() or "outside of all stages"
      computes = time.process_time() - computed > IDLE * waited
      works = self._display.compiles or computes
      limit = self._seconds * (WORKING if works else 1)
      # One warning for each standstill.
      if self._seconds and waited > limit and said != since:
        said = since
        self._display.say(
            f"warning: no progress for {waited:.0f} s (log.stall_seconds), at:"
            f" {where}; the stacks of all threads are on standard error"
        )
        faulthandler.dump_traceback(file=2, all_threads=True)
      # The main thread may hang in a call that no exception can interrupt.
      if self._limit and waited > self._limit:
        text = f"error: no progress for {waited:.0f} s (log.stall_ends), at:"
        text += f" {where}; the same command resumes the run\n"
        with contextlib.suppress(OSError):  # standard error may be closed
          os.write(2, text.encode())
        os._exit(LOST)
