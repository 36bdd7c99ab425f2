"""Responses of an external inference engine, sampled with this run's weights.

The engine gets new weights before it samples, in the three calls that vLLM and
tpu-inference share: start, update, finish. Tensors have the names and shapes of
transformers. The engine returns token ids and the log-probs of the sampled
tokens. Its kernels differ from the trainer's, so the ratio of both is not 1.
"""

import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base import servers
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Prompts, Rollouts, Tree
from rl_reason.models import checksums
from rl_reason.rollout.sampler import YIELD_SHARE, Sampled
from rl_reason.rollout.sampling_filters import NONE, Filters


class Request(NamedTuple):
  """A request for one response.

  Attributes:
    prompt: token ids.
    seed: of the noise, below 2^31; the same in every run.
    max_tokens: of the response, including the token that ends it.
    temperature: of sampling.
    top_p: of sampling; 1 is off.
    stop: token ids that end a response.
    top_k, min_p: of sampling; 0 is off.
    repetition_penalty: of the tokens of prompt and response; 1 is off.
  """

  prompt: list[int]
  seed: int
  max_tokens: int
  temperature: float
  top_p: float
  stop: tuple[int, ...]
  top_k: int = 0
  min_p: float = 0.0
  repetition_penalty: float = 1.0


class Completion(NamedTuple):
  """A response.

  Attributes:
    tokens: ids, including the id that ended it.
    logps: of these tokens at the temperature of the request, before filters.
    stopped: whether an id of Request.stop ended it; else it is truncated.
  """

  tokens: list[int]
  logps: list[float]
  stopped: bool


class Held(NamedTuple):
  """An engine's answer about the weights that it samples with.

  Attributes:
    updates: updates of its weights that have ended since its start; None: it
      does not count them.
    crcs: CRC-32 of each tensor, over the bytes that an update sends, by the
      names of transformers; {}: it does not compute them.
  """

  updates: int | None = None
  crcs: Mapping[str, int] = types.MappingProxyType({})


