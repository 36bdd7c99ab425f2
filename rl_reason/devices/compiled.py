"""Ahead-of-time compilation: each program of a run compiles exactly once."""

import threading
import time
from typing import Any, Protocol

# Serializes the dispatch of programs by several threads: collectives deadlock
# if devices receive them in different orders.
DISPATCH = threading.Lock()


class Display(Protocol):
  """Shows the user what compiles."""

  def say(self, text: str) -> None:
    """Prints a line."""

  def doing(self, text: str) -> None:
    """Shows what the main thread is doing."""


class CompiledOnce:
  """A jit-ed function that compiles at its first call and never again.

  Later calls use the executable: arguments with another shape, dtype or
  sharding raise a TypeError instead of silently compiling again in the training
  loop.

  Args:
    name: name of the function, for the user.
    fn: a jit-ed function.
    display: shows the compile time.
  """

  def __init__(self, name: str, fn, display: Display):
    self._name, self._fn, self._display = name, fn, display
    self._compiled: Any = None

  def lower(self, *args) -> Any:
    """Lowers the function for arguments, which may be abstract."""
    return self._fn.lower(*args)

  def __call__(self, *args):
    """Calls the executable, with the interface of the function."""
    if self._compiled is None:
      self._display.doing(f"compiling {self._name}")
      start = time.monotonic()
      self._compiled = self.lower(*args).compile()
      seconds = time.monotonic() - start
      self._display.say(f"compiled {self._name} in {seconds:.1f} s")
    with DISPATCH:
      return self._compiled(*args)
