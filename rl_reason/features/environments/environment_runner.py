"""Calls environments, in threads or in one process for each trajectory.

If a call raises or takes too long, its trajectory counts as failed. If all
trajectories of the first round fail, the run ends.
"""

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason import tasks
from rl_reason.base import own_code
from rl_reason.base.errors import RunError
from rl_reason.data import tokenizer
from rl_reason.devices import sharding
from rl_reason.features.environments import executors, factory, observations
from rl_reason.features.environments.factory import Environment
from rl_reason.stages.session import Session
from rl_reason.tasks import threads

ENDS = 5.0  # seconds that the end of a process may take


def opened(c, session: Session) -> "Environments":
  """Makes and calls the environments of a config."""
  e, tok = c.environment, session.tok
  make = factory.find(e.name, session.row_source.task, e.phrase)
  assert make is not None  # the checks of the config have found it
  return Environments(
      e.name or c.task.name,
      make,
      tok,
      ends=tokenizer.response_ends(tok).ids,
      stop_strings=e.stop_strings,
      max_turns=e.max_turns,
      turn_tokens=e.turn_tokens,
      slots=c.rollout.slots,
      shards=sharding.num_shards(session.model.mesh, "batch"),
      executor=e.executor,
      workers=e.workers,
      seconds=e.timeout,
      special_tokens=e.special_tokens,
      show=session.output.display.say,
  )


class Failure(NamedTuple):
  """A call of an environment that raised or took too long."""

  reason: str


class Environments:
  """Makes the environments of a run, and calls them.

  Args:
    name: of the environment, as in the config.
    make: -> a new environment.
    tok: the tokenizer.
    ends: ids of tokens that end a turn.
    stop_strings: texts that end a turn.
    max_turns: of a trajectory.
    turn_tokens: of a turn of the policy, which is then cut; 0: no limit.
    slots: rows that decode at a time; 0: all.
    shards: of the rows.
    executor: 'thread' runs calls in threads of this process, 'process' in one
      process for each trajectory.
    workers: calls at a time.
    seconds: time-out of a call.
    special_tokens: whether the text of an observation may become special
      tokens.
    show: writes the first failure to the screen.

  Raises:
    RunError: the environment cannot be imported in another process.
  """

  def __init__(
      self,
      name: str,
      make: Callable[[], Environment],
      tok: Any,
      *,
      ends: Sequence[int],
      stop_strings: Sequence[str] = (),
      max_turns: int,
      turn_tokens: int = 0,
      slots: int = 0,
      shards: int = 1,
      executor: str = "thread",
      workers: int = 8,
      seconds: float = 60.0,
      special_tokens: bool = False,
      show: tasks.Show | None = None,
  ):
    self.name, self.tok = name, tok
    self.ends, self.stop_strings = frozenset(ends), tuple(stop_strings)
    self.max_turns, self.turn_tokens = max_turns, turn_tokens
    self.slots, self.shards = slots, shards
    self.observer = observations.Observer(tok, special_tokens=special_tokens)
    self._parent: executors.Parent | None = None
    self.begin: Callable[[], Any] = functools.partial(executors.Play, make)
    if executor == "process":
      try:
        self._parent = executors.Parent(name, make, seconds)
      except RuntimeError as e:
        raise RunError(str(e)) from None
      self.begin = functools.partial(executors.PlayInProcess, self._parent)
    self._seconds = seconds
    self._failures = tasks.Failures(f"the environment {name}", show)
    self._proved = False  # after a first round with a success
    self._loop = threads.event_loop()
    # A late process is ended within its call.
    spare = ENDS if self._parent else 0.0
    self._threads = threads.Threads(workers, seconds + spare)

  def close(self) -> None:
    """Ends the thread that starts and times calls, and the processes."""
    self._loop.call_soon_threadsafe(self._loop.stop)
    if self._parent:
      self._parent.close()

  def call(self, function: Callable, *args) -> concurrent.futures.Future:
    """Calls a function in a thread; the result is its value or a `Failure`."""

    def guarded():
      try:
        return function(*args)
      except executors.Late:
        raise TimeoutError from None
      except executors.Failed as e:  # in another process, which has told why
        return Failure(str(e))
      except BaseException as e:  # the user's code may raise anything
        return Failure(own_code.report(e))

    async def timed():
      try:
        return await self._threads.call(guarded)
      except TimeoutError:
        limit = f"environment.timeout = {self._seconds:g} s"
        return Failure(f"took longer than {limit}{self._remedy}")

    return asyncio.run_coroutine_threadsafe(timed(), self._loop)

  @property
  def _remedy(self) -> str:
    """The remedy for calls that hang; '' if their process was ended."""
    return (
        ""
        if self._parent
        else "; its thread cannot be ended: environment.executor = 'process'"
        " runs environments in processes, which can"
    )

  def note(self, failures: Sequence[Failure], responses: int) -> None:
    """Counts the failures of a round, and shows the first one.

    Raises:
      RunError: all trajectories of the first round failed, or too many calls
        hang in threads.
    """
    if self._threads.full:
      raise RunError(
          f"environment.executor = 'thread': {self._threads.hanging} calls of"
          f" the environment {self.name} have not ended, and threads cannot be"
          " ended: correct it, or set environment.executor = 'process'"
      )
    if failures and len(failures) == responses and not self._proved:
      raise RunError(
          f"the environment {self.name} failed in all {responses} trajectories"
          " of the first round, correct it and run again: "
          f"{failures[0].reason}".rstrip()
      )
    self._proved = True
    for failure in failures:
      self._failures.add(failure.reason)