class Engine(Protocol):
  """The interface of an external engine.

  An optional method `held`, without arguments, returns a `Held`. It is called
  before each update and after each round of responses. An optional attribute
  `url` names the engine's server in errors. An optional method `encode` takes a
  tensor and returns it as the engine holds it.
  """

  def start_weight_update(self) -> None:
    """Begins an update; no request is running."""

  def update_weights(self, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Takes all tensors of the model, by the names of transformers."""

  def finish_weight_update(self) -> None:
    """Ends the update; drops caches of older weights before it returns."""

  def generate(
      self, requests: list[Request]
  ) -> Iterable[tuple[int, Completion]]:
    """Yields (index of the request, response) as the responses end."""


class ExternalEngine:
  """Samples with an `Engine`; replaces `sampler.RolloutEngine`.

  Args:
    engine: samples the responses.
    mesh: devices of the trainer.
    names: of all tensors of the model, as the engine knows them.
    tensors: parameters -> (name, array) of all tensors, one at a time.
    eos: tokens that end a response.
    pad: token that fills the rest of a row.
    max_tokens: of a response.
    vocab: number of token ids of the model; by default any id is one.

  Attributes:
    mesh: devices of the trainer.
    answers: whether the engine has the method `held`.
  """

  def __init__(
      self,
      engine: Engine,
      mesh: jax.sharding.Mesh,
      *,
      names: Sequence[str],
      tensors: Callable[[Tree], Iterator[tuple[str, np.ndarray]]],
      eos: int | tuple[int, ...],
      pad: int,
      max_tokens: int,
      vocab: int = 1 << 31,
  ):
    self._engine, self.mesh = engine, mesh
    url = getattr(engine, "url", "")
    self._name = "rollout.engine.name" + (f" ({url})" if url else "")
    self._vocab = vocab
    self._names, self._tensors = names, tensors
    self._stop = (eos,) if isinstance(eos, int) else tuple(eos)
    self._pad, self._max_tokens = pad, max_tokens
    self._sent: list[weakref.ref] = []
    self.answers = callable(getattr(engine, "held", None))
    self._crcs: dict[str, int | None] = {}  # of what was sent
    self._updates: int | None = None  # that the engine should count
    self._older: dict[str, Mapping[str, int | None]] = {}  # of older weights

  def stream(
      self,
      params: Tree,
      prompts: Prompts,
      key: Array,
      temperature: Array | float,
      sizes_N: Array | None = None,
      *,
      group_size: int,
      filters: Filters | None = None,
      on_dispatch: Callable[[], None] = lambda: None,
      **_,
  ) -> Iterator[Sampled]:
    """As `RolloutEngine.stream`, on host arrays; the last item has `held`.

    Raises:
      RunError: a response is missing, or is not one of this model.
    """
    self._send(params)
    requests, prompt_B = self._requests(
        prompts, key, float(temperature), sizes_N, group_size, filters or NONE
    )
    rows, width = len(requests), self._max_tokens
    tokens_BT = np.full((rows, width), self._pad, np.int32)
    logps_BT = np.zeros((rows, width), np.float32)
    lengths_B = np.zeros(rows, np.int32)
    truncated_B, ended_B = np.ones(rows, bool), np.zeros(rows, bool)

    def responses() -> Sampled:
      rollouts = Rollouts(
          tokens_BL=np.concatenate(
              [np.asarray(prompts.tokens_NP)[prompt_B], tokens_BT], 1
          ),
          start_B=np.asarray(prompts.start_N)[prompt_B],
          ids_B=np.asarray(prompts.ids_N)[prompt_B],
          mask_BT=np.arange(width) < lengths_B[:, None],
          logps_BT=logps_BT.copy(),
          lengths_B=lengths_B.copy(),
          truncated_B=truncated_B.copy(),
      )
      return Sampled(rollouts, ended_B.copy())

    on_dispatch()
    yielded = 0
    for answer in self._engine.generate(requests):
      b, completion = self._checked(answer, ended_B)
      length = len(completion.tokens)
      tokens_BT[b, :length] = completion.tokens
      logps_BT[b, :length] = completion.logps
      lengths_B[b], truncated_B[b] = length, not completion.stopped
      ended_B[b] = True
      if ended_B.sum() - yielded >= YIELD_SHARE * rows and not ended_B.all():
        yielded = ended_B.sum()
        yield responses()
    if not ended_B.all():
      raise RunError(
          f"{self._name}: {rows - ended_B.sum()} of {rows} responses are"
          " missing: look at the log of the engine"
      )

    def held() -> checksums.Answer:
      return checksums.Answer(checksums.on_device(params), self._fault())

    yield responses()._replace(held=held)

  def _checked(self, answer: Any, ended_B: np.ndarray) -> tuple:
    """The index and the response of an answer of the engine."""
    where = "an answer"
    try:
      if not (isinstance(answer, tuple) and len(answer) == 2):
        raise servers.Fault("it is not (index of the request, response)")
      b = servers.index(answer[0], len(ended_B))
      where = f"response {b}"
      if ended_B[b]:
        raise servers.Fault("it comes a second time")
      if not isinstance(answer[1], Completion):
        raise servers.Fault(f"it is a {type(answer[1]).__name__}")
      found, width = answer[1], self._max_tokens
      tokens = servers.token_ids(found.tokens, self._vocab)
      logps = servers.log_probs(found.logps)
      if not 0 < len(tokens) <= width or len(logps) != len(tokens):
        raise servers.Fault(
            f"it has {len(tokens)} tokens and {len(logps)} log-probs, and needs"
            f" as many of both, from 1 to rollout.max_tokens = {width}"
        )
      ends = [n for n, x in enumerate(tokens, 1) if x in self._stop]
      if ends and ends[0] < len(tokens):
        raise servers.Fault(
            f"it goes on after the stop token {tokens[ends[0]-1]}"
        )
      if found.stopped and not ends:
        raise servers.Fault(
            f"it stopped at the token {tokens[-1]}, which is none of the stop"
            f" tokens {', '.join(map(str, self._stop))}; vLLM adds those of"
            " generation_config.json unless it runs with --generation-config"
            " vllm"
        )
    except servers.Fault as e:
      raise RunError(
          f"{self._name}: {where}: {e}. Does the engine serve the model of this"
          " run with its tokenizer, and with the options of docs/engines.md?"
          " The same command resumes the run"
      ) from None
    return b, Completion(tokens, logps, bool(ends))

  def _held(self) -> Held:
    held = self._engine.held()  # type: ignore[attr-defined]
    if (
        not isinstance(held, Held)
        or not isinstance(held.updates, int | None)
        or not isinstance(held.crcs, Mapping)
    ):
      raise RunError(
          f"{self._name}: its method `held` returns {held!r:.200}, and must"
          " return an `external.Held`"
      )
    return held

  def _requests(self, prompts, key, temperature, sizes_N, group_size, filters):
    """The requests, and the prompt of each response."""
    count = len(prompts.start_N)
    if sizes_N is None:
      sizes_N = np.full(count, group_size)
    prompt_B = np.repeat(np.arange(count), sizes_N)
    sample_B = np.concatenate([np.arange(n) for n in sizes_N])
    # Seeds are a function of (key, prompt id, number of the sample), as in
    # `sampler`.
    fold = jax.vmap(jax.random.fold_in, (0, 0))
    keys = jnp.repeat(key[None], len(prompt_B))
    keys = fold(fold(keys, np.asarray(prompts.ids_N)[prompt_B]), sample_B)
    seeds_B = np.asarray(jax.vmap(jax.random.bits)(keys)) >> 1
    texts = [
        row[start:].tolist()
        for row, start in zip(
            np.asarray(prompts.tokens_NP), prompts.start_N, strict=True
        )
    ]
    rest = dict(max_tokens=self._max_tokens, temperature=temperature)
    rest |= filters._asdict() | dict(stop=self._stop)
    requests = [
        Request(texts[n], int(seed), **rest)
        for n, seed in zip(prompt_B, seeds_B, strict=True)
    ]
    return requests, prompt_B

  def _send(self, params: Tree) -> None:
    """Updates the weights of the engine, unless it already has them."""
    # Compare all arrays: frozen parameters have the same arrays in each step.
    leaves = jax.tree.leaves(params)
    sent = [x() for x in self._sent]
    if sent and all(x is y for x, y in zip(sent, leaves, strict=True)):
      return
    before = self._held() if self.answers else Held()
    self._updates = None if before.updates is None else before.updates + 1
    self._older.setdefault("before the run's first update", before.crcs)
    self._older["of the update before"] = self._crcs
    if self._crcs:
      self._older.setdefault("of the run's first update", self._crcs)
    self._crcs = dict.fromkeys(self._names)
    self._engine.start_weight_update()
    self._engine.update_weights(self._noted(self._tensors(params)))
    self._engine.finish_weight_update()
    self._sent = [weakref.ref(x) for x in leaves]

  def _noted(self, tensors) -> Iterator[tuple[str, np.ndarray]]:
    """Passes tensors on, and notes the CRC-32 of each tensor taken."""
    encode = getattr(self._engine, "encode", lambda x: x)
    for name, x in tensors:
      x = encode(x)
      self._crcs[name] = zlib.crc32(x.view(np.uint8)) if self.answers else 0
      yield name, x

  def _fault(self) -> str:
    """How the engine's weights differ from the update; '' if they do not."""
    left = [name for name, x in self._crcs.items() if x is None]
    if left:
      return f"the engine did not take {_some(left, self._crcs)}"
    if not self.answers:
      return ""
    held = self._held()
    if self._updates not in (None, held.updates):
      return (
          f"the engine counts {held.updates} updates of its weights in place of"
          f" {self._updates}: it was started anew, or missed one"
      )
    other = [k for k, x in self._crcs.items() if held.crcs.get(k) != x]
    if not held.crcs or not other:
      return ""
    whose = [
        f", which are those {name}"
        for name, crcs in self._older.items()
        if all(held.crcs.get(k, None) == crcs.get(k, "") for k in other)
    ]
    some = _some(other, self._crcs)
    return f"the engine holds other numbers in {some}{''.join(whose[:1])}"


def _some(found: list[str], of: Mapping[str, Any]) -> str:
  return f"{len(found)} of {len(of)} tensors ({', '.join(found[:3])})"
