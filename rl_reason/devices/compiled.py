"""Ahead-of-time compilation: each program of a run is compiled exactly once."""

import threading
import time
from typing import Any, Protocol

# Programs of two threads enter the queues of all devices one after the other:
# collectives wait for ever for a device that was given them in another order.
DISPATCH = threading.Lock()


class Display(Protocol):
  """Where the user sees what is being compiled."""

  def say(self, text: str) -> None:
    """Prints a line."""

  def doing(self, text: str) -> None:
    """Shows what the main thread is busy with."""


class CompiledOnce:
  """A jit-ed function that is compiled at its first call and never again.

  The executable is kept instead of the function: arguments of another shape,
  dtype or sharding raise a TypeError instead of silently compiling again inside
  the training loop.

  Args:
    name: shown while the function compiles.
    fn: a jit-ed function.
    display: where the compile time is reported.
  """

  def __init__(self, name: str, fn, display: Display):
    self._name, self._fn, self._display = name, fn, display
    self._compiled: Any = None

  def lower(self, *args) -> Any:
    """The function for arguments of these shapes, which may be abstract."""
    return self._fn.lower(*args)

  def __call__(self, *args):
    """Calls the executable; takes and returns what the function does."""
    if self._compiled is None:
      self._display.doing(f"compiling {self._name}")
      start = time.monotonic()
      self._compiled = self.lower(*args).compile()
      seconds = time.monotonic() - start
      self._display.say(f"compiled {self._name} in {seconds:.1f} s")
    with DISPATCH:
      return self._compiled(*args)
