"""The routes of OpenAI, the route of vLLM for token ids, and operations.

  GET  /                                       the page of `chat_page`
  GET  /health, /metrics, /v1/models
  POST /v1/completions, /v1/chat/completions   text, or text/event-stream
  POST /inference/v1/generate                  ids in, ids and log-probs out
  POST /feedback                               ratings of responses

Errors have the form of OpenAI: {"error": {"message", "type", "param", "code"}}.
"""

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    Response as Reply,
    StreamingResponse,
)
from starlette.routing import Route

from rl_reason.data import tokenizer
from rl_reason.serve import (
    chat_page,
    choices,
    feedback,
    filters,
    protocol,
)
from rl_reason.serve.engine import Closed, Engine, Scores
from rl_reason.serve.middleware import FAILED, ROUTES, Guard
from rl_reason.serve.prometheus import Metrics
from rl_reason.serve.prompt_tokens import Prompt, Prompts
from rl_reason.serve.protocol import ApiError
from rl_reason.serve.request_threads import Threads
from rl_reason.serve.responses import Response, Run, Stops

DEFAULT_TOKENS = 16  # max_tokens of a completion, as in OpenAI's API
# Threads that parse requests and format answers, that wait for chat templates,
# and that call functions of serve.filter.
THREADS = 2
WHOLE = 1 << 20  # maximum characters of an answer that is not sent in parts


