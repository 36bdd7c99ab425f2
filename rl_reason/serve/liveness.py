"""Detects an engine that hangs, and ends a server that does not end itself."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from rl_reason.monitoring import stop_signals
from rl_reason.serve.engine import Closed, Engine, Full, Job

EVERY = 5.0  # seconds without a token after which the watchdog samples one


class Watchdog:
  """A thread that samples a token when the engine is idle, and reports hangs.

  A busy engine returns tokens anyway, so the watchdog adds no load to it.

  Args:
    engine: runs in another thread.
    seconds: time without a result after which the engine counts as hung.
    say: shows a line.
    every: see EVERY.
  """

  def __init__(
      self,
      engine: Engine,
      seconds: float,
      say: Callable[[str], None],
      every: float = EVERY,
  ):
    self._engine, self._seconds, self._say = engine, seconds, say
    self._every, self._asked, self._hangs = every, 0.0, False
    self._end = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()

  @property
  def silent(self) -> float:
    """Seconds since the engine last answered, if it hangs; else 0."""
    return self._silence() if self._hangs else 0.0

  def close(self) -> None:
    """Ends the thread, which may wait for the screen."""
    self._end.set()
    self._thread.join(1.0)

  def _silence(self) -> float:
    return time.monotonic() - self._engine.progressed

  def _watch(self) -> None:
    while not self._end.wait(min(self._every, self._seconds) / 4):
      silence = self._silence()
      if silence > self._every and self._asked <= self._engine.progressed:
        self._asked = time.monotonic()
        self._ask()
      waits = self._asked > self._engine.progressed
      hangs = waits and time.monotonic() - self._asked > self._seconds
      if hangs != self._hangs:
        self._hangs = hangs
        self._say(
            f"the engine has not sampled for {silence:.0f} seconds"
            " (serve.stall): /health answers 503 until it does; if it stays so,"
            " start the server again"
            if hangs
            else "the engine samples again: /health answers 200"
        )

  def _ask(self) -> None:
    prompt = self._engine.programs.eos[:1]
    job = Job(prompt, lambda *_: None, own=True)
    with contextlib.suppress(Full, Closed):  # then other jobs are waiting
      self._engine.submit([job])


@contextlib.contextmanager
def killed_after(stop: threading.Event, seconds: float) -> Iterator[None]:
  """Kills this process `seconds` after `stop` is set, if the block still runs.

  Its main thread may wait for a device, for the screen or for a function of the
  user for ever.
  """
  over = threading.Event()

  def watch():
    stop.wait()
    if not over.wait(seconds):
      stop_signals.say(
          f"error: the server has not ended {seconds:g} seconds after a signal:"
          " it is killed"
      )
      os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
  try:
    yield
  finally:
    over.set()
