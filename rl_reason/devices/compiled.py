"""Ahead-of-time compilation: each program of a run compiles exactly once."""

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

  def doing(self, text: str) -> None:
    """Shows what the main thread is doing."""


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
      self._display.doing(f"compiling {self._name}")
      if self._ahead is not None:
        ahead, self._ahead = self._ahead, None
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
      self._compiled = self.lower(*args).compile()
      seconds = time.monotonic() - start
      self._display.say(f"compiled {self._name} in {seconds:.1f} s")
    with DISPATCH:
      return self._compiled(*args)
