"""A watchdog: a run that makes no progress says where it waits.

A device that hangs, a file system that does not answer or a deadlock leaves a
run that looks alive. After some seconds without progress the watchdog writes
the stacks of all threads; after some more it ends the run, if it may.
"""

import contextlib
import faulthandler
import os
import threading
import time

from rl_reason.base.errors import LOST
from rl_reason.monitoring.display import Display

COMPILING = 10  # times as long before stacks are written: compilers are slow


class Watchdog:
  """Watches the progress that a display shows, from a thread.

  Args:
    display: of the run.
    seconds: without progress before stacks are written, in compilations
      COMPILING times as many; 0: never.
    end: without progress before the run ends with exit code LOST; 0: never.
  """

  def __init__(self, display: Display, seconds: float, end: float):
    self._display, self._seconds, self._limit = display, seconds, end
    self._closed = threading.Event()
    if seconds or end:
      threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

  def close(self) -> None:
    """Ends the watch."""
    self._closed.set()

  def _watch(self) -> None:
    begin, said = time.monotonic(), 0.0
    smallest = min(x for x in (self._seconds, self._limit) if x)
    while not self._closed.wait(min(1.0, smallest / 4)):
      # Waits on an event, not by sleeping: the end of a run ends it at once.
      since = max(begin, self._display.progressed)
      waited = time.monotonic() - since
      where = self._display.where() or "outside of all stages"
      limit = self._seconds * (COMPILING if "compiling" in where else 1)
      # One warning for each standstill; compilation may take long.
      if self._seconds and waited > limit and said != since:
        said = since
        self._display.say(
            f"warning: no progress for {waited:.0f} s (log.stall_seconds), at:"
            f" {where}; the stacks of all threads are on standard error"
        )
        faulthandler.dump_traceback(file=2, all_threads=True)
      # The main thread may hang in a call that no exception interrupts.
      if self._limit and waited > self._limit:
        text = f"error: no progress for {waited:.0f} s (log.stall_ends), at:"
        text += f" {where}; the same command resumes the run\n"
        with contextlib.suppress(OSError):  # nobody may read it
          os.write(2, text.encode())
        os._exit(LOST)
