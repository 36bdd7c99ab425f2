"""Log-probs of given tokens from a server: a teacher that runs elsewhere.

The server speaks OpenAI's /v1/completions, as vLLM and --stage=serve do: `echo`
with `logprobs` returns the log-prob of each token of the prompt, which here is
a prompt with its response. The log-probs are of the softmax at temperature 1.
"""

import concurrent.futures
import os
import reprlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from rl_reason.base import errors, servers
from rl_reason.base.errors import ConfigError, RunError

PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts
GONE = (408, 425, 429, 500, 502, 503, 504)  # worth another attempt
MOST = 1 << 40  # tokens of a model's context
MODELS, NAME = 8, 80  # names that an error shows, and their characters
CLOSE = 0.1  # nats, mean difference of log-probs of the same tokens


class Scorer:
  """A client of one server.

  Args:
    url: of the server, with or without /v1.
    model: its name there; '' for the only one.
    parallel: requests at a time.
    seconds: deadline of a request and its whole answer.
    patience: seconds that the server may fail before an error.
    key_env: environment variable with the key; '' for none.
    say: shows a line.
    pause: seconds before the second attempt; each next pause is twice as long.

  Raises:
    ConfigError: the variable is not set, or the server has several models.
    RunError: the server does not answer.
  """

  def __init__(
      self,
      url: str,
      *,
      model: str,
      parallel: int,
      seconds: float,
      patience: float,
      key_env: str,
      say: Callable[[str], None],
      pause: float = PAUSE,
  ):
    self._url = url.rstrip("/").removesuffix("/v1")
    self._parallel, self._seconds = parallel, seconds
    self._patience, self._pause, self._say = patience, pause, say
    self._gone = False  # one line for all requests that wait
    self._headers = {"Content-Type": "application/json"}
    if key_env:
      if not (key := os.environ.get(key_env, "").strip()):
        raise ConfigError(
            f"kl.server.key_env = {key_env!r}: this environment variable is not"
            " set; export it with the key of the server, or leave the field"
            " empty"
        )
      self._headers["Authorization"] = f"Bearer {key}"
    answer = self._ask("v1/models", None, "before RL")
    try:
      cards = servers.get(answer, "data")
      found = {servers.get(x, "id"): x for x in cards if isinstance(x, dict)}
      servers.texts([*found])
    except (servers.Fault, TypeError) as e:
      raise ConfigError(
          f"kl.reference = {self._url!r}: /v1/models is not of OpenAI's form"
          f" ({errors.one_line(e)}): give the address of vLLM or --stage=serve"
      ) from None
    if model not in found and (model or len(found) != 1):
      more = f" and {len(found) - MODELS:,} more" * (len(found) > MODELS)
      names = [x[:NAME] for x in [*found][:MODELS]]
      raise ConfigError(
          f"kl.server.model = {model!r}: {self._url} has"
          f" {', '.join(names) or 'none'}{more}: name one"
      )
    self.model = model or next(iter(found))
    card = found[self.model]
    # vLLM counts one sampled token in the length of a request.
    self.longest = _length(card, "max_prompt_len", 0) or _length(
        card, "max_model_len", 1
    )

  def logps(
      self, prompts: Sequence[Any], when: str
  ) -> list[tuple[list[str], list[float]]]:
    """The tokens of each prompt and their log-probs; the first one has none.

    Args:
      prompts: token ids, or texts, which the server tokenizes.
      when: names the step, for errors.

    Raises:
      RunError: the server has failed for `patience` seconds, refuses a request,
        or returns other numbers than asked for.
    """
    pool = concurrent.futures.ThreadPoolExecutor(self._parallel)
    try:
      return list(pool.map(lambda x: self._score(x, when), prompts))
    finally:  # after a request has failed, the others are not waited for
      pool.shutdown(wait=False, cancel_futures=True)

  def _score(self, prompt: Any, when: str) -> tuple[list[str], list[float]]:
    body = dict(
        model=self.model,
        prompt=prompt,
        max_tokens=1,  # vLLM takes no 0
        temperature=1.0,
        logprobs=0,
        echo=True,
        add_special_tokens=False,
    )
    answer = self._ask("v1/completions", body, when)
    try:
      found = servers.get(servers.choice(answer), "logprobs")
      # The last token is the sampled one.
      tokens = servers.texts(servers.get(found, "tokens"))[:-1]
      logps = servers.get(found, "token_logprobs")
      if isinstance(logps, list) and logps[:1] not in ([], [None], [0]):
        raise servers.Fault(
            f"the first token has the log-prob {reprlib.repr(logps[0])}, and"
            " nothing stands before it"
        )
      logps = servers.log_probs(logps[1:-1] if isinstance(logps, list) else 0)
    except servers.Fault as e:
      raise RunError(
          f"kl.reference: {self._url} returns no log-probs of the prompt,"
          f" {when}: {e}; it needs a server whose /v1/completions has `echo`"
          " with `logprobs`, as vLLM and --stage=serve have, and a model whose"
          " log-probs are finite"
      ) from None
    wanted = len(tokens) if isinstance(prompt, str) else len(prompt)
    if not len(tokens) == len(logps) + 1 == wanted:
      raise RunError(
          f"kl.reference: {self._url} returns {len(logps) + 1} tokens for a"
          f" prompt of {wanted}, {when}: the server has another tokenizer, or"
          " adds tokens: use a teacher with the tokenizer of the policy"
      )
    return tokens, logps

  def _ask(self, path: str, body: Any, when: str) -> Any:
    """One answer; tries again while the server is gone."""
    ends, pause = time.monotonic() + self._patience, self._pause
    while True:
      try:
        answer, self._gone = self._send(path, body), False
        return answer
      except servers.Refused as e:
        fault, again = str(e), e.status in GONE
      except servers.Fault as e:
        fault, again = str(e), False
      except OSError as e:
        fault, again = errors.one_line(e), True
      where = f"kl.reference: {self._url}/{path}, {when}: {fault}"
      if not again:
        raise RunError(
            f"{where}; the server refuses the request, or is another one:"
            " correct kl.reference, kl.server.* or the options of the server"
        )
      if time.monotonic() + pause > ends:
        raise RunError(
            f"{where}; no answer for kl.server.patience = {self._patience:g} s:"
            " start the server again, and the same command resumes the run from"
            " its newest checkpoint, also with another URL"
        )
      if not self._gone:
        self._gone = True
        self._say(f"{where}; trying again")
      time.sleep(pause)
      pause = min(2 * pause, LONGEST_PAUSE)

  def _send(self, path: str, body: Any) -> Any:
    return servers.ask(
        f"{self._url}/{path}",
        body,
        headers=self._headers,
        seconds=self._seconds,
        tokens=0 if body is None else len(body["prompt"]) + 1,
    )


