"""Worker processes that verify items one by one.

A verifier runs on text that a model wrote, so it may not return, exhaust the
memory, or crash its process. In a pool such an item is reported as failed, and
its process is replaced.

Time is CPU time, counted by the kernel, so that a loaded machine changes no
verdict. A worker that waits, or is stopped, may do so for the same number of
seconds. The parent process watches both limits as well, so that no signal
handler of a verifier matters, and processes that a worker has started end with
it. Workers are fresh interpreters, since JAX's threads forbid fork, and a
script that imports JAX should not be imported again. They reply in JSON, so
that no reply is executed.
"""

import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import importlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rl_reason.verifiers import progress

MAX_REPLY = 1 << 20  # bytes; a worker with a longer reply has failed
NAP = 2.0  # seconds without CPU time that each item may take at least


class Outcome(NamedTuple):
  """The outcome of one item.

  Attributes:
    value: the result of the function, after JSON; None if it failed.
    failure: None, 'time', 'memory', 'crash', or 'error: ...'.
  """

  value: Any
  failure: str | None


class Pool:
  """Worker processes that apply one function to items, in the background.

    with Pool("rl_reason.verifiers.math:verify", workers=4) as pool:
      pending = pool.submit([(text, reference), ...])
      ...  # generate the next batch
      outcomes = pool.results(pending)

  Attributes:
    failures: number of failed items so far, by kind.
  """

  def __init__(
      self,
      function_path: str,
      workers: int = 1,
      seconds: float = 10.0,
      *,
      wall_seconds: float | None = None,
      megabytes: int = 2048,
      max_reply: int = MAX_REPLY,
  ):
    """Checks the function; workers start when the first items are submitted.

    Args:
      function_path: 'package.module:function', applied as function(*item).
        Arguments and results must fit into JSON.
      workers: items at a time, each in a process of its own, not counting up to
        `progress.ASLEEP` items whose programs sleep.
      seconds: CPU time of one item, including imports of the function; also the
        longest wait without CPU time, if more than NAP.
      wall_seconds: wall-clock time of one item; 10 * seconds + 60 if None.
      megabytes: address space of a worker.
      max_reply: bytes of the JSON of a result.

    Raises:
      ValueError: the path names no function, or a limit is not positive.
    """
    module, _, name = function_path.partition(":")
    try:
      found = callable(getattr(importlib.import_module(module), name, None))
    except (ImportError, ValueError):
      found = False
    if not found:
      raise ValueError(
          f"function_path = {function_path!r} names no function;"
          " write 'package.module:function'"
      )
    if workers < 1 or seconds <= 0 or megabytes <= 0:
      raise ValueError(
          f"workers = {workers}, seconds = {seconds}, megabytes = {megabytes}:"
          " each must be positive"
      )
    self.failures: collections.Counter[str] = collections.Counter()
    self._wall = 10 * seconds + 60 if wall_seconds is None else wall_seconds
    self._seconds, self._max_reply = seconds, max_reply
    self._start = json.dumps([function_path, seconds, self._wall, megabytes])
    self._workers, self._threads = workers, []
    self._free = threading.Semaphore(workers)
    self._places = progress.Places(self._free.release)
    self._waiting: queue.SimpleQueue = queue.SimpleQueue()
    self._lock, self._live, self._closed = threading.Lock(), set(), False

  def __enter__(self) -> "Pool":
    return self

  def __exit__(self, *_):
    self.close()

  def submit(self, items: Iterable[tuple]) -> list[concurrent.futures.Future]:
    """Starts to verify items and returns immediately.

    Raises:
      RuntimeError: the pool is closed.
    """
    if self._closed:
      raise RuntimeError("the pool is closed; make another one")
    pending = []
    for item in items:
      future: concurrent.futures.Future = concurrent.futures.Future()
      pending.append(future)
      self._waiting.put((json.dumps(item), future))
    for _ in range(min(self._workers, len(pending)) - len(self._threads)):
      self._start_thread()
    return pending

  def _start_thread(self) -> None:
    self._threads.append(threading.Thread(target=self._run, daemon=True))
    self._threads[-1].start()

  def results(self, pending: list[concurrent.futures.Future]) -> list[Outcome]:
    """Waits for the outcomes of submitted items, in their order."""
    return [future.result() for future in pending]

  def close(self):
    """Kills all workers and cancels waiting items."""
    with self._lock:
      self._closed = True
      for worker in self._live:
        worker.kill()
    while True:
      try:
        self._waiting.get_nowait()[1].cancel()
      except queue.Empty:
        break
    for _ in self._threads:
      self._waiting.put(None)
    for thread in self._threads:
      thread.join()

  def _run(self):
    """Verifies waiting items in one thread, with one worker at a time."""
    worker = None
    while True:
      self._free.acquire()
      place = progress.Place(self._places)
      task = self._waiting.get()
      if task is None:
        place.leave()
        break
      item, future = task
      if future.set_running_or_notify_cancel():
        try:
          worker = worker or self._begin()
          lend = functools.partial(self._lend, place)
          outcome = worker.ask(item, self._seconds, self._wall, lend)
        except Exception as e:  # no process can start: only this item fails
          outcome = Outcome(None, f"error: {e!r}")
        if outcome.failure:
          worker = worker and self._end(worker)
          with self._lock:
            self.failures[outcome.failure.partition(":")[0]] += 1
        future.set_result(outcome)
      place.leave()
    if worker:
      self._end(worker)

  def _lend(self, place: progress.Place) -> None:
    """Lets another item begin while the program of this item sleeps."""
    if place.lend():
      with self._lock:
        most = self._workers + self._places.asleep
        if len(self._threads) < most and not self._closed:
          self._start_thread()

  def _begin(self) -> "_Worker":
    with self._lock:  # `close` kills all workers in `_live`
      if self._closed:
        raise RuntimeError("the pool is closed")
      worker = _Worker(self._start, self._max_reply)
      self._live.add(worker)
    return worker

  def _end(self, worker) -> None:
    with self._lock:
      self._live.discard(worker)
    worker.kill()
    worker.process.wait()
    worker.socket.close()


