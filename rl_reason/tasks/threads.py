"""Calls of a user's code in threads that can be abandoned.

A thread that hangs cannot be ended. It is a daemon here: neither its call nor
the exit of the run waits for it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable


def event_loop() -> asyncio.AbstractEventLoop:
  """A running event loop, in a thread that does not delay the exit."""
  loop = asyncio.new_event_loop()

  def target():
    loop.run_forever()
    loop.close()  # its descriptors

  threading.Thread(target=target, daemon=True).start()
  return loop


def in_thread(function: Callable, *args) -> asyncio.Future:
  """Calls a function in a thread that does not delay the exit."""
  loop = asyncio.get_running_loop()
  future = loop.create_future()

  def settle(value):
    if not future.done():  # it is, after the time-out
      future.set_result(value)

  def target():
    value = function(*args)
    with contextlib.suppress(RuntimeError):  # the run has ended meanwhile
      loop.call_soon_threadsafe(settle, value)

  threading.Thread(target=target, daemon=True).start()
  return future
