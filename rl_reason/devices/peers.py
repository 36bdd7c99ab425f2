"""Heartbeats between the processes of a run, to detect lost processes.

Each process increments a count in the key-value store of `jax.distributed`, and
watches the counts of the other processes. If a count stops, all other processes
end with a line that names the lost process, and with exit code LOST, after
which launchers restart the command. Without heartbeats, JAX aborts the
processes with a traceback: at once if process 0 is lost, otherwise after one to
two minutes.
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

from rl_reason.base.errors import LOST, ConfigError

BEAT = 1.0  # seconds between heartbeats
PATIENCE = 20.0  # seconds without a heartbeat after which a process is lost
CLOSING = 3.0  # seconds for a process to report the error that ended another
_KEYS = "rl_reason/peers"


class Peers:
  """Joins the processes of a run, and watches them from a thread.

  Args:
    coordinator: host:port of process 0; None: JAX detects all three.
    processes: number of processes.
    process: index of this process.
  """

  def __init__(
      self,
      coordinator: str | None = None,
      processes: int | None = None,
      process: int | None = None,
  ):
    # The handler of this service would replace the SIGTERM handler of
    # `run.stopping`.
    jax.config.update("jax_enable_preemption_service", False)
    from jax._src import distributed, xla_bridge  # no public API

    if xla_bridge.backends_are_initialized():
      raise ConfigError(
          "--distributed: a module that the config names computes arrays when"
          " it is imported, before the processes have met: move them into the"
          " function"
      )
    jax.distributed.initialize(coordinator, processes, process)

    state = distributed.global_state
    self._store: Any = state.client
    self._me, self._count = state.process_id, state.num_processes
    self._left = threading.Event()
    if self._me:
      self._catch_abort(state.coordinator_address or "")
    self._answered = time.monotonic()
    for watch in (self._watch, self._watch_store):
      threading.Thread(target=watch, name="peers", daemon=True).start()

  def leave(self, code: int) -> None:
    """Announces the end of this process; an error ends all processes.

    With the exit codes 0 and 143 all processes end by themselves.
    """
    self._left.set()
    time.sleep(0.1)  # for a heartbeat in progress
    self._tell(f"end {code}")
    if code in (0, 143):
      return
    if self._me == 0:
      time.sleep(CLOSING + 3 * BEAT)  # the store ends with this process
    os._exit(code)

  def blame(self) -> None:
    """Waits until the loss of a process is detected, which ends this one."""
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
            self._end(other, "has ended with an error", int(code))
        elif waited > PATIENCE:
          self._end(other, f"has sent no heartbeat for {PATIENCE:.0f} s")
      time.sleep(BEAT)

  def _watch_store(self) -> None:
    """Detects a stopped process 0, whose store then blocks all calls."""
    while not self._left.wait(BEAT):
      if time.monotonic() - self._answered > PATIENCE:
        self._end(0, f"has sent no heartbeat for {PATIENCE:.0f} s")

  def _end(self, other: int, why: str, code: int = LOST) -> None:
    text = f"error: process {other} of {self._count} {why}"
    if code == LOST:
      text += "; the same command resumes the run from its last checkpoint"
    with contextlib.suppress(OSError):  # nobody may read it
      os.write(2, f"{text}\n".encode())
    os._exit(code)

  def _catch_abort(self, coordinator: str) -> None:
    """Names process 0 if JAX aborts because the store is gone."""
    host, _, port = coordinator.rpartition(":")

    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def aborted(number: int) -> None:
      try:
        socket.create_connection((host.strip("[]"), int(port)), 2).close()
      except (OSError, ValueError):
        self._end(0, "is gone")
      libc.signal(number, None)  # any other reason: it aborts on return

    # A Python handler would run in the main thread, which may be blocked.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    libc.signal(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))
