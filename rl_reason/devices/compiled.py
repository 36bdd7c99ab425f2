"""Ahead-of-time compilation: each program of a run compiles exactly once."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Protocol

# Serializes the dispatch of programs by several threads: collectives deadlock
# if devices receive them in different orders.
DISPATCH = threading.Lock()


class Display(Protocol):
  """Shows the user what compiles."""

  def say(self, text: str) -> None:
    """Prints a line."""

  def compiling(self, name: str) -> contextlib.AbstractContextManager:
    """Shows a program while it compiles."""

  def progress(self) -> None:
    """Notes that the device has got further work."""


class CompiledOnce:
  """A jit-ed function that compiles at its first call and never again.

  Later calls use the executable: arguments of another shape or dtype raise a
  TypeError, and of another sharding a ValueError, instead of silently compiling
  again in the training loop.

  Args:
    name: name of the function, for the user.
    fn: a jit-ed function.
    display: shows the compile time.
  """

  def __init__(self, name: str, fn, display: Display):
    self._name, self._fn, self._display = name, fn, display
    self._compiled: Any = None
    self._ahead: futures.Future | None = None

  def lower(self, *args) -> Any:
    """Lowers the function for arguments, which may be abstract."""
    return self._fn.lower(*args)

  def ahead(self, compile_it: Callable[[], Any]) -> None:
    """Begins to compile in another thread; the first call takes the result.

    If that fails, or is for other arguments, the run says so, and the first
    call compiles as it does without this method.

    Args:
      compile_it: () -> the function, compiled for abstract arguments.
    """
    pool = futures.ThreadPoolExecutor(1, "compile")
    self._ahead = pool.submit(compile_it)
    pool.shutdown(wait=False)

  def __call__(self, *args):
    """Calls the executable, with the interface of the function."""
    if self._compiled is None:
      return self._first_call(args)
    self._display.progress()
    with DISPATCH:
      return self._compiled(*args)

  def _first_call(self, args: tuple) -> Any:
    """Compiles the program, or takes what was compiled ahead; and calls it."""
    if self._ahead is not None:
      ahead, self._ahead = self._ahead, None
      with self._display.compiling(self._name):
        error = ahead.exception()
      if error is None:
        try:
          with DISPATCH:
            out = ahead.result()(*args)
          self._compiled = ahead.result()
          return out
        except (TypeError, ValueError) as e:  # refused before anything runs
          error = e
      self._display.say(f"{self._name} was not compiled ahead: {error}")
    start = time.monotonic()
    with self._display.compiling(self._name):
      self._compiled = self.lower(*args).compile()
    seconds = time.monotonic() - start
    self._display.say(f"compiled {self._name} in {seconds:.1f} s")
    with DISPATCH:
      return self._compiled(*args)
