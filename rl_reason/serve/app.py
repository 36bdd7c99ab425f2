"""The routes: OpenAI's, vLLM's for token ids, and those of operations.

  GET  /health, /metrics, /v1/models
  POST /v1/completions, /v1/chat/completions   text, or text/event-stream
  POST /inference/v1/generate                  ids in, ids and log-probs out
  POST /feedback                               ratings of responses

Errors are those of OpenAI: {"error": {"message", "type", "param", "code"}}.
"""

import asyncio
import json
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pydantic
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    Response as Reply,
    StreamingResponse,
)
from starlette.routing import Route

from rl_reason.data import templates, tokenizer
from rl_reason.serve import choices, feedback, filters, protocol
from rl_reason.serve.engine import Closed, Engine
from rl_reason.serve.errors import ApiError
from rl_reason.serve.guard import ROUTES, Guard
from rl_reason.serve.metrics import Metrics
from rl_reason.serve.responses import Response
from rl_reason.serve.run import Run

DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it


class Server:
  """Answers requests with one engine.

  Args:
    engine: runs in a thread of its own.
    tok: the tokenizer.
    name: of the model, for clients.
    timeout: seconds of a request.
    rules: of `filters.load`.
    ratings: keeps what clients say of responses.
    say: shows a line.
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
      say: Callable[[str], None],
  ):
    self.metrics = Metrics(engine)
    self._engine, self._tok, self._name = engine, tok, name
    self._timeout, self._rules, self._say = timeout, rules, say
    self._ratings, self._created = ratings, int(time.time())
    self._said: set[str] = set()  # faults of rules

  # --- routes without sampling ------------------------------------------------

  async def health(self, _) -> Reply:
    """Whether requests are taken."""
    return JSONResponse(dict(status="ok"))

  async def show_metrics(self, _) -> Reply:
    """The page of Prometheus."""
    return Reply(self.metrics.text(), media_type="text/plain; version=0.0.4")

  async def models(self, _) -> Reply:
    """The one model."""
    p = self._engine.programs
    card = dict(
        id=self._name,
        object="model",
        created=self._created,
        owned_by="rl_reason",
        max_model_len=p.max_prompt + p.max_tokens,
        max_prompt_len=p.max_prompt,
        max_response_len=p.max_tokens,
    )
    return JSONResponse(dict(object="list", data=[card]))

  async def feedback(self, request: Request) -> Reply:
    """Appends a rating."""
    body = await _parse(request, protocol.Rating)
    try:
      if body.rating is None:
        pairs = self._ratings.prefer(body.id, body.chosen, body.rejected)
      else:
        pairs = self._ratings.rate(
            body.id, body.index, body.rating, body.comment
        )
    except feedback.Unknown as e:
      raise ApiError(404, str(e), code="not_found") from None
    return JSONResponse(dict(pairs=pairs))

  # --- text -------------------------------------------------------------------

  async def completions(self, request: Request) -> Reply:
    """/v1/completions."""
    body = await _parse(request, protocol.Completion)
    prompts = self._prompts(body.prompt)
    texts = [text for text, _ in prompts]
    alternatives = body.logprobs or 0
    if body.stream and (body.echo or alternatives):
      raise ApiError(
          400,
          "a stream has no echo and no alternatives (logprobs > 0): leave out"
          " stream",
          param="stream",
      )
    limit = body.max_tokens
    if limit is None:
      limit = min(DEFAULT_TOKENS, self._engine.programs.max_tokens)
    run = self._start(body, [ids for _, ids in prompts], limit)
    reply = choices.Completions(self._name, body.logprobs is not None)
    if body.stream:
      return self._stream(run, reply, body, texts, texts)
    await self._finish(run, request, texts)
    out = []
    for index, response in enumerate(run.responses):
      text, ids = prompts[index // body.n]
      echoed, scores = (ids if body.echo else ()), None
      # The decode loop keeps log-probs of the sampled tokens only: those of a
      # prompt, and alternatives, take a forward pass.
      all_ids = (*ids, *response.ids)
      if body.logprobs is not None and (body.echo or alternatives):
        if len(all_ids) > 1:
          future = self._engine.score(all_ids, body.temperature)
          scores = await asyncio.wrap_future(future)
      listed = None
      if body.logprobs is not None:
        listed = choices.tokens(
            self._tok, ids, response, scores, alternatives, bool(echoed)
        )
      out.append(
          reply.choice(
              index,
              text * body.echo + response.text,
              listed,
              response.finish,
          )
      )
    self._remember(reply.id, texts, run)
    return JSONResponse(reply.body(out) | dict(usage=run.usage))

  async def chat(self, request: Request) -> Reply:
    """/v1/chat/completions."""
    body = await _parse(request, protocol.Chat)
    try:
      turns = body.turns
      has_template = bool(self._tok.chat_template)
      if len(turns) > 1 and not has_template:
        raise ValueError(
            "messages: the tokenizer has no chat template, so that one message"
            " of the user is all that a prompt can be"
        )
      text = templates.render(turns, self._tok, chat=has_template)
    except (ValueError, templates.PromptError) as e:
      raise ApiError(400, str(e), param="messages") from None
    alternatives = body.top_logprobs if body.logprobs else 0
    if body.stream and alternatives:
      raise ApiError(
          400, "a stream has no alternatives: leave out stream", param="stream"
      )
    [(_, ids)] = self._prompts(text)
    limits = body.max_completion_tokens, body.max_tokens
    limit = next(
        (x for x in limits if x is not None), self._engine.programs.max_tokens
    )
    run = self._start(body, [ids], limit)
    reply = choices.Chats(self._name, body.logprobs)
    # A rating keeps the turns, which a chat template can render again.
    prompts: list[Any] = [turns if has_template else text]
    if body.stream:
      return self._stream(run, reply, body, [text], prompts)
    await self._finish(run, request, [text])
    out = []
    for index, response in enumerate(run.responses):
      scores = None
      if alternatives and response.ids:
        future = self._engine.score((*ids, *response.ids), body.temperature)
        scores = await asyncio.wrap_future(future)
      listed = None
      if body.logprobs:
        listed = choices.tokens(self._tok, ids, response, scores, alternatives)
      out.append(reply.choice(index, response.text, listed, response.finish))
    self._remember(reply.id, prompts, run)
    return JSONResponse(reply.body(out) | dict(usage=run.usage))

  async def generate(self, request: Request) -> Reply:
    """/inference/v1/generate."""
    body = await _parse(request, protocol.Generate)
    how = body.sampling_params
    self._check_model(body.model)
    ids = self._checked(tuple(body.token_ids))
    limit = how.max_tokens
    limit = self._engine.programs.max_tokens if limit is None else limit
    run = self._start(how, [ids], limit)
    text = tokenizer.Detokenizer(self._tok).text(ids)
    await self._finish(run, request, [text])
    reply = choices.Chats(self._name, True)
    out = []
    for index, response in enumerate(run.responses):
      # Clients that train check that each log-prob is that of its id.
      listed = [
          choices.Token(f"token_id:{token}", logp)
          for token, logp in zip(response.ids, response.logps, strict=True)
      ]
      out.append(
          dict(
              index=index,
              token_ids=response.ids,
              logprobs=reply.logprobs(listed),
              finish_reason=response.finish,
          )
      )
    self._remember(reply.id, [text], run)
    return JSONResponse(dict(request_id=reply.id, choices=out, usage=run.usage))

  # --- parts of a route -------------------------------------------------------

  def _check_model(self, model: str | None) -> None:
    if model not in (None, self._name):
      raise ApiError(
          404,
          f"there is no model {model!r} here, only {self._name!r}",
          param="model",
          code="model_not_found",
      )

  def _prompts(self, prompt: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The text and the ids of each prompt of a request."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
      prompt = [prompt]
    out = []
    for one in prompt:
      if isinstance(one, str):
        try:
          ids = tuple(tokenizer.encode(self._tok, [one])[0])
        except Exception as e:  # of a tokenizer without an unknown token
          raise ApiError(
              400, f"prompt: cannot be tokenised: {e}", param="prompt"
          ) from None
        out.append((one, self._checked(ids)))
      else:
        ids = self._checked(tuple(one))
        out.append((tokenizer.Detokenizer(self._tok).text(ids), ids))
    if not out:
      raise ApiError(400, "prompt: is empty", param="prompt")
    return out

  def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
    p = self._engine.programs
    if not ids:
      raise ApiError(400, "prompt: has no token", param="prompt")
    if len(ids) > p.max_prompt:
      raise ApiError(
          400,
          f"the prompt has {len(ids)} tokens, and this server takes"
          f" {p.max_prompt} (serve.max_prompt)",
          param="prompt",
          code="context_length_exceeded",
      )
    known = p.cfg.tokens or p.cfg.vocab
    if max(ids) >= known:
      raise ApiError(
          400, f"prompt: {max(ids)} is no id below {known}", param="prompt"
      )
    return ids

  def _start(
      self,
      how: protocol.Sampling,
      prompts: list[tuple[int, ...]],
      limit: int,
  ) -> Run:
    """Submits the responses of a request."""
    self._check_model(getattr(how, "model", None))
    p = self._engine.programs
    if limit > p.max_tokens:
      raise ApiError(
          400,
          f"max_tokens = {limit}: this server samples {p.max_tokens} at most"
          " (serve.max_tokens)",
          param="max_tokens",
          code="context_length_exceeded",
      )
    for ids in prompts:
      self.metrics.prompt(len(ids))
    ends = (*p.eos, *how.stop_token_ids)
    make = lambda: Response(self._tok, ends, how.stops)  # noqa: E731
    return Run(self._engine, prompts, how, limit, make, self._timeout)

  async def _finish(self, run: Run, request: Request, texts: list[str]) -> None:
    """Waits for all responses, and withholds those that a rule refuses."""
    async for _ in run.changes(request):
      pass
    for index, response in enumerate(run.responses):
      await self._screen(texts[index // run.n], response)
    self._time(run)

  def _time(self, run: Run) -> None:
    self.metrics.seconds.observe(time.monotonic() - run.started)
    if run.first_token is not None:
      self.metrics.first_token.observe(run.first_token - run.started)

  async def _screen(self, prompt: str, response: Response) -> None:
    """Counts a response that has ended; withholds it if a rule says so."""
    rule, ended = "", response.finish
    if self._rules:
      try:
        rule = await asyncio.to_thread(
            filters.refusal, self._rules, prompt, response.text
        )
      except Exception as e:  # of the user's function; nothing gets through
        rule = "error"
        line = f"serve.filter: {type(e).__name__}: {e}"
        if line not in self._said:
          self._said.add(line)
          self._say(f"{line}; its responses are withheld\n{_trace(e)}")
    self.metrics.response("content_filter" if rule else str(ended), response)
    if rule:
      self.metrics.refusals.labels(rule).inc()
      response.refuse()

  def _remember(self, name: str, prompts: Sequence[Any], run: Run) -> None:
    texts = [x.text for x in run.responses]
    self._ratings.remember(name, feedback.Answer(prompts, texts))

  def _stream(
      self,
      run: Run,
      reply: choices.Reply,
      body: protocol.Streamed,
      texts: list[str],
      prompts: Sequence[Any],
  ) -> Reply:
    """Server-sent events: text as it comes; with rules, at its end."""

    async def events() -> AsyncIterator[str]:
      for opening in reply.opening(len(run.responses)):
        yield _event(opening)
      sent = [0] * len(run.responses)  # tokens
      try:
        async for index in run.changes(None):
          response = run.responses[index]
          if self._rules and not response.finish:
            continue
          if response.finish:
            await self._screen(texts[index // run.n], response)
          text, first = response.take(), sent[index]
          if not (text or response.finish):
            continue
          sent[index] = len(response.ids)
          listed = choices.sampled(self._tok, response, first)
          yield _event(reply.chunk(index, text, listed, response.finish))
      except ApiError as e:
        yield _event(e.body)
        return
      if not run.responses or all(x.finish for x in run.responses):
        self._time(run)
        self._remember(reply.id, prompts, run)
      if body.stream_options.include_usage:
        yield _event(reply.body([]) | dict(usage=run.usage))
      yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def app(server: Server, *, key: str, max_body: int) -> Guard:
  """The ASGI application.

  Args:
    server: answers.
    key: that clients have to give; '' for none.
    max_body: bytes of a request.
  """
  s = server
  answers = (
      *(s.health, s.show_metrics, s.models, s.feedback),
      *(s.completions, s.chat, s.generate),
  )
  routes = [
      Route(path, answer, methods=["GET" if number < 3 else "POST"])
      for number, (path, answer) in enumerate(zip(ROUTES, answers, strict=True))
  ]
  handlers: dict[Any, Any] = {
      ApiError: lambda _, e: e.reply(),
      Closed: lambda *_: ApiError(503, "the server is stopping").reply(),
      404: lambda r, _: ApiError(404, f"no route {r.url.path}").reply(),
      405: lambda r, _: ApiError(405, f"not with {r.method}").reply(),
      500: lambda *_: ApiError(500, "an error of the server").reply(),
  }
  inner = Starlette(routes=routes, exception_handlers=handlers)
  return Guard(inner, key=key, max_body=max_body, metrics=server.metrics)


async def _parse(request: Request, kind: type[protocol.Body]) -> Any:
  """The body of a request.

  Raises:
    ApiError: it is no JSON, or a field is wrong; says which.
  """
  try:
    return kind.model_validate_json(await request.body())
  except pydantic.ValidationError as e:
    first = e.errors(include_url=False, include_input=False)[0]
    param = ".".join(map(str, first["loc"]))
    message = first["msg"]
    if first["type"] == "extra_forbidden":
      message = "is not supported by this server"
    raise ApiError(
        400, f"{param}: {message}" if param else message, param=param or None
    ) from None


def _event(body: dict) -> str:
  return f"data: {json.dumps(body)}\n\n"


def _trace(e: BaseException) -> str:
  return "".join(traceback.format_exception(e)).rstrip()
