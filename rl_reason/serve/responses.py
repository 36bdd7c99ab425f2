"""The responses to one request: submitted, streamed, and cancelled.

A response is the text and the tokens up to the first stop, as a client sees it.
"""

import array
import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from starlette.requests import Request

from rl_reason.data import tokenizer
from rl_reason.serve import protocol
from rl_reason.serve.engine import Closed, Engine, Full, Job, Scores
from rl_reason.serve.prompt_tokens import Prompt
from rl_reason.serve.protocol import ApiError


class Stops:
  """Stop tokens and stop texts of one request.

  Attributes:
    ids: ids that end a response and are not part of the text.
    texts: texts that end a response and are cut off.
    longest: characters of the longest text.

  Args:
    ids: see Attributes.
    texts: see Attributes; empty texts are ignored.
  """

  def __init__(self, ids: Collection[int] = (), texts: Sequence[str] = ()):
    self.ids, self.texts = frozenset(ids), [x for x in texts if x]
    self.longest = max(map(len, self.texts), default=0)
    starts = {x[:n] for x in self.texts for n in range(1, len(x))}
    self._starts = tuple(sorted(starts, key=len, reverse=True))

  def pending(self, text: str) -> int:
    """Characters at the end of a text that may be the start of a stop text."""
    if not text.endswith(self._starts):
      return 0
    return next(len(x) for x in self._starts if text.endswith(x))


class Response:
  """One response, which grows while it is sampled.

  Attributes:
    ids, logps: tokens and their log-probs, including the stop token.
    pieces: text of each token, '' for a stop token.
    text: the text so far, without a stop text.
    finish: 'stop', 'length', 'content_filter', 'error', or None while it grows.

  Args:
    tok: the tokenizer.
    stops: stop tokens and texts of the request.
  """

  def __init__(self, tok: Any, stops: Stops):
    # A request may have millions of tokens, which take 16 bytes each.
    self.ids, self.logps = array.array("i"), array.array("f")
    self.pieces: list[str] = []  # interned
    self.text = ""
    self.finish: str | None = None
    self._stops = stops
    self._detokenizer = tokenizer.Detokenizer(tok)
    self._sent = 0  # characters

  def add(self, ids: list[int], logps: list[float], finish: str | None) -> None:
    """Adds new tokens; ignores everything after a stop."""
    for token, logp in zip(ids, logps, strict=True):
      self.ids.append(token)
      self.logps.append(logp)
      ends = token in self._stops.ids
      piece = "" if ends else self._detokenizer.add(token)
      self.pieces.append(sys.intern(piece))
      if ends:
        finish = "stop"
      elif self._append(piece):
        self.finish = "stop"
        return
      if ends:
        break
    if finish:
      stopped = self._append(self._detokenizer.rest())
      self.finish = "stop" if stopped else finish

  def _append(self, piece: str) -> bool:
    """Adds text; returns whether this completes a stop text."""
    first = max(0, len(self.text) - self._stops.longest)
    self.text += piece
    found = [self.text.find(x, first) for x in self._stops.texts]
    cut = min((x for x in found if x >= 0), default=-1)
    if cut >= 0:
      self.text = self.text[:cut]
    return cut >= 0

  def refuse(self) -> None:
    """Withholds the response."""
    del self.ids[:], self.logps[:], self.pieces[:]
    self.text, self.finish = "", "content_filter"

  def take(self) -> str:
    """Returns new text that cannot be part of a stop text."""
    pending = 0 if self.finish else self._stops.pending(self.text)
    first, self._sent = self._sent, max(self._sent, len(self.text) - pending)
    return self.text[first : self._sent]


LOOK = 1.0  # seconds between two checks whether the client has disconnected


class Run:
  """The responses to one request, while they are sampled.

  Args:
    engine: samples the responses.
    prompts: prompts of the request.
    how: sampling parameters of the request.
    limit: maximum tokens of each response; 0 samples nothing.
    make: makes an empty response.
    seconds: timeout of the request.
    model: name of the policy for clients.

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
      model: str = "",
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
          filters=how.filters,
          max_tokens=limit,
      )

    self.prompts, self.n, self._engine = prompts, how.n, engine
    self.model = model
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
    """Token counts in the form of OpenAI."""
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
    """The scores of a prompt with its response; None for a single token.

    Raises:
      ApiError: the request timed out, or the engine has stopped.
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
    """Yields the index of each response that has grown, until all have ended.

    Args:
      request: cancelled when its client disconnects; None: not checked.

    Raises:
      ApiError: the request timed out, or the engine has stopped.
    """
    unfinished, looked = len(self._jobs), self.started
    try:
      while unfinished:
        # The timeout is of the whole request, however often it yields.
        now = time.monotonic()
        if now >= self._end:
          raise self._late()
        # A client that has disconnected frees its slots. The check runs once a
        # second, since events are frequent.
        if request is not None and now - looked > LOOK:
          looked = now
          if await request.is_disconnected():
            raise ApiError(499, "the client has gone")
        # Waits at most until the next check.
        try:
          event = await asyncio.wait_for(
              self._events.get(), min(self._end - now, LOOK)
          )
        except TimeoutError:
          continue
        # Tokens after a stop text were already queued when it was found.
        index, *new = event
        response = self.responses[index]
        if response.finish:
          continue
        if self.first_token is None:
          self.first_token = time.monotonic()
        response.add(*new)
        if response.finish == "error":
          raise ApiError(503, "the server is stopping", code="stopping")
        # Otherwise the device would decode the response to its length limit.
        if response.finish:
          unfinished -= 1
          self._jobs[index].cancelled = True
        yield index
    finally:
      for one in self._jobs:
        one.cancelled = True
