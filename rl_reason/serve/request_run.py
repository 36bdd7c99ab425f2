"""The responses to one request: submitted, awaited, and given up with it."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.requests import Request

from rl_reason.serve import protocol
from rl_reason.serve.engine import Closed, Engine, Full, Job, Scores
from rl_reason.serve.http_errors import ApiError
from rl_reason.serve.prompt_tokens import Prompt
from rl_reason.serve.responses import Response

LOOK = 1.0  # seconds between two looks whether the client is gone


class Run:
  """The responses to one request, while they are sampled.

  Args:
    engine: samples them.
    prompts: of the request.
    how: of the request.
    limit: tokens of each response; 0 samples nothing.
    make: makes an empty response.
    seconds: time-out of the request.

  Raises:
    ApiError: the queue is full.
  """

  def __init__(
      self,
      engine: Engine,
      prompts: Sequence[Prompt],
      how: protocol.Sampling,
      limit: int,
      make: Callable[[], Response],
      seconds: float,
  ):
    events: asyncio.Queue = asyncio.Queue()
    loop = asyncio.get_running_loop()
    seed = secrets.randbits(31) if how.seed is None else how.seed

    def job(index: int) -> Job:
      def deliver(*event):
        loop.call_soon_threadsafe(events.put_nowait, (index, *event))

      return Job(
          prompt=prompts[index // how.n].ids,
          deliver=deliver,
          seed=seed,
          sample=index % how.n,
          temperature=how.temperature,
          top_p=how.top_p,
          max_tokens=limit,
      )

    self.prompts, self.n, self._engine = prompts, how.n, engine
    self.responses = [make() for _ in range(len(prompts) * how.n)]
    self.first_token: float | None = None
    self.started = time.monotonic()
    self._events, self._end = events, self.started + seconds
    self._seconds = seconds
    self._jobs = [job(index) for index in range(len(self.responses))]
    if not limit:
      self._jobs = []
      for response in self.responses:
        response.finish = "length"
    try:
      engine.submit(self._jobs)
    except Full:
      raise ApiError(
          429,
          "the queue of this server is full (serve.queue): try again later",
          code="queue_full",
          headers={"Retry-After": "1"},
      ) from None
    except Closed:
      raise ApiError(503, "the server is stopping", code="stopping") from None

  @property
  def usage(self) -> dict[str, int]:
    """Numbers of tokens, as OpenAI counts them."""
    prompt = sum(len(x.ids) for x in self.prompts)
    sampled = sum(len(x.ids) for x in self.responses)
    return dict(
        prompt_tokens=prompt,
        completion_tokens=sampled,
        total_tokens=prompt + sampled,
    )

  def prompt(self, index: int) -> Prompt:
    """The prompt of a response."""
    return self.prompts[index // self.n]

  async def scores(self, index: int, temperature: float) -> Scores | None:
    """The scores of a response and its prompt; None for a single token.

    Raises:
      ApiError: time is up, or the engine has stopped.
    """
    ids = (*self.prompt(index).ids, *self.responses[index].ids)
    if len(ids) < 2:
      return None
    future = asyncio.wrap_future(self._engine.score(ids, temperature))
    try:
      left = self._end - time.monotonic()
      return await asyncio.wait_for(future, max(left, 0))
    except TimeoutError:
      raise self._late() from None

  def _late(self) -> ApiError:
    return ApiError(
        504,
        f"not finished within {self._seconds:g} seconds (serve.timeout): ask"
        " for fewer tokens, or try again later",
        code="timeout",
    )

  async def changes(self, request: Request | None) -> AsyncIterator[int]:
    """Yields the index of a response that has grown, until all have ended.

    Args:
      request: ends when its client is gone; None: do not look.

    Raises:
      ApiError: time is up, or the engine has stopped.
    """
    unfinished, looked = len(self._jobs), self.started
    try:
      while unfinished:
        # The limit holds for the request, however often it yields.
        now = time.monotonic()
        if now >= self._end:
          raise self._late()
        # A client that has left frees its slots: looked up now and then, since
        # tokens come often.
        if request is not None and now - looked > LOOK:
          looked = now
          if await request.is_disconnected():
            raise ApiError(499, "the client has gone")
        # Waits no longer than to the next look.
        try:
          event = await asyncio.wait_for(
              self._events.get(), min(self._end - now, LOOK)
          )
        except TimeoutError:
          continue
        # Tokens behind a stop string were under way when it was found.
        index, *new = event
        response = self.responses[index]
        if response.finish:
          continue
        if self.first_token is None:
          self.first_token = time.monotonic()
        response.add(*new)
        if response.finish == "error":
          raise ApiError(503, "the server is stopping", code="stopping")
        # The device would decode a stopped response to its length limit.
        if response.finish:
          unfinished -= 1
          self._jobs[index].cancelled = True
        yield index
    finally:
      for one in self._jobs:
        one.cancelled = True
