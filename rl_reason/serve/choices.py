"""Answers in OpenAI's form: completions and chats, whole or in chunks."""

import abc
import functools
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_reason.data import tokenizer
from rl_reason.serve.engine import Scores
from rl_reason.serve.responses import Response


class Token(NamedTuple):
  """A token of an answer.

  Attributes:
    text: text that the token adds; for a stop token, its name.
    logp: log-prob; None for the first token of a prompt.
    top: alternatives and their log-probs, including the token itself.
  """

  text: str
  logp: float | None
  top: dict[str, float] | None = None


def sampled(tok: Any, response: Response, first: int = 0) -> list[Token]:
  """The tokens of a response from index `first`, without alternatives."""
  text = tokenizer.Detokenizer(tok).text
  ids, pieces = response.ids[first:], response.pieces[first:]
  names = [p or text([i]) for i, p in zip(ids, pieces, strict=True)]
  return list(map(Token, names, response.logps[first:]))


def tokens(
    tok: Any,
    prompt: Sequence[int],
    response: Response,
    scores: Scores | None,
    alternatives: int,
    echo: bool = False,
) -> list[Token]:
  """The tokens of a response, after the tokens of its prompt if `echo`.

  Args:
    tok: the tokenizer.
    prompt: ids of the prompt.
    response: has the log-probs of the sampler.
    scores: scores of prompt and response; needed for echo and alternatives.
    alternatives: number of most likely tokens to list.
    echo: whether to list the prompt.
  """
  text = tokenizer.Detokenizer(tok).text
  out = sampled(tok, response)
  if echo:
    logps = [] if scores is None else scores.logps_L.tolist()
    known = [None, *logps[: len(prompt) - 1]]
    out = [*map(Token, tokenizer.pieces(tok, prompt), known), *out]
  if not alternatives:
    return out
  names = functools.cache(lambda token: text([token]))
  first = 0 if echo else len(prompt)
  for number, token in enumerate(out):
    at = first + number - 1  # the position that predicts this token
    if scores is None or at < 0:
      continue
    # Two ids may have the same text: the more likely one comes last and is
    # kept.
    best = range(min(alternatives, scores.top_ids_LK.shape[1]))
    top = {
        names(int(scores.top_ids_LK[at, k])): float(scores.top_logps_LK[at, k])
        for k in reversed(best)
    }
    if token.logp is not None:
      top[token.text] = token.logp
    out[number] = token._replace(top=top)
  return out


class Reply(abc.ABC):
  """The answers of a route; subclasses define their form."""

  object = chunk_object = prefix = ""

  def __init__(self, model: str, wants_logprobs: bool):
    self.id = f"{self.prefix}-{secrets.token_hex(12)}"
    self._model, self._created = model, int(time.time())
    self._wants_logprobs = wants_logprobs

  def body(self, choices: list[dict]) -> dict[str, Any]:
    """A whole answer."""
    return self._with(self.object, choices)

  def chunk(
      self,
      index: int,
      text: str,
      listed: list[Token],
      finish: str | None,
      at: int = 0,
  ) -> dict[str, Any]:
    """A stream event: new text of one response.

    `at` is the number of characters of its tokens in earlier events.
    """
    choice = self._part(index, text) | dict(finish_reason=finish)
    shown = listed if self._wants_logprobs else None
    choice["logprobs"] = self.logprobs(shown, at)
    return self._with(self.chunk_object, [choice])

  def last(self, usage: dict[str, int]) -> dict[str, Any]:
    """The stream event with the token counts, after all text."""
    return self._with(self.chunk_object, []) | dict(usage=usage)

  def opening(self, count: int) -> list[dict]:
    """Events before the first text of `count` responses."""
    del count
    return []

  def choice(
      self,
      index: int,
      text: str,
      listed: list[Token] | None,
      finish: str | None,
  ) -> dict[str, Any]:
    """One response of a whole answer."""
    return self._whole(index, text) | dict(
        logprobs=self.logprobs(listed), finish_reason=finish
    )

  @abc.abstractmethod
  def logprobs(self, listed: list[Token] | None, at: int = 0) -> Any:
    """Log-probs in the form of the route; offsets begin at `at`."""

  @abc.abstractmethod
  def _whole(self, index: int, text: str) -> dict[str, Any]:
    """A choice of a whole answer, without log-probs and finish reason."""

  @abc.abstractmethod
  def _part(self, index: int, text: str) -> dict[str, Any]:
    """A choice of a stream, without log-probs and finish reason."""

  def _with(self, kind: str, choices: list[dict]) -> dict[str, Any]:
    return dict(
        id=self.id,
        object=kind,
        created=self._created,
        model=self._model,
        choices=choices,
    )


class Completions(Reply):
  """/v1/completions."""

  object = chunk_object = "text_completion"
  prefix = "cmpl"

  def _whole(self, index: int, text: str) -> dict[str, Any]:
    return dict(index=index, text=text)

  _part = _whole

  def logprobs(self, listed: list[Token] | None, at: int = 0) -> Any:
    """Lists of texts, log-probs, alternatives and offsets."""
    if listed is None:
      return None
    offsets = []
    for token in listed:
      offsets.append(at)
      at += len(token.text)
    return dict(
        tokens=[x.text for x in listed],
        token_logprobs=[x.logp for x in listed],
        top_logprobs=[x.top for x in listed],
        text_offset=offsets,
    )


class Chats(Reply):
  """/v1/chat/completions."""

  object, chunk_object = "chat.completion", "chat.completion.chunk"
  prefix = "chatcmpl"

  def _whole(self, index: int, text: str) -> dict[str, Any]:
    return dict(index=index, message=dict(role="assistant", content=text))

  def _part(self, index: int, text: str) -> dict[str, Any]:
    return dict(index=index, delta=dict(content=text))

  def opening(self, count: int) -> list[dict]:
    """The role of each response."""
    delta = dict(role="assistant", content="")
    return [
        self._with(
            self.chunk_object, [dict(index=n, delta=delta, finish_reason=None)]
        )
        for n in range(count)
    ]

  def logprobs(self, listed: list[Token] | None, at: int = 0) -> Any:
    """One object per token."""
    del at
    if listed is None:
      return None

    def one(text: str, logp: float | None) -> dict[str, Any]:
      return dict(token=text, logprob=logp, bytes=list(text.encode()))

    return dict(
        content=[
            one(x.text, x.logp)
            | dict(
                top_logprobs=[
                    one(*pair)
                    for pair in sorted(
                        (x.top or {}).items(), key=lambda p: -p[1]
                    )
                ]
            )
            for x in listed
        ]
    )
