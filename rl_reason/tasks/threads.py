"""Calls of a user's code in threads that can be abandoned.

A thread that hangs cannot be ended. It is a daemon here: neither its call nor
the exit of the run waits for it. Such threads are counted, and after
`MOST_HANGING` of them nothing more is called.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from rl_reason.verifiers import progress

MOST_HANGING = 100  # calls that were late and have not ended since


def event_loop() -> asyncio.AbstractEventLoop:
  """A running event loop, in a thread that does not delay the exit."""
  loop = asyncio.new_event_loop()

  def target():
    loop.run_forever()
    loop.close()  # its descriptors

  threading.Thread(target=target, daemon=True).start()
  return loop


class Threads:
  """Calls functions in threads, some at a time, each for a limited time.

  Args:
    at_a_time: calls; calls whose programs sleep in a sandbox do not count.
    seconds: time-out of a call.

  Attributes:
    hanging: number of calls that were late and have not ended since.
  """

  def __init__(self, at_a_time: int, seconds: float):
    self._free = asyncio.Semaphore(at_a_time)
    self._places = progress.Places(self._free.release)
    self._seconds, self.hanging = seconds, 0

  @property
  def full(self) -> bool:
    """Whether MOST_HANGING calls hang, and nothing more is called."""
    return self.hanging >= MOST_HANGING

  async def call(self, function: Callable, *args) -> Any:
    """The value of a function, which may raise anything; runs in a loop.

    Raises:
      TimeoutError: it took too long, or is not called at all (see `full`).
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
    # An exit of the user's code does not end the run.
    raise RuntimeError(f"raised {type(error).__name__}") from error

  def _ended(self, _) -> None:
    self.hanging -= 1


def _in_thread(
    on_sleep: Callable[[], Any], function: Callable, *args
) -> asyncio.Future:
  """(value, error) of a function, in a thread that does not delay the exit."""
  loop = asyncio.get_running_loop()
  future = loop.create_future()

  def target():
    value = error = None
    progress.on_sleep.set(lambda: loop.call_soon_threadsafe(on_sleep))
    try:
      value = function(*args)
    except BaseException as e:
      error = e
    with contextlib.suppress(RuntimeError):  # the run has ended meanwhile
      loop.call_soon_threadsafe(future.set_result, (value, error))

  threading.Thread(target=target, daemon=True).start()
  return future
