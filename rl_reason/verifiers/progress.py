"""Progress of other processes, from /proc: CPU time, sleep, descendants."""

import contextlib
import contextvars
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

PAYS = 4.0  # seconds of sleep that are allowed for each second of CPU time
# Limit of the total sleep: this multiple of the idle limit, plus this number of
# seconds for each second of CPU time.
IN_ALL, IN_ALL_PER_SECOND = 3.0, 0.25
SAID = 0.2  # seconds of sleep after which `on_sleep` is called
ASLEEP = 32  # calls at a time that have lent their places, see `Places`

# Called once for each program that sleeps. Its processor is free meanwhile, so
# another program may start.
on_sleep: contextvars.ContextVar[Callable[[], None]] = contextvars.ContextVar(
    "on_sleep", default=lambda: None
)


class Places:
  """Limits how many calls run at a time; a call that sleeps lends its place.

  A program that sleeps takes no processor, and a batch of such programs would
  otherwise take as long as the sum of their sleeps.

  Args:
    release: releases the semaphore that each call acquires first.
  """

  def __init__(self, release: Callable[[], None]):
    self.release, self.lock, self.asleep = release, threading.Lock(), 0


class Place:
  """The place of one call among `Places`."""

  def __init__(self, places: Places):
    self._places = places
    self._lent = self._left = False

  def lend(self) -> bool:
    """Lets another call start; False if ASLEEP calls have lent their places."""
    with self._places.lock:
      if self._lent or self._left or self._places.asleep >= ASLEEP:
        return False
      self._lent = True
      self._places.asleep += 1
    self._places.release()
    return True

  def leave(self) -> None:
    """Ends the call."""
    with self._places.lock:
      self._left = True
      self._places.asleep -= self._lent
    if not self._lent:
      self._places.release()


def _tasks(pid: int) -> Iterator[pathlib.Path]:
  """The threads of a process in /proc; none once it has ended."""
  with contextlib.suppress(OSError):
    yield from pathlib.Path(f"/proc/{pid}/task").iterdir()


def _threads(pid: int) -> Iterator[tuple[str, float, float]]:
  """State, CPU time and queueing time of all threads of a process tree."""
  for task in (t for p in (pid, *descendants(pid)) for t in _tasks(p)):
    with contextlib.suppress(OSError):  # it has ended
      state, computed = _stat(task)
      queued = 0.0
      with contextlib.suppress(OSError):  # a kernel without these counts
        queued = int((task / "schedstat").read_text().split()[1]) / 1e9
      yield state, computed, queued


def cpu_seconds(pid: int) -> float:
  """CPU time of a process without its children; 0 if it cannot be read."""
  try:
    return _stat(pathlib.Path(f"/proc/{pid}"))[1]
  except OSError:
    return 0.0


def _stat(task: pathlib.Path) -> tuple[str, float]:
  """State and CPU time in seconds of a process or thread."""
  stat = (task / "stat").read_text().rpartition(")")[2].split()
  return stat[0], sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
  """The ids of all descendants of a process."""
  out = []
  for task in _tasks(pid):
    with contextlib.suppress(OSError):
      for child in (task / "children").read_text().split():
        out += [int(child), *descendants(int(child))]
  return out


class Progress:
  """Watches processes that work together, such as a program and its tests.

  Args:
    pids: ids of the processes; their descendants are watched as well.
    idle: seconds of sleep after which the processes are late.
    wall: seconds of wall-clock time after which they are late.
    pays: seconds of earlier sleep that one second of CPU time compensates.
    in_all: whether the total sleep, compensated or not, is limited as well.

  Attributes:
    idle: whether the processes are late because of sleep.
  """

  POLL = 0.05  # seconds between two calls of `late`

  def __init__(
      self, pids: list[int], idle: float, wall: float, *, pays=PAYS, in_all=True
  ):
    self._pids, self._limit, self._pays = pids, idle, pays
    self._in_all = in_all
    self._computed = self._queued = self._slept = self._slept_in_all = 0.0
    self._seen = time.monotonic()
    self._deadline = self._seen + wall
    self._said = self.idle = False

  def late(self) -> bool:
    """Whether the processes exceed a limit; has to be polled."""
    now = time.monotonic()
    threads = [thread for pid in self._pids for thread in _threads(pid)]
    states = {state for state, _, _ in threads}
    # A thread that waits for a processor (R) is not asleep, and the kernel
    # counts the wait only afterwards. A wait for a disk (D) is not sleep
    # either.
    if "D" in states:
      self._seen = now
    elif threads and states.isdisjoint("R"):
      computed = sum(seconds for _, seconds, _ in threads)
      queued = sum(seconds for _, _, seconds in threads)
      work = max(0.0, computed - self._computed)
      waited = max(0.0, queued - self._queued)
      asleep = now - self._seen - waited - work
      self._slept = max(0.0, self._slept + asleep - work * self._pays)
      self._slept_in_all += max(0.0, asleep)
      self._seen, self._computed, self._queued = now, computed, queued
    if self._slept > SAID and not self._said:
      self._said = True
      on_sleep.get()()
    self.idle = self._slept > self._limit
    if self._in_all:
      most = IN_ALL * self._limit + IN_ALL_PER_SECOND * self._computed
      self.idle |= self._slept_in_all > most
    return self.idle or now > self._deadline