def _length(card: dict[str, Any], name: str, less: int) -> int | None:
  """A length that the card of a model has, minus `less`; None without."""
  if card.get(name) is None:
    return None
  try:
    return servers.index(card[name], MOST) - less or None
  except servers.Fault as e:
    raise ConfigError(
        f"kl.reference: the server's model has {name} = {card[name]!r:.80}"
        f" ({e}): use vLLM or --stage=serve"
    ) from None


def check_tokenizer(
    scorer: Scorer,
    texts: Sequence[str],
    encode: Callable[[list[str]], list[list[int]]],
) -> str:
  """How the server's tokenizer differs from this one; '' if it does not.

  Each text is scored twice, as text that the server tokenizes, and as the ids
  of this tokenizer. Only with the same tokens are the log-probs the same.
  """
  when = "before RL"
  ids = encode(list(texts))
  both = (scorer.logps(x, when) for x in (list(texts), ids))
  for text, row, theirs, ours in zip(texts, ids, *both, strict=True):
    shown = f"of {text[:60]!r}"
    if len(theirs[0]) != len(row):
      return (
          f"the server makes {len(theirs[0])} tokens {shown}, and the policy"
          f" {len(row)}"
      )
    gaps = [abs(x - y) for x, y in zip(theirs[1], ours[1], strict=True)]
    if gaps and sum(gaps) / len(gaps) > CLOSE:
      return (
          f"the log-probs {shown} differ by {sum(gaps) / len(gaps):.2g} nats"
          " between the server's own tokens and the policy's"
      )
  return ""