def interpreter(code: str, descriptor: int) -> subprocess.Popen:
  """Starts a fresh interpreter with the same `sys.path`, which runs `code`.

  It inherits the file descriptor.
  """
  return subprocess.Popen(
      [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
      pass_fds=[descriptor],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
  )


def die_with(parent: int) -> None:
  """Ends this process when its parent ends, or now if the parent has ended."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
  if os.getppid() != parent:
    os._exit(1)


_SLEEPS = b"[%d]\n"  # sent by a worker whose program sleeps


class _Worker:
  """A worker process and the socket to it."""

  def __init__(self, start: str, max_reply: int = MAX_REPLY):
    self.max_reply = max_reply
    self.socket, theirs = socket.socketpair()
    self.process = interpreter(
        f"from {__name__} import serve\n"
        f"serve({theirs.fileno()}, {os.getpid()}, {start!r})",
        theirs.fileno(),
    )
    theirs.close()
    self.asked = 0
    self.started: dict[int, int] = {}
    # `Pool.close` kills a worker while the thread of the worker asks it. A
    # handle that is closed twice may be a file of someone else by then.
    self._lock = threading.RLock()

  def watch(self) -> None:
    """Records processes that the worker started, by handles that stay valid."""
    with self._lock:
      for pid in progress.descendants(self.process.pid):
        if pid not in self.started:
          with contextlib.suppress(OSError):
            self.started[pid] = os.pidfd_open(pid)

  def kill(self) -> None:
    """Kills the process and all processes that it has started."""
    with self._lock:
      self.watch()
      self.process.kill()
      for handle in self.started.values():
        with contextlib.suppress(OSError):
          signal.pidfd_send_signal(handle, signal.SIGKILL)
      self._forget()
    if self.process.returncode is None:  # otherwise the id may be reused
      with contextlib.suppress(OSError):
        os.killpg(self.process.pid, signal.SIGKILL)

  def _forget(self) -> None:
    with self._lock:
      for handle in self.started.values():
        os.close(handle)
      self.started = {}

  def ask(
      self,
      item: str,
      seconds: float,
      wall: float,
      on_sleep: Callable[[], None] = lambda: None,
  ) -> Outcome:
    """Returns the outcome of one item; a worker that failed is not reused."""
    reply = b""
    self.asked += 1
    sleeps = _SLEEPS % self.asked
    self._forget()
    # A verifier may wait for a service: each wait counts on its own.
    pids, nap = [self.process.pid], max(seconds, NAP)
    tracker = progress.Progress(pids, nap, wall, pays=1e6, in_all=False)
    # Later than the process' own limit, which should end it first.
    limit = progress.cpu_seconds(self.process.pid) + seconds + 0.5
    try:
      self.socket.settimeout(wall)
      self.socket.sendall(f"[{self.asked}, {item}]\n".encode())
      self.socket.settimeout(0.2)
      while not reply.endswith(b"\n") and len(reply) < self.max_reply:
        try:
          piece = self.socket.recv(1 << 16)
        except TimeoutError:
          self.watch()
          if tracker.late() or progress.cpu_seconds(self.process.pid) > limit:
            return Outcome(None, "time")
          continue
        if not piece:
          break
        reply += piece
        while reply.startswith(sleeps):
          reply = reply.removeprefix(sleeps)
          on_sleep()
    except TimeoutError:
      return Outcome(None, "time")
    except OSError:  # the worker died during the request
      reply = b""
    if not reply:
      self.kill()
      code = -self.process.wait()
      late = code in (signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM)
      return Outcome(None, "time" if late else "crash")
    try:
      number, value, failure = json.loads(reply)
    except (ValueError, TypeError, RecursionError):
      return Outcome(None, "crash")  # not an outcome
    if number != self.asked or not isinstance(failure, str | None):
      return Outcome(None, "crash")
    return Outcome(value, failure)


def serve(descriptor: int, parent: int, start: str) -> None:
  """Loop of a worker: reads an item, applies the function, writes the outcome.

  `start` is JSON: the function's path, CPU and wall seconds, and megabytes.
  """
  die_with(parent)
  path, seconds, wall, megabytes = json.loads(start)
  module, _, name = path.partition(":")
  function = getattr(importlib.import_module(module), name)
  size = megabytes << 20
  resource.setrlimit(resource.RLIMIT_AS, (size, size))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  with socket.socket(fileno=descriptor).makefile("rw") as stream:

    def say_asleep():
      stream.write((_SLEEPS % number).decode())
      stream.flush()

    progress.on_sleep.set(say_asleep)
    for line in stream:
      number, item = json.loads(line)
      # These signals have no handlers, so that the kernel ends the process
      # in any code. RLIMIT_CPU is a second limit, should the timer
      # fail.
      limit = int(time.process_time() + 2 * seconds + 2)
      hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
      resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
      signal.setitimer(signal.ITIMER_PROF, seconds)
      signal.setitimer(signal.ITIMER_REAL, wall)
      try:
        reply = json.dumps([number, function(*item), None])
      except MemoryError:
        reply = json.dumps([number, None, "memory"])
      except Exception as e:
        failure = f"error: {type(e).__name__}: {e}"[:200]
        reply = json.dumps([number, None, failure])
      signal.setitimer(signal.ITIMER_PROF, 0)
      signal.setitimer(signal.ITIMER_REAL, 0)
      stream.write(reply + "\n")
      stream.flush()
