"""Calls of a user's code in threads, with a time limit.

A thread that hangs cannot be ended. The threads are daemons, so that neither
the caller nor the exit of the run waits for a thread that hangs. After
`MOST_HANGING` such threads no further function is called.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from rl_reason.verifiers import progress

MOST_HANGING = 100  # calls beyond their time limit that have not ended


def event_loop() -> asyncio.AbstractEventLoop:
  """A running event loop in a daemon thread."""
  loop = asyncio.new_event_loop()

  def target():
    loop.run_forever()
    loop.close()  # its descriptors

  threading.Thread(target=target, daemon=True).start()
  return loop


class Threads:
  """Calls functions in threads, with a limit of concurrent calls and of time.

  Args:
    at_a_time: concurrent calls, not counting calls whose programs sleep in a
      sandbox.
    seconds: time limit of a call.

  Attributes:
    hanging: number of calls beyond their time limit that have not ended.
  """

  def __init__(self, at_a_time: int, seconds: float):
    self._free = asyncio.Semaphore(at_a_time)
    self._places = progress.Places(self._free.release)
    self._seconds, self.hanging = seconds, 0

  @property
  def full(self) -> bool:
    """Whether MOST_HANGING calls hang, so that no function is called."""
    return self.hanging >= MOST_HANGING

  async def call(self, function: Callable, *args) -> Any:
    """Returns the value of a function, and raises its exception.

    Raises:
      TimeoutError: the call took too long, or too many calls hang (see `full`).
    """
    await self._free.acquire()
    place = progress.Place(self._places)
    try:
      if self.full:
        raise TimeoutError
      future = _in_thread(place.lend, function, *args)
      await asyncio.wait([future], timeout=self._seconds)
      if not future.done():
        self.hanging += 1
        future.add_done_callback(self._ended)
        raise TimeoutError
    finally:
      place.leave()
    value, error = future.result()
    if error is None:
      return value
    if isinstance(error, Exception):
      raise error
    # SystemExit in the user's code must not end the run.
    raise RuntimeError(f"raised {type(error).__name__}") from error

  def _ended(self, _) -> None:
    self.hanging -= 1


def _in_thread(
    on_sleep: Callable[[], Any], function: Callable, *args
) -> asyncio.Future:
  """Calls a function in a daemon thread; the result is (value, error)."""
  loop = asyncio.get_running_loop()
  future = loop.create_future()

  def target():
    value = error = None
    progress.on_sleep.set(lambda: loop.call_soon_threadsafe(on_sleep))
    try:
      value = function(*args)
    except BaseException as e:
      error = e
    with contextlib.suppress(RuntimeError):  # the loop is closed
      loop.call_soon_threadsafe(future.set_result, (value, error))

  threading.Thread(target=target, daemon=True).start()
  return future
