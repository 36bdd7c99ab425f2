"""Executors of environments: in this process, or in one process a trajectory.

A process can be ended if a call hangs, exits or crashes; a thread cannot. The
processes are forks of a process that has imported the environment, without JAX,
so that starting one takes milliseconds. Messages are JSON.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_reason.base import errors, own_code
from rl_reason.features.environments import factory, tools
from rl_reason.tasks import Row
from rl_reason.verifiers import workers

MAX_REPLY = 64 << 20  # bytes
STARTS = 120.0  # seconds for importing the environment
_FORK, _END = b"f", b"e"
_NUMBER = 8  # bytes of a process' number


class Reply(NamedTuple):
  """The answer of an environment to a turn.

  Attributes:
    observation: what the policy reads next: a text or messages.
    reward: reward of the turn.
    over: whether the trajectory ends.
    correct: whether the trajectory counts as correct, if it ends.
  """

  observation: tools.Messages | str
  reward: float
  over: bool
  correct: bool


class Play:
  """An environment in this process.

  Args:
    make: creates an environment.

  Attributes:
    environment: the environment.
  """

  def __init__(self, make: Callable[[], Any]):
    self.environment = make()

  @property
  def offered(self) -> Sequence:
    """The tools of the environment."""
    return tools.tools_of(self.environment)

  def reset(self, row: Row, seed: Sequence[int]) -> tools.Messages | str:
    """Begins a trajectory and returns the prompt."""
    prompt = self.environment.reset(row, np.random.default_rng(seed))
    if not isinstance(prompt, str | list | None):
      raise TypeError(f"reset gave the prompt {prompt!r}, not a text")
    return row.prompt if prompt is None else prompt

  def step(self, text: str, cut: bool = False) -> Reply:
    """Answers a turn, and checks the values that the environment returns.

    Args:
      text: of the turn.
      cut: whether the turn reached its limit before its end.
    """
    answer = self.environment.step
    if cut:
      answer = getattr(self.environment, "cut", answer)
    observation, reward, over = answer(text)
    if not (over or isinstance(observation, str | list)):
      raise TypeError(f"step gave the observation {observation!r}, not a text")
    if not np.isfinite(float(reward)):
      raise ValueError(f"step gave the reward {reward!r}")
    correct = reward > 0
    if over and hasattr(self.environment, "correct"):
      correct = self.environment.correct()
    said = "" if over else observation
    return Reply(said, float(reward), bool(over), bool(correct))

  def close(self) -> None:
    """Does nothing: the environment ends with its last reference."""


class Late(Exception):
  """A call took too long, and its process was ended."""


class Failed(Exception):
  """An environment in another process failed; the text is the traceback."""


class PlayInProcess:
  """An environment in a process of its own.

  Args:
    parent: process that starts and ends the process of the environment.
  """

  def __init__(self, parent: "Parent"):
    self._parent, self.offered = parent, parent.offered
    self._socket, theirs = socket.socketpair()
    with theirs:
      self._number = parent.fork(theirs)

  def reset(self, row: Row, seed: Sequence[int]) -> tools.Messages | str:
    """See `Play`."""
    return self._ask("reset", row, list(seed))

  def step(self, text: str, cut: bool = False) -> Reply:
    """See `Play`."""
    return Reply(*self._ask("step", text, cut))

  def _ask(self, *request) -> Any:
    """Returns the value of a call.

    Raises:
      Late: the call took too long.
      Failed: the call raised an exception, or its process has ended.
    """
    deadline, reply = time.monotonic() + self._parent.seconds, b""
    try:
      self._socket.settimeout(self._parent.seconds)
      self._socket.sendall(json.dumps(request).encode() + b"\n")
      while not reply.endswith(b"\n") and len(reply) < MAX_REPLY:
        self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
        if not (part := self._socket.recv(1 << 16)):
          break
        reply += part
    except TimeoutError:
      self._parent.end(self._number)
      raise Late from None
    except OSError:  # the process has ended
      reply = b""
    try:
      value, error = json.loads(reply)
    except ValueError:
      self._parent.end(self._number)
      raise Failed("the process of the environment has ended") from None
    if error:
      raise Failed(error)
    return value

  def close(self) -> None:
    """Lets the process end, and the environment with it."""
    self._socket.close()


class Parent:
  """The process whose forks run the environments.

  Args:
    name: name of the environment in the config.
    make: creates an environment; only its tools are used.
    seconds: time limit of a call.

  Attributes:
    seconds: time limit of a call.
    offered: tools of the environment.

  Raises:
    RuntimeError: the process cannot import the environment.
  """

  def __init__(self, name: str, make: Callable[[], Any], seconds: float):
    self.seconds, self.offered = seconds, tools.tools_of(make())
    # Each trajectory needs a socket.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    self._lock, self._count = threading.Lock(), 0
    self._control, theirs = socket.socketpair()
    with theirs:
      self._process = workers.interpreter(
          f"from {__name__} import serve\n"
          f"serve({theirs.fileno()}, {os.getpid()}, {name!r})",
          theirs.fileno(),
      )
    self._control.settimeout(STARTS)
    why = "it takes too long"
    with contextlib.suppress(TimeoutError):
      why = self._control.makefile().readline()
    self._control.settimeout(None)
    if why != "\n":
      self.close()
      why = json.loads(why) if why.endswith("\n") else why
      raise RuntimeError(
          f"the environment {name} does not start in a process of its own"
          f" ({why or 'which has ended'}): set environment.executor = 'thread'"
      )

  def fork(self, theirs: socket.socket) -> int:
    """Starts a process that answers on a socket; returns its number."""
    with self._lock:
      self._count += 1
      number = self._count
      message = _FORK + number.to_bytes(_NUMBER, "big")
      socket.send_fds(self._control, [message], [theirs.fileno()])
    return number

  def end(self, number: int) -> None:
    """Kills a process and its process group."""
    with self._lock, contextlib.suppress(OSError):
      self._control.sendall(_END + number.to_bytes(_NUMBER, "big"))

  def close(self) -> None:
    """Ends all processes."""
    self._process.kill()  # its forks end with it
    self._process.wait()
    self._control.close()


def serve(descriptor: int, parent: int, name: str) -> None:
  """Loop of the parent process; forks never return from this function."""
  workers.die_with(parent)
  control = socket.socket(fileno=descriptor)
  try:
    make = factory.find(name, None)
    control.sendall(b"\n")
  except BaseException as e:
    control.sendall(json.dumps(errors.one_line(e)).encode() + b"\n")
    return
  living: dict[int, int] = {}  # number -> process id
  numbers: dict[int, int] = {}  # process id -> number
  me = os.getpid()
  while True:
    message, received, *_ = socket.recv_fds(control, 1 + _NUMBER, 1)
    if not message:
      return
    # Only processes that were not reaped are signalled: their ids are not
    # reused.
    with contextlib.suppress(ChildProcessError):  # it has no children
      while pid := os.waitpid(-1, os.WNOHANG)[0]:
        del living[numbers.pop(pid)]
    number = int.from_bytes(message[1:], "big")
    if message[:1] == _END and number in living:
      for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
          kill(living[number], signal.SIGKILL)
    for fd in received:
      with contextlib.suppress(OSError):  # no process starts: the socket closes
        pid = os.fork()
        if not pid:
          control.close()
          _play(fd, me, make)
        living[number], numbers[pid] = pid, number
      os.close(fd)


def _play(descriptor: int, parent: int, make: Any) -> None:
  """Answers the calls of one trajectory, and ends the process."""
  try:
    os.setsid()
    workers.die_with(parent)
    play = None
    with socket.socket(fileno=descriptor).makefile("rw") as stream:
      for line in stream:
        name, *args = json.loads(line)
        try:
          play = play or Play(make)
          if name == "reset":
            args[0] = Row(*args[0])
          reply = json.dumps([getattr(play, name)(*args), None])
        except BaseException as e:  # the user's code may raise anything
          reply = json.dumps([None, own_code.report(e)])
        stream.write(reply + "\n")
        stream.flush()
    play = None  # the environment may define `__del__`
  finally:
    os._exit(0)