class Server:
  """Answers requests with an engine.

  Args:
    engine: runs in another thread.
    tok: the tokenizer.
    name: name of the model for clients.
    timeout: maximum seconds of a request.
    rules: rules of `filters.load`.
    ratings: stores ratings of responses.
    silent: seconds since the engine has last answered, if it hangs; else 0.
    say: shows a line.
    stall: seconds that all threads may take for a call.
    beside: engines of further policies by the names for clients; they have the
      same programs and the same tokenizer.
    about: what a policy is, by name.
  """

  def __init__(
      self,
      engine: Engine,
      tok: Any,
      *,
      name: str,
      timeout: float,
      rules: list[filters.Rule],
      ratings: feedback.Feedback,
      silent: Callable[[], float],
      say: Callable[[str], None],
      stall: float = 30.0,
      beside: Mapping[str, Engine] | None = None,
      about: Mapping[str, str] | None = None,
  ):
    self._engines = {name: engine, **(beside or {})}
    self.metrics = Metrics(tuple(self._engines.values()))
    self._about = about or {}
    self._engine, self._tok, self._name = engine, tok, name
    self._timeout, self._rules, self._say = timeout, rules, say
    self._ratings, self._created = ratings, int(time.time())
    self._silent = silent
    self._said: set[str] = set()  # errors of rules that were reported
    self._prompts = Prompts(tok, engine.programs, engine.max_waiting, say)
    self._threads, self._chats, self._filters = (
        Threads(THREADS, timeout) for _ in range(3)
    )
    self._stall = stall

  def close(self) -> None:
    """Ends the processes that render chats."""
    self._prompts.close()

  # --- routes without sampling ------------------------------------------------

  async def health(self, _) -> Reply:
    """/health: whether the engine samples, and threads take requests."""
    if seconds := self._silent():
      raise ApiError(
          503, f"the engine has not sampled for {seconds:.0f} seconds"
      )
    for threads, what in (
        (self._threads, "requests"),
        (self._chats, "chats"),
        (self._filters, "functions of serve.filter"),
    ):
      if (seconds := threads.stuck) > self._stall:
        raise ApiError(
            503,
            f"the threads for {what} have not answered for {seconds:.0f}"
            " seconds: start the server again",
        )
    return JSONResponse(dict(status="ok"))

  async def show_metrics(self, _) -> Reply:
    """/metrics in the text format of Prometheus."""
    return Reply(self.metrics.text(), media_type="text/plain; version=0.0.4")

  async def page(self, _) -> Reply:
    """/: a page to talk to the policies."""
    return Reply(
        chat_page.TEXT, media_type="text/html", headers=chat_page.HEADERS
    )

  async def models(self, _) -> Reply:
    """/v1/models: the policies, the main one first."""
    p = self._engine.programs
    card = dict(
        object="model",
        created=self._created,
        owned_by="rl_reason",
        max_model_len=p.max_prompt + p.max_tokens,
        max_prompt_len=p.max_prompt,
        max_response_len=p.max_tokens,
        chat_template=bool(self._tok.chat_template),
    )
    data = [
        dict(id=name, description=self._about.get(name, "")) | card
        for name in self._engines
    ]
    return JSONResponse(dict(object="list", data=data))

  async def feedback(self, request: Request) -> Reply:
    """/feedback: stores a rating."""
    text = await request.body()

    def note() -> int:
      body = protocol.read(protocol.Rating, text)
      if body.rating is None:
        return self._ratings.prefer(body.id, body.chosen, body.rejected)
      return self._ratings.rate(body.id, body.index, body.rating, body.comment)

    try:
      pairs = await self._apart(note)
    except feedback.Unknown as e:
      raise ApiError(404, str(e), code="not_found") from None
    except feedback.FullFiles as e:
      raise ApiError(507, str(e), code="storage_full") from None
    except OSError as e:
      raise ApiError(503, f"the rating cannot be written: {e}") from None
    return JSONResponse(dict(pairs=pairs))

  # --- text -------------------------------------------------------------------

  async def completions(self, request: Request) -> Reply:
    """/v1/completions."""
    body, prompts = await self._read(
        request, protocol.Completion, self._prompts.of_completion
    )
    alternatives = body.logprobs or 0
    if body.stream and (body.echo or alternatives):
      raise ApiError(
          400,
          "a stream has neither echo nor alternatives (logprobs > 0): leave out"
          " stream",
          param="stream",
      )
    limit = body.max_tokens
    if limit is None:
      limit = min(DEFAULT_TOKENS, self._engine.programs.max_tokens)
    run = self._start(body, prompts, limit, body.model)
    reply = choices.Completions(run.model, body.logprobs is not None)
    if body.stream:
      return self._stream(run, reply, body)
    await self._finish(run, request)
    # The decode loop has log-probs of sampled tokens only. Log-probs of the
    # prompt and of alternatives need a forward pass.
    scored = body.logprobs is not None and (body.echo or bool(alternatives))

    def choice(index: int, scores: Scores | None) -> dict[str, Any]:
      response, prompt = run.responses[index], run.prompt(index)
      listed = None
      if body.logprobs is not None:
        listed = choices.tokens(
            self._tok, prompt.ids, response, scores, alternatives, body.echo
        )
      text = prompt.text * body.echo + response.text
      return reply.choice(index, text, listed, response.finish)

    self._remember(reply.id, run)
    frame = dict(usage=run.usage) | reply.body([])
    return await self._whole(run, frame, choice, scored, body.temperature)

  async def chat(self, request: Request) -> Reply:
    """/v1/chat/completions."""
    body, prompts = await self._read(
        request, protocol.Chat, self._prompts.of_chat, self._chats
    )
    alternatives = body.top_logprobs if body.logprobs else 0
    if body.stream and alternatives:
      raise ApiError(
          400, "a stream has no alternatives: leave out stream", param="stream"
      )
    limits = body.max_completion_tokens, body.max_tokens
    limit = next(
        (x for x in limits if x is not None), self._engine.programs.max_tokens
    )
    run = self._start(body, prompts, limit, body.model)
    reply = choices.Chats(run.model, body.logprobs)
    if body.stream:
      return self._stream(run, reply, body)
    await self._finish(run, request)

    def choice(index: int, scores: Scores | None) -> dict[str, Any]:
      response, listed = run.responses[index], None
      if body.logprobs:
        listed = choices.tokens(
            self._tok, run.prompt(index).ids, response, scores, alternatives
        )
      return reply.choice(index, response.text, listed, response.finish)

    self._remember(reply.id, run)
    frame = dict(usage=run.usage) | reply.body([])
    scored = bool(alternatives)
    return await self._whole(run, frame, choice, scored, body.temperature)

  async def generate(self, request: Request) -> Reply:
    """/inference/v1/generate."""
    body, prompts = await self._read(
        request, protocol.Generate, self._prompts.of_tokens
    )
    how = body.sampling_params
    limit = how.max_tokens
    limit = self._engine.programs.max_tokens if limit is None else limit
    run = self._start(how, prompts, limit, body.model)
    await self._finish(run, request)
    reply = choices.Chats(run.model, True)

    def choice(index: int, _: Scores | None) -> dict[str, Any]:
      response = run.responses[index]
      # Clients that train verify that each log-prob belongs to its id.
      listed = [
          choices.Token(f"token_id:{token}", logp)
          for token, logp in zip(response.ids, response.logps, strict=True)
      ]
      return dict(
          index=index,
          token_ids=list(response.ids),
          logprobs=reply.logprobs(listed),
          finish_reason=response.finish,
      )

    self._remember(reply.id, run)
    frame = dict(request_id=reply.id, usage=run.usage, choices=[])
    return await self._whole(run, frame, choice, False, how.temperature)

  # --- parts of a route -------------------------------------------------------

  async def _apart(self, function: Callable[..., Any], *args) -> Any:
    """Calls a slow function in a thread, so as not to block the event loop."""
    return await self._in(self._threads, function, *args)

  async def _in(self, threads: Threads, function, *args) -> Any:
    try:
      return await threads.call(function, *args)
    except TimeoutError:
      raise ApiError(
          504,
          f"not read within {self._timeout:g} seconds (serve.timeout): try"
          " again later",
          code="timeout",
      ) from None

  async def _read(
      self,
      request: Request,
      kind: type[protocol.Body],
      prompts: Callable[[Any], list[Prompt]],
      threads: Threads | None = None,
  ) -> tuple[Any, list[Prompt]]:
    """Parses the body of a request and its prompts."""
    text = await request.body()

    def read():
      body = protocol.read(kind, text)
      return body, prompts(body)

    return await self._in(threads or self._threads, read)

  def _start(
      self,
      how: protocol.Sampling,
      prompts: list[Prompt],
      limit: int,
      model: str | None,
  ) -> Run:
    """Submits the responses of a request."""
    name = self._name if model is None else model
    if name not in self._engines:
      known = " and ".join(map(repr, self._engines))
      raise ApiError(
          404,
          f"there is no model {model!r} here, only {known}",
          param="model",
          code="model_not_found",
      )
    p = self._engine.programs
    if limit > p.max_tokens:
      raise ApiError(
          400,
          f"max_tokens = {limit}: this server samples {p.max_tokens} at most"
          " (serve.max_tokens)",
          param="max_tokens",
          code="context_length_exceeded",
      )
    for prompt in prompts:
      self.metrics.prompt(len(prompt.ids))
    own = tokenizer.response_ends(self._tok).strings
    stops = Stops((*p.eos, *how.stop_token_ids), (*own, *how.stops))
    make = lambda: Response(self._tok, stops)  # noqa: E731
    engine = self._engines[name]
    return Run(engine, prompts, how, limit, make, self._timeout, name)

  async def _finish(self, run: Run, request: Request) -> None:
    """Waits for all responses, and withholds responses that a rule refuses."""
    async for _ in run.changes(request):
      pass
    for index, response in enumerate(run.responses):
      await self._screen(run.prompt(index).text, response)
    self._time(run)

  async def _whole(
      self,
      run: Run,
      frame: dict[str, Any],
      choice: Callable[[int, Scores | None], dict[str, Any]],
      scored: bool,
      temperature: float,
  ) -> Reply:
    """An answer, sent at once, or in parts if it is long.

    Alternatives to each token of a thousand responses are gigabytes of JSON:
    only one choice is in memory at a time.

    Args:
      run: the finished responses.
      frame: the answer without its choices, which come last.
      choice: makes a choice from its index and scores.
      scored: whether choices need the scores of the response.
      temperature: temperature of the scores.
    """

    async def parts() -> AsyncIterator[str]:
      yield json.dumps(frame).removesuffix("]}")
      for index in range(len(run.responses)):
        scores = await run.scores(index, temperature) if scored else None
        make = lambda: json.dumps(choice(index, scores))  # noqa: E731, B023
        yield "," * bool(index) + await self._apart(make)
      yield "]}"

    media_type, begun, size, left = "application/json", [], 0, parts()
    async for part in left:
      begun.append(part)
      size += len(part)
      if size > WHOLE:
        break
    else:
      return Reply("".join(begun), media_type=media_type)

    async def all_parts() -> AsyncIterator[str]:
      yield "".join(begun)
      begun.clear()
      # After an error the JSON is cut off, and thus invalid for the client.
      with contextlib.suppress(ApiError, Closed):
        async for part in left:
          yield part

    return StreamingResponse(all_parts(), media_type=media_type)

  def _time(self, run: Run) -> None:
    self.metrics.seconds.observe(time.monotonic() - run.started)
    if run.first_token is not None:
      self.metrics.first_token.observe(run.first_token - run.started)

  async def _screen(self, prompt: str, response: Response) -> None:
    """Counts a finished response, and withholds it if a rule refuses it."""
    rule, ended = "", response.finish
    if self._rules:
      try:
        rule = await self._filters.call(
            filters.refusal, self._rules, prompt, response.text
        )
      except Exception as e:  # in the function of the user: refuse
        rule = "error"
        line = f"serve.filter: {type(e).__name__}: {e}"
        if line not in self._said:
          self._said.add(line)
          trace = "".join(traceback.format_exception(e)).rstrip()
          self._say(f"{line}; the response is withheld\n{trace}")
    self.metrics.response("content_filter" if rule else str(ended), response)
    if rule:
      self.metrics.refusals.labels(rule).inc()
      response.refuse()

  def _remember(self, name: str, run: Run) -> None:
    prompts = run.prompts
    texts = [
        None if x.finish == "content_filter" else x.text for x in run.responses
    ]
    kept = feedback.Answer([x.kept for x in prompts], texts)
    size = len(json.dumps(kept))
    self._ratings.remember(name, kept, size)

  def _stream(
      self, run: Run, reply: choices.Reply, body: protocol.Streamed
  ) -> Reply:
    """Server-sent events as text is sampled; with rules, at the end."""
    counted = body.stream_options.include_usage

    def event(chunk: dict[str, Any]) -> str:
      return _event(chunk | dict(usage=None) if counted else chunk)

    async def events() -> AsyncIterator[str]:
      yield "".join(map(event, reply.opening(len(run.responses))))
      sent = [0] * len(run.responses)  # tokens
      at = [0] * len(run.responses)  # characters of these tokens
      try:
        async for index in run.changes(None):
          response = run.responses[index]
          if self._rules and not response.finish:
            continue
          if response.finish:
            await self._screen(run.prompt(index).text, response)
          text, first = response.take(), sent[index]
          if not (text or response.finish):
            continue
          sent[index] = len(response.ids)
          listed = choices.sampled(self._tok, response, first)
          yield event(
              reply.chunk(index, text, listed, response.finish, at[index])
          )
          at[index] += sum(len(x.text) for x in listed)
      except ApiError as e:
        yield _event(e.body)
        return
      except (asyncio.CancelledError, GeneratorExit):
        raise
      except BaseException as e:  # of a tokenizer, which may panic
        yield _event(ApiError(500, FAILED).body)
        raise RuntimeError("a stream ended with an error") from e
      if not run.responses or all(x.finish for x in run.responses):
        self._time(run)
        self._remember(reply.id, run)
      if counted:
        yield _event(reply.last(run.usage))
      yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def app(
    server: Server, *, key: str, hosts: Collection[str], max_body: int
) -> Guard:
  """The ASGI application.

  Args:
    server: answers the requests.
    key: API key that clients must send; '' for none.
    hosts: accepted host names if there is no key.
    max_body: maximum bytes of a request.
  """
  s = server
  answers = (
      *(s.page, s.health, s.show_metrics, s.models, s.feedback),
      *(s.completions, s.chat, s.generate),
  )
  routes = [
      Route(path, answer, methods=["GET" if number < 4 else "POST"])
      for number, (path, answer) in enumerate(zip(ROUTES, answers, strict=True))
  ]
  handlers: dict[Any, Any] = {
      ApiError: lambda _, e: e.reply(),
      Closed: lambda *_: ApiError(503, "the server is stopping").reply(),
      ClientDisconnect: lambda *_: ApiError(499, "the client has gone").reply(),
      404: lambda r, _: ApiError(404, f"no route {r.url.path}").reply(),
      405: lambda r, _: ApiError(405, f"not with {r.method}").reply(),
      500: lambda *_: ApiError(500, FAILED).reply(),
  }
  inner = Starlette(routes=routes, exception_handlers=handlers)
  return Guard(
      inner, key=key, hosts=hosts, max_body=max_body, metrics=server.metrics
  )


def _event(body: dict) -> str:
  return f"data: {json.dumps(body)}\n\n"
