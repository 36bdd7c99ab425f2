"""Stateless sampling with a key/value cache: same arguments, same tokens.

Prompts are prefilled, and their responses wait in a queue. `decode_loop`
decodes as many of them at a time as there are slots, so a few long responses do
not hold up the others. The noise of a token depends on (key, prompt id, sample,
position in the response) alone, not on slots, order, padding or devices.

Shapes here: N prompts; R rows of the queue, one response each; B decode slots;
W data shards, each with a queue and slots of its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array, Prompts, Rollouts, Tree
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce, Display
from rl_reason.models import attention, checksums, decoder, experts, parameters
from rl_reason.rollout import continuation, decode_loop, sampler_weights
from rl_reason.rollout.decode_loop import Queue, Slots
from rl_reason.rollout.sampling_filters import Filters

YIELD_SHARE = 1 / 8  # `stream` yields after this share of the rows has ended


class Sampled(NamedTuple):
  """The responses so far: an item of `stream`, which a later call can continue.

  Attributes:
    rollouts: N * G rows; rows of a prompt are adjacent.
    ended_B: bool, whether each response is complete.
    cache: keys and values of all rows, in the last item of a stream with
      `keep_cache`. A call that continues the rows consumes the cache (its
      buffers are donated) and reads only new tokens. None: it reads all tokens.
    held: returns the engine's answer about the weights that sampled; to be
      called before the next item. One item of an engine's stream has it.
  """

  rollouts: Rollouts
  ended_B: Array
  cache: continuation.RowCache | None = None
  held: Callable[[], checksums.Answer] | None = None

  def with_arrays(self, move: Callable[[Tree], Tree]) -> "Sampled":
    """Moves rollouts and ended_B, for instance to the host; not the cache."""
    rollouts, ended_B = move((self.rollouts, self.ended_B))
    return self._replace(rollouts=rollouts, ended_B=ended_B)


@dataclasses.dataclass(frozen=True)
class Sampler:
  """The device programs of `stream`, with their static arguments.

  Attributes:
    cfg: of the model.
    group_size: G.
    max_tokens: T, the longest response, EOS included.
    eos: token(s) that end a response and stay in it, or a `StopStrings`.
    pad: token that fills the rest of a row.
    filters: top-k, top-p and others; log-probs are those BEFORE the filters.
    slots: rows that decode at a time (vLLM's max_num_seqs); 0: all rows.
    least: slots of a data shard; `stream` does not halve them further.
    equal_groups: whether all groups have G rows.
    cache: dtype of keys and values: 'same' (the model's) or 'int8'.
    record: `Recorder.record`, of what rollouts record; None: nothing.
    keep_cache: whether a later call may continue in the cache.
  """

  cfg: decoder.ModelConfig
  group_size: int
  max_tokens: int
  eos: Any
  pad: int
  filters: Filters | None = None
  slots: int = 0
  least: int = 4
  equal_groups: bool = True
  cache: str = "same"
  record: Callable[..., Tree] | None = None
  keep_cache: bool = False

  def start(
      self,
      params: Tree,
      prompts: Prompts,
      key: Array,
      temperature: Array | float,
      sizes_N: Array | None,
      limits_R: Array | int,
      expected_R: Array | float,
      resumed: tuple[Rollouts, Array] | None = None,
      row_cache: continuation.RowCache | None = None,
  ) -> tuple[Queue, Slots]:
    """Prefills the prompts; all rows wait in the queue, except resumed ones."""
    cfg = self.cfg
    shards = sharding.num_shards(jax.sharding.get_abstract_mesh(), "batch")
    count, width = prompts.tokens_NP.shape
    rows = count * self.group_size
    slots = min(self.slots or rows, rows)

    # Prefill. Padding moves to the right, so that a token's position is its
    # slot.
    index_NP = (jnp.arange(width) + prompts.start_N[:, None]) % width
    tokens_NP = jnp.take_along_axis(prompts.tokens_NP, index_NP, 1)
    length_N = width - prompts.start_N
    at_NP = jnp.broadcast_to(jnp.arange(width), tokens_NP.shape)
    segments_NP = (at_NP < length_N[:, None]).astype(jnp.int32)
    hidden_NPD, filled, routing = decoder.forward(
        params,
        cfg,
        tokens_NP,
        at_NP,
        attention.prefill(segments_NP),
        decoder.empty_cache(cfg, count, width, self.cache),
    )
    hidden_ND = hidden_NPD[jnp.arange(count), length_N - 1]

    # With equal groups, a data shard has the prompts of its rows and numbers
    # them from 0. Otherwise each shard has all prompts.
    first_R = 0
    if sizes_N is None:
      sizes_N = np.full(count, self.group_size)
      first_R = jnp.arange(rows) // (rows // shards) * (count // shards)

    def per_row(x_N):
      return jnp.repeat(x_N, sizes_N, total_repeat_length=rows)

    # Noise is a function of (key, prompt id, number of the sample).
    prompt_R = per_row(jnp.arange(count))
    sample_R = jnp.arange(rows) - per_row(jnp.cumsum(sizes_N) - sizes_N)
    fold = jax.vmap(jax.random.fold_in, (0, 0))
    key_R = fold(
        fold(jnp.repeat(key[None], rows), prompts.ids_N[prompt_R]), sample_R
    )
    temperature = jnp.asarray(temperature, jnp.float32)
    limits_R = jnp.clip(jnp.full(rows, limits_R), 1, self.max_tokens)
    # Long responses start first, so that none decodes alone at the end.
    expected_R = jnp.full(rows, expected_R)
    order_WR = jnp.argsort(-expected_R.reshape(shards, -1), stable=True)

    integers = functools.partial(jnp.full, dtype=jnp.int32)
    queue = Queue(
        cache=filled,
        hidden_ND=hidden_ND,
        length_N=length_N,
        prompt_R=prompt_R - first_R,
        order_R=order_WR.reshape(-1),
        key_R=jax.random.key_data(key_R),
        temperature_R=jnp.resize(temperature, (self.group_size,))[sample_R],
        limit_R=limits_R,
        tokens_RT=integers((rows, self.max_tokens), self.pad),
        logps_RT=jnp.zeros((rows, self.max_tokens)),
        lengths_R=integers(rows, 0),
        truncated_R=jnp.ones(rows, bool),
        ended_R=jnp.zeros(rows, bool),
        end_W=integers(shards, rows // shards),
        next_W=integers(shards, 0),
    )
    if self.filters is not None and self.filters.reads_tokens:
      queue = queue.replace(prompts_NP=tokens_NP)
    if self.record is not None:
      record_NP = self.record(routing, cfg, tokens_NP.shape)
      shape = rows, self.max_tokens
      queue = queue.replace(
          record_NP=jax.tree.map(
              lambda x: jnp.where(segments_NP[..., None] > 0, x, -1), record_NP
          ),
          record_RT=jax.tree.map(
              lambda x: jnp.full((*shape, *x.shape[2:]), -1, x.dtype), record_NP
          ),
      )
    length = width + self.max_tokens + continuation.CHUNK * self.keep_cache
    empty = Slots(
        cache=decoder.empty_cache(
            cfg, slots, attention.cache_slots(length), self.cache
        ),
        hidden_BD=jnp.zeros((slots, cfg.width), hidden_ND.dtype),
        row_B=integers(slots, rows // shards),
        t_B=integers(slots, 0),
        position_B=integers(slots, -1),
    )
    if resumed is None:
      return self.constrain(queue, empty)
    return continuation.resume(
        self, params, tokens_NP, queue, empty, resumed, expected_R, row_cache
    )

  def specs(self) -> tuple[Queue, Slots]:
    """PartitionSpecs of queue and slots over data shards."""
    queue = decode_loop.specs(Queue, self._replicated())
    return queue, decode_loop.specs(Slots)

  def constrain(self, queue: Queue, slots: Slots) -> tuple[Queue, Slots]:
    """Constrains queue and slots to the mesh."""
    queue = decode_loop.constrain(queue, self._replicated())
    return queue, decode_loop.constrain(slots)

  def _replicated(self) -> tuple[str, ...]:
    """Fields of the queue that are replicated over data shards."""
    prompts = "cache", "hidden_ND", "length_N", "record_NP", "prompts_NP"
    return () if self.equal_groups else prompts

  def decode(
      self, params: Tree, queue: Queue, slots: Slots
  ) -> tuple[Queue, Slots, Array]:
    """Runs CHUNK bursts of decode steps, or fewer if all rows end before.

    Each data shard runs its own loop; shards do not wait for each other.

    Returns:
      queue and slots (the arguments may be donated), and the largest number
      of unfinished rows in a shard.
    """
    fn = functools.partial(
        decode_loop.decode,
        cfg=self.cfg,
        eos=self.eos,
        filters=self.filters,
        record=self.record,
    )
    replicated, rows = sharding.spec(), sharding.spec("batch")
    state = self.specs()
    run = sharding.by_batch_shard(fn, (replicated, *state), (*state, rows))
    queue, slots, unfinished_W = run(params, queue, slots)
    return queue, slots, unfinished_W.max()

  def shrink(self, slots: Slots) -> Slots:
    """Halves the slots; at most half of them may be occupied."""
    specs = decode_loop.specs(Slots)
    run = sharding.by_batch_shard(decode_loop.shrink, (specs,), specs)
    return run(slots)

  def finish(
      self, prompts: Prompts, sizes_N: Array | None, queue: Queue
  ) -> tuple[Rollouts, Array]:
    """The responses so far, and whether each has ended."""
    rows = len(queue.lengths_R)
    sizes = self.group_size if sizes_N is None else sizes_N

    def per_row(x_N):
      return jnp.repeat(x_N, sizes, 0, total_repeat_length=rows)

    def whole_rows(x_NP, x_RT):
      """Rows [R, L, ...], with the padding back on the left of prompts."""
      width = x_NP.shape[1]
      index_NP = (jnp.arange(width) - prompts.start_N[:, None]) % width
      x_NP = jnp.take_along_axis(x_NP, index_NP[..., None], 1)
      return jnp.concatenate([per_row(x_NP), x_RT], 1)

    rollouts = Rollouts(
        tokens_BL=jnp.concatenate(
            [per_row(prompts.tokens_NP), queue.tokens_RT], 1
        ),
        start_B=per_row(prompts.start_N),
        ids_B=per_row(prompts.ids_N),
        mask_BT=jnp.arange(self.max_tokens) < queue.lengths_R[:, None],
        logps_BT=queue.logps_RT,
        lengths_B=queue.lengths_R,
        truncated_B=queue.truncated_R,
        record=jax.tree.map(whole_rows, queue.record_NP, queue.record_RT),
    )
    return jax.tree.map(
        lambda x: sharding.constrain(x, "batch", *(None,) * (x.ndim - 1)),
        (rollouts, queue.ended_R),
    )


@functools.cache
def program(sampler: Sampler, name: str, _) -> Callable:
  """Jits a method of a sampler; the last argument is a key of the cache."""
  donated = {"decode": (1, 2), "start": (8,)}.get(name, ())
  return jax.jit(getattr(sampler, name), donate_argnums=donated)


def stream(
    params: Tree,
    prompts: Prompts,
    key: Array,
    temperature: Array | float = 1.0,
    sizes_N: Array | None = None,
    limits_B: Array | int = 2**31 - 1,
    expected_B: Array | float = 0.0,
    resumed: Sampled | None = None,
    *,
    keep_cache: bool = False,
    program: Callable[[Sampler, str, Any], Callable] = program,
    on_dispatch: Callable[[], None] = lambda: None,
    **static: Any,
) -> Iterator[Sampled]:
  """Samples G responses to each of N prompts, and yields them as they end.

  Each prompt is prefilled once, and its cache is copied to the slots of its G
  samples. The host reads a count of each device call, one call late, so the
  device never waits for the host.

  Args:
    params: of the model; replicated over data shards, else each call gathers
      them.
    prompts: N prompts of P slots.
    key: seeds all noise, together with `prompts.ids_N`.
    temperature: scalar or [G], one for each sample; 0 is greedy, with log-probs
      at temperature 1.
    sizes_N: int, responses to each prompt, N * G in all; None: G to each.
      Requires a scalar temperature.
    limits_B: int, maximum tokens of each response, at least 1.
    expected_B: expected length of each response; long ones start first. Changes
      no token.
    resumed: responses to continue, an item of an earlier stream. Their
      policy may be another one; with a cache it must be the same.
    keep_cache: whether the last item has the cache; ignored with `slots` or
      `record`.
    program: (sampler, name of a method, key of its shapes) -> the method,
      compiled.
    on_dispatch: called as soon as the device has work, and again while it
      decodes, after each of its calls; may raise.
    **static: fields of `Sampler`.

  Yields:
    all responses so far, each time about another `YIELD_SHARE` of the rows has
    ended, while the device decodes the others; at last all rows, complete.
  """
  keep_cache &= not (static.get("slots") or static.get("record"))
  sampler = Sampler(
      **static, equal_groups=sizes_N is None, keep_cache=keep_cache
  )
  count = len(prompts.start_N)
  rows = count * sampler.group_size
  so_far = resumed and resumed[:2]
  row_cache = resumed and resumed.cache
  shape = count, jnp.ndim(temperature), so_far is None, row_cache is None
  start = program(sampler, "start", shape)
  finish = program(sampler, "finish", count)
  rest = sizes_N, limits_B, expected_B, so_far, row_cache
  queue, slots = start(params, prompts, key, temperature, *rest)
  shards, size = len(queue.next_W), len(slots.row_B)
  counts = last_counts = part = None
  yielded = 0
  while True:
    # Read the count of the call before the last. The last call still runs, so
    # the device has work while the host decides.
    if counts is not None:
      unfinished = int(jax.device_get(counts))
      on_dispatch()
      if not unfinished:
        break
      # Halve the slots once the queue is empty: steps get cheaper.
      occupied = unfinished * shards
      least = sampler.least * shards
      while sampler.slots and 2 * occupied <= size >= 2 * least:
        slots = program(sampler, "shrink", size)(slots)
        size //= 2
      # Snapshot the responses before `decode` donates the queue.
      ended = rows - occupied
      if ended - yielded >= YIELD_SHARE * rows:
        part, yielded = Sampled(*finish(prompts, sizes_N, queue)), ended
    # Decode before the yield: device and consumer then work at the same time.
    decode = program(sampler, "decode", (count, size))
    queue, slots, new_counts = decode(params, queue, slots)
    if last_counts is None:
      on_dispatch()
    if part is not None:
      yield part
    counts, last_counts, part = last_counts, new_counts, None
  kept = slots.cache, queue.order_R, queue.lengths_R
  row_cache = continuation.RowCache(*kept) if keep_cache else None
  yield Sampled(*finish(prompts, sizes_N, queue))._replace(cache=row_cache)


def sample(*args: Any, **kwargs: Any) -> Rollouts:
  """All responses, complete: the last item of `stream`."""
  *_, sampled = stream(*args, **kwargs)
  return sampled.rollouts


class RolloutEngine:
  """Samples responses with any parameters of one model.

  Args:
    cfg: static shape of the model.
    mesh: devices that sample.
    display: where compile times are reported.
    **static: further fields of `Sampler` that all calls share.

  Attributes:
    mesh: the devices.
  """

  def __init__(
      self,
      cfg: decoder.ModelConfig,
      mesh: jax.sharding.Mesh,
      *,
      display: Display,
      **static: Any,
  ):
    self._cfg, self.mesh, self._display = cfg, mesh, display
    self._static = static
    self._programs: dict = {}

  def takes_parameters(self, kind: str) -> bool:
    """Whether the sampler reads the parameters themselves, without a copy."""
    axes = "embed", experts.AXIS
    whole = all(sharding.num_shards(self.mesh, axis) == 1 for axis in axes)
    return whole and kind == "same" and self._cfg.dtype == "float32"

  def weights(self, params: Tree, kind: str = "same") -> Tree:
    """The `sampler_weights` of a policy; kind: 'same', 'bfloat16', 'int8'."""
    if self.takes_parameters(kind):
      return params
    signature = kind, _signature(params)
    if signature not in self._programs:
      make = functools.partial(
          sampler_weights.make, cfg=self._cfg, weights=kind
      )
      table = sampler_weights.table(self._cfg, kind, params)
      fn = jax.jit(make, out_shardings=parameters.shardings(table, self.mesh))
      self._programs[signature] = CompiledOnce(
          "sampler weights", fn, self._display
      )
    return self._programs[signature](params)

  def stream(
      self,
      params: Tree,
      prompts: Prompts,
      key: Array,
      temperature: Array,
      sizes_N: Array | None = None,
      *,
      group_size: int,
      limits_B: Array | int = 2**31 - 1,
      expected_B: Array | float = 0.0,
      resumed: Sampled | None = None,
      **options,
  ) -> Iterator[Sampled]:
    """As the function `stream`; the first item has `held`.

    Arrays other than parameters, key and cache are on the host.
    """

    def held() -> checksums.Answer:
      return checksums.Answer(checksums.on_device(params))

    # Arrays of one shape, so that evaluations and training share programs.
    rows = len(prompts.ids_N) * group_size
    limits_B = np.full(rows, limits_B, np.int32)
    expected_B = np.full(rows, expected_B, np.float32)
    if sizes_N is None:
      temperature = np.full(group_size, temperature, np.float32)
    put = functools.partial(sharding.put, self.mesh)  # None stays None
    if resumed is not None:
      resumed = resumed.with_arrays(lambda x: put(x, "batch"))
    parts = stream(
        params,
        put(prompts, "batch"),
        key,
        put(temperature),
        put(sizes_N),
        put(limits_B, "batch"),
        put(expected_B, "batch"),
        resumed=resumed,
        program=functools.partial(self._program, _signature(params)),
        cfg=self._cfg,
        group_size=group_size,
        **self._static | options,
    )
    yield next(parts)._replace(held=held)
    yield from parts

  def sample(self, *args, **options) -> Rollouts:
    """All responses, complete: the last item of `stream`."""
    *_, sampled = self.stream(*args, **options)
    return sampled.rollouts

  def _program(self, signature, static, name: str, shape) -> CompiledOnce:
    kind = signature, static, name, shape
    if kind not in self._programs:
      fn = program(static, name, shape)
      self._programs[kind] = CompiledOnce(f"sampler: {name}", fn, self._display)
    return self._programs[kind]


def _signature(params: Tree):
  """A key that is equal for parameters of one compiled program."""
  return jax.tree.structure(params), *(x.dtype for x in jax.tree.leaves(params))
