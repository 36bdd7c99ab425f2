"""Threads for what would block the event loop.

The threads are daemons that nobody joins, whereas the interpreter waits at its
exit for those of `concurrent.futures`. Calls come from any event loop.
"""

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Threads:
  """Calls functions in at most `count` threads.

  Args:
    count: calls at a time; further calls wait.
    seconds: that a call may wait and take in all.
  """

  def __init__(self, count: int, seconds: float):
    self._count, self._seconds = count, seconds
    self._waiting: queue.SimpleQueue = queue.SimpleQueue()
    self._lock, self._begun = threading.Lock(), []

  async def call(self, function: Callable, *args) -> Any:
    """Returns the value of a function, and raises its exception.

    Raises:
      TimeoutError: the call has not ended in time.
    """
    future: concurrent.futures.Future = concurrent.futures.Future()
    self._waiting.put((future, function, args))
    with self._lock:
      if len(self._begun) < self._count:
        self._begun.append(None)
        number = len(self._begun) - 1
        thread = threading.Thread(target=self._run, args=(number,), daemon=True)
        thread.start()
    return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)

  @property
  def stuck(self) -> float:
    """Seconds for which all threads have been in the same calls; else 0."""
    begun = list(self._begun)
    if len(begun) < self._count or None in begun:
      return 0.0
    return time.monotonic() - max(begun)

  def _run(self, number: int) -> None:
    while True:
      future, function, args = self._waiting.get()
      if not future.set_running_or_notify_cancel():
        continue
      self._begun[number] = time.monotonic()
      try:
        future.set_result(function(*args))
      except Exception as e:
        future.set_exception(e)
      except BaseException as e:  # it would end the event loop that waits
        error = RuntimeError(f"{type(e).__name__}: {e}")
        error.__cause__ = e
        future.set_exception(error)
      finally:
        self._begun[number] = None
