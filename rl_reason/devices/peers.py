"""The other processes of a run: none is lost in silence, none waits for ever.

Each process counts up in the key-value store of `jax.distributed`, and watches
the counts of the others. Once one stands still, all others end with one line
that names it and with exit code LOST, which launchers answer by the same
command again. Without this, JAX aborts them with a traceback: those that lost
process 0 at once, the others after one to two minutes.
"""

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from typing import Any

import jax

from rl_reason.base.errors import LOST

BEAT = 1.0  # seconds from count to count
PATIENCE = 20.0  # seconds without a count, after which a process is lost
CLOSING = 3.0  # seconds that processes have for the mistake that ended another
_KEYS = "rl_reason/peers"


class Peers:
  """Joins the processes of a run, and watches them from a thread.

  Args:
    coordinator: host:port of process 0; None: found by JAX, as the rest.
    processes: number of processes.
    process: index of this process.
  """

  def __init__(
      self,
      coordinator: str | None = None,
      processes: int | None = None,
      process: int | None = None,
  ):
    # Its handler would take SIGTERM away from `run.stopping`.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(coordinator, processes, process)
    from jax._src import distributed  # the store has no other door

    state = distributed.global_state
    self._store: Any = state.client
    self._me, self._count = (
        state.process_id,
        state.num_processes,
    )
    self._left = threading.Event()
    if self._me:
      self._catch_abort(state.coordinator_address or "")
    self._answered = time.monotonic()
    for watch in (self._watch, self._watch_store):
      threading.Thread(target=watch, name="peers", daemon=True).start()

  def leave(self, code: int) -> None:
    """Ends this process's part in the run: with an error, of all processes.

    Args:
      code: the exit code; 0 and 143 are those of all processes.
    """
    self._left.set()
    time.sleep(0.1)  # a count under way
    self._tell(f"end {code}")
    if code in (0, 143):
      return
    if self._me == 0:
      time.sleep(CLOSING + 3 * BEAT)  # the store ends with this process
    os._exit(code)

  def blame(self) -> None:
    """Waits for the verdict on a lost process, which ends this one, too."""
    time.sleep(PATIENCE + 3 * BEAT)

  def _tell(self, text: str) -> None:
    self._store.key_value_set(f"{_KEYS}/{self._me}", text, allow_overwrite=True)

  def _watch(self) -> None:
    others = [x for x in range(self._count) if x != self._me]
    counts: dict[int, Any] = dict.fromkeys(others)
    seen = dict.fromkeys(others, time.monotonic())
    beat = 0
    while True:
      beat += 1
      try:
        if not self._left.is_set():
          self._tell(str(beat))
        found = dict(self._store.key_value_dir_get(_KEYS))
        self._answered = answered = time.monotonic()
      except Exception:  # see `_watch_store`
        time.sleep(BEAT)
        continue
      for other in others:
        text = found.get(f"{_KEYS}/{other}")
        if text != counts[other]:
          counts[other], seen[other] = text, answered
        word, _, code = (text or "").partition(" ")
        waited = answered - seen[other]
        if word == "end":
          if code not in ("0", "143") and waited > CLOSING:
            self._end(other, "has ended with an error of its own", int(code))
        elif waited > PATIENCE:
          self._end(other, f"gives no sign of life for {PATIENCE:.0f} s")
      time.sleep(BEAT)

  def _watch_store(self) -> None:
    """The store is in process 0; if that is stopped, calls wait for ever."""
    while not self._left.wait(BEAT):
      if time.monotonic() - self._answered > PATIENCE:
        self._end(0, f"gives no sign of life for {PATIENCE:.0f} s")

  def _end(self, other: int, why: str, code: int = LOST) -> None:
    text = f"error: process {other} of {self._count} {why}"
    if code == LOST:
      text += "; the same command resumes the run from its last checkpoint"
    with contextlib.suppress(OSError):  # nobody may read it
      os.write(2, f"{text}\n".encode())
    os._exit(code)

  def _catch_abort(self, coordinator: str) -> None:
    """Names process 0 where JAX aborts because its store is gone."""
    host, _, port = coordinator.rpartition(":")

    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def aborted(number: int) -> None:
      try:
        socket.create_connection((host.strip("[]"), int(port)), 2).close()
      except (OSError, ValueError):
        self._end(0, "is gone")
      libc.signal(number, None)  # any other reason: it aborts on return

    # A handler of Python would run in the main thread, which may wait for ever.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    libc.signal(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))
