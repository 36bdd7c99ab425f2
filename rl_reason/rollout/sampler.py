"""Stateless sampling with a key/value cache: same arguments, same tokens.

Responses wait in a queue. A fixed number of slots decode together; a slot whose
response has ended takes the next row of the queue, so that a few long responses
do not keep the others waiting. A token's noise depends on (key, prompt id,
sample, position in the response) and on nothing else: not on slots, order,
padding or devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rl_reason.models import attention, decoder
from rl_reason.scale import sharding
from rl_reason.structs import Array, Prompts, Rollouts, Tree

BURST = 8  # decode steps between two looks at the queue
CHUNK = 2  # bursts of one program; the host looks at it while the next runs
VOCAB_BLOCK = 512  # tokens of a block, when one is drawn
SHARE = 1 / 8  # of all rows: so many more have ended when `stream` tells
LEAST = 4  # slots of a data shard that are not halved any more


def choose(logits_BV: Array, uniform_B: Array, top_p: float) -> Array:
  """Inverse-CDF sampling: one uniform number decides one token.

  Args:
    logits_BV: float32, temperature already applied.
    uniform_B: in [0, 1).
    top_p: > 0, keep the smallest set of likeliest tokens with this mass; the
      likeliest token is always in it.

  Returns:
    [B] int32.
  """
  probs_BV = jax.nn.softmax(logits_BV, -1)
  if top_p < 1:
    probs_BV = _nucleus(probs_BV, top_p)
  return _invert(probs_BV, uniform_B)


def _nucleus(probs_BV: Array, top_p: float) -> Array:
  """Probabilities without those of tokens that top-p leaves out; [B, V].

  A token stays if all likelier ones have less mass than top_p. Where that ends
  is found by bisection over the bits of a probability, which are in its order:
  sums over a vocabulary are quicker than a sort of it.
  """
  bits_BV = jax.lax.bitcast_convert_type(probs_BV, jnp.int32)

  def halve(_, ends):
    low_B, high_B = ends
    middle_B = (low_B + high_B) // 2
    likelier_BV = jnp.where(bits_BV > middle_B[:, None], probs_BV, 0)
    few_B = likelier_BV.sum(-1) < top_p
    low_B = jnp.where(few_B, low_B, middle_B)
    return low_B, jnp.where(few_B, middle_B, high_B)

  one = jnp.full(len(probs_BV), 0x3F800000, jnp.int32)  # the bits of 1.0
  _, least_B = jax.lax.fori_loop(0, 30, halve, (jnp.full_like(one, -1), one))
  return jnp.where(bits_BV >= least_B[:, None], probs_BV, 0)


def _invert(probs_BV: Array, uniform_B: Array) -> Array:
  """The token whose part of the CDF a number falls into: [B].

  First a block of tokens by the sums of blocks, then a token in it: a running
  sum over a whole vocabulary takes a dozen passes over it.
  """
  rows, vocab = probs_BV.shape
  width = min(VOCAB_BLOCK, vocab)
  padded_BV = jnp.pad(probs_BV, ((0, 0), (0, -vocab % width)))
  probs_BNV = padded_BV.reshape(rows, -1, width)
  cdf_BN = jnp.cumsum(probs_BNV.sum(-1), -1)
  point_B1 = uniform_B[:, None] * cdf_BN[:, -1:]
  block_B1 = jnp.sum(cdf_BN <= point_B1, -1, keepdims=True)
  block_B1 = jnp.minimum(block_B1, probs_BNV.shape[1] - 1)
  here_BV = jnp.take_along_axis(probs_BNV, block_B1[..., None], 1)[:, 0]
  sum_B1 = jnp.take_along_axis(cdf_BN, jnp.maximum(block_B1 - 1, 0), 1)
  cdf_BV = jnp.where(block_B1 > 0, sum_B1, 0) + jnp.cumsum(here_BV, -1)
  at_B = jnp.sum(cdf_BV <= point_B1, -1)
  # Rounding may put the point behind the last token there is.
  last_B = jnp.max(jnp.where(here_BV > 0, jnp.arange(width), 0), -1)
  return block_B1[:, 0] * width + jnp.minimum(at_B, last_B)


@struct.dataclass
class Queue:
  """R rows, one response each; those of a prompt are adjacent.

  Attributes:
    cache: of the prompts, prefilled.
    hidden_ND: after the last token of each prompt.
    length_N: tokens of each prompt.
    prompt_R: which of them a row answers.
    order_R: the rows, in the order in which they start.
    key_R: seeds the row's noise.
    heat_R: temperature; 0 is greedy.
    limit_R: the most tokens of the response.
    tokens_RT, logps_RT, lengths_R, truncated_R: the responses so far, as in
      `Rollouts`.
    ended_R: bool, whether that is all of them.
    last_Z: how many rows there are to start; one number a data shard.
    next_Z: how many have started.
  """

  cache: attention.Cache
  hidden_ND: Array
  length_N: Array
  prompt_R: Array
  order_R: Array
  key_R: Array
  heat_R: Array
  limit_R: Array
  tokens_RT: Array
  logps_RT: Array
  lengths_R: Array
  truncated_R: Array
  ended_R: Array
  last_Z: Array
  next_Z: Array


@struct.dataclass
class Slots:
  """B rows under way.

  Attributes:
    cache: prompt and response of each.
    hidden_BD: what the next token is drawn from.
    row_B: of the queue; R if the slot has nothing to do.
    t_B: tokens of the response so far.
    position_B: of the next token; -1 if the slot has nothing to do.
  """

  cache: attention.Cache
  hidden_BD: Array
  row_B: Array
  t_B: Array
  position_B: Array


@dataclasses.dataclass(frozen=True)
class Sampler:
  """The programs of `sample`, and what is static about them.

  Attributes:
    cfg: of the model.
    group_size: G.
    max_tokens: T, the longest response, EOS included.
    eos: the token that ends a response, and stays in it; or several.
    pad: fills the places behind it.
    top_p: nucleus; the log-probs returned are those BEFORE this filter.
    slots: rows that decode together; 0: all of them, to the end.
    even: whether all groups are of G rows.
    cache: 'same', keys and values as the model computes them; or 'int8'.
  """

  cfg: decoder.ModelConfig
  group_size: int
  max_tokens: int
  eos: int | tuple[int, ...]
  pad: int
  top_p: float = 1.0
  slots: int = 0
  even: bool = True
  cache: str = "same"

  def start(
      self,
      params: Tree,
      prompts: Prompts,
      key: Array,
      temperature: Array | float,
      sizes_N: Array | None,
      limits_R: Array | None,
      expected_R: Array | None,
      begun: tuple[Rollouts, Array] | None = None,
  ) -> tuple[Queue, Slots]:
    """Prefills the prompts. All rows wait, but those that have begun go on."""
    cfg = self.cfg
    shards = sharding.num_shards(jax.sharding.get_abstract_mesh(), "batch")
    count, width = prompts.tokens_NP.shape
    rows = count * self.group_size
    slots = min(self.slots or rows, rows)

    # Padding moves to the right: position and slot of a token are then one.
    index_NP = (jnp.arange(width) + prompts.start_N[:, None]) % width
    tokens_NP = jnp.take_along_axis(prompts.tokens_NP, index_NP, 1)
    length_N = width - prompts.start_N
    at_NP = jnp.broadcast_to(jnp.arange(width), tokens_NP.shape)
    real_NP = (at_NP < length_N[:, None]).astype(jnp.int32)
    hidden_NPD, filled = decoder.forward(
        params,
        cfg,
        tokens_NP,
        at_NP,
        attention.prefill(real_NP),
        decoder.empty_cache(cfg, count, width, self.cache),
    )
    last_N11 = (length_N - 1)[:, None, None]
    hidden_ND = jnp.take_along_axis(hidden_NPD, last_N11, 1)[:, 0]

    first_R = 0
    if sizes_N is None:
      sizes_N = np.full(count, self.group_size)
      first_R = jnp.arange(rows) // (rows // shards) * (count // shards)

    def per_row(x_N):
      return jnp.repeat(x_N, sizes_N, total_repeat_length=rows)

    prompt_R = per_row(jnp.arange(count))
    sample_R = jnp.arange(rows) - per_row(jnp.cumsum(sizes_N) - sizes_N)
    fold = jax.vmap(jax.random.fold_in, (0, 0))
    key_R = fold(
        fold(jnp.repeat(key[None], rows), prompts.ids_N[prompt_R]), sample_R
    )
    heat = jnp.asarray(temperature, jnp.float32)
    if limits_R is None:
      limits_R = jnp.full(rows, self.max_tokens)
    limits_R = jnp.clip(limits_R, 1, self.max_tokens)
    if expected_R is None:
      expected_R = jnp.zeros(rows)

    def integers(shape, fill):
      return jnp.full(shape, fill, jnp.int32)

    if begun is None:
      tokens_RT = integers((rows, self.max_tokens), self.pad)
      logps_RT = jnp.zeros((rows, self.max_tokens))
      lengths_R, truncated_R = integers(rows, 0), jnp.ones(rows, bool)
      ended_R = jnp.zeros(rows, bool)
    else:
      r, ended_R = begun
      tokens_RT, logps_RT = r.tokens_BL[:, width:], r.logps_BT
      lengths_R, truncated_R = r.lengths_B, r.truncated_B
    # First who has begun, last who has ended; between them the longest first.
    kind_R = jnp.where(ended_R, 2, jnp.where(lengths_R > 0, 0, 1))
    order_ZR = jnp.lexsort(
        (-expected_R.reshape(shards, -1), kind_R.reshape(shards, -1)), -1
    )

    queue = Queue(
        cache=filled,
        hidden_ND=hidden_ND,
        length_N=length_N,
        prompt_R=prompt_R - first_R,
        order_R=order_ZR.reshape(-1),
        key_R=jax.random.key_data(key_R),
        heat_R=heat[sample_R] if heat.ndim else jnp.full(rows, heat),
        limit_R=limits_R,
        tokens_RT=tokens_RT,
        logps_RT=logps_RT,
        lengths_R=lengths_R,
        truncated_R=truncated_R,
        ended_R=ended_R,
        last_Z=jnp.sum(~ended_R.reshape(shards, -1), 1),
        next_Z=integers(shards, 0),
    )
    room = attention.cache_slots(width + self.max_tokens)
    idle = Slots(
        cache=decoder.empty_cache(cfg, slots, room, self.cache),
        hidden_BD=jnp.zeros((slots, cfg.width), hidden_ND.dtype),
        row_B=integers(slots, rows // shards),
        t_B=integers(slots, 0),
        position_B=integers(slots, -1),
    )
    queue, slots = _pin(queue, self._whole()), _pin(idle)
    if begun is None:
      return queue, slots
    state = _specs(Queue, self._whole()), _specs(Slots)
    resume = sharding.by_batch_shard(
        functools.partial(_resume, self),
        (sharding.spec(), state[0].length_N, *state),
        state,
    )
    return resume(params, tokens_NP, queue, slots)

  def _whole(self) -> tuple[str, ...]:
    """What of a queue every data shard has: any may ask for any prompt."""
    return () if self.even else ("cache", "hidden_ND", "length_N")

  def decode(
      self, params: Tree, queue: Queue, slots: Slots
  ) -> tuple[Queue, Slots, tuple[Array, Array]]:
    """Up to CHUNK bursts of decode steps; fewer if nothing is left to do.

    Every data shard has a queue and slots of its own, and runs on its own.

    Returns:
      queue and slots (the old ones may be donated), the number of rows that
      have not ended, in the shard that has most of them, and how many groups
      have (if all are of G).
    """
    fn = functools.partial(_decode, self)
    whole, rows = sharding.spec(), sharding.spec("batch")
    state = _specs(Queue, self._whole()), _specs(Slots)
    run = sharding.by_batch_shard(fn, (whole, *state), (*state, (rows, rows)))
    queue, slots, (left_Z, groups_Z) = run(params, queue, slots)
    return queue, slots, (left_Z.max(), groups_Z.sum())

  def shrink(self, slots: Slots) -> Slots:
    """Half of the slots: those that are in use, if no more are."""
    specs = _specs(Slots)
    return sharding.by_batch_shard(_shrink, (specs,), specs)(slots)

  def finish(
      self, prompts: Prompts, sizes_N: Array | None, queue: Queue
  ) -> tuple[Rollouts, Array]:
    """The responses so far, row by row, and which of them have ended."""
    rows = len(queue.lengths_R)
    sizes = self.group_size if sizes_N is None else sizes_N

    def per_row(x_N):
      return jnp.repeat(x_N, sizes, 0, total_repeat_length=rows)

    length_R1 = queue.lengths_R[:, None]
    rollouts = Rollouts(
        tokens_BL=jnp.concatenate(
            [per_row(prompts.tokens_NP), queue.tokens_RT], 1
        ),
        start_B=per_row(prompts.start_N),
        ids_B=per_row(prompts.ids_N),
        mask_BT=jnp.arange(self.max_tokens) < length_R1,
        logps_BT=queue.logps_RT,
        lengths_B=queue.lengths_R,
        truncated_B=queue.truncated_R,
    )
    return jax.tree.map(
        lambda x: sharding.constrain(x, "batch", *(None,) * (x.ndim - 1)),
        (rollouts, queue.ended_R),
    )


def _specs(kind: type, whole: tuple[str, ...] = ()) -> Any:
  """How a Queue or Slots is split over data shards: by rows, or not at all."""
  axes = dict(cache=(None, "batch"))
  return kind(
      **{
          x.name: sharding.spec(
              *() if x.name in whole else axes.get(x.name, ("batch",))
          )
          for x in dataclasses.fields(kind)
      }
  )


def _pin(tree: Any, whole: tuple[str, ...] = ()) -> Any:
  """Splits a Queue or Slots so; and the heads of its cache, too."""

  def pin(name, x):
    rows = None if name in whole else "batch"
    if name == "cache":
      return attention.constrain_cache(x, rows)
    return sharding.constrain(x, rows, *(None,) * (x.ndim - 1))

  return tree.replace(
      **{
          field.name: jax.tree.map(
              functools.partial(pin, field.name), getattr(tree, field.name)
          )
          for field in dataclasses.fields(tree)
      }
  )


def _with_row(cache: attention.Cache, one: attention.Cache, slot):
  """The cache of one row, at the beginning of a slot."""

  def write(to, x):
    at = 0, slot, *(0,) * (x.ndim - 2)
    return jax.lax.dynamic_update_slice(to, x, at)

  return jax.tree.map(write, cache, one)


def _resume(sampler: Sampler, params: Tree, tokens_NP, queue, slots):
  """Rows of one data shard that have begun go on, in the first slots.

  Their tokens are read again, one row at a time. Those that find no slot begin
  anew.
  """
  most = queue.tokens_RT.shape[1]
  begun_R = (queue.lengths_R > 0) & ~queue.ended_R
  count = jnp.minimum(begun_R.sum(), len(slots.row_B))

  def one(n, slots):
    row = queue.order_R[n]
    prompt, t = queue.prompt_R[row], queue.lengths_R[row]
    length = queue.length_N[prompt]
    tokens_L = jnp.pad(tokens_NP[prompt], (0, most))
    tokens_L = jax.lax.dynamic_update_slice(
        tokens_L, queue.tokens_RT[row], (length,)
    )
    at_1L = jnp.arange(len(tokens_L))[None]
    hidden_1LD, filled = decoder.forward(
        params,
        sampler.cfg,
        tokens_L[None],
        at_1L,
        attention.prefill((at_1L < length + t).astype(jnp.int32)),
        decoder.empty_cache(sampler.cfg, 1, len(tokens_L), sampler.cache),
    )
    return Slots(
        cache=_with_row(slots.cache, filled, n),
        hidden_BD=slots.hidden_BD.at[n].set(hidden_1LD[0, length + t - 1]),
        row_B=slots.row_B.at[n].set(row),
        t_B=slots.t_B.at[n].set(t),
        position_B=slots.position_B.at[n].set(length + t),
    )

  slots = jax.lax.fori_loop(0, count, one, slots)
  return queue.replace(next_Z=queue.next_Z + count), slots


def _decode(sampler: Sampler, params: Tree, queue: Queue, slots: Slots):
  """`Sampler.decode` of one data shard."""
  rows, last = len(queue.lengths_R), queue.last_Z[0]

  def busy(carry):
    bursts, queue, slots = carry
    some = jnp.any(slots.row_B < rows) | (queue.next_Z[0] < last)
    return (bursts < CHUNK) & some

  def burst(carry):
    bursts, queue, slots = carry
    queue, slots = _admit(queue, slots)
    order_B = jnp.argsort(-slots.position_B)
    step = functools.partial(_step, sampler, params, order_B)
    carry = jax.lax.fori_loop(0, BURST, step, (queue, slots))
    return bursts + 1, *carry

  _, queue, slots = jax.lax.while_loop(busy, burst, (0, queue, slots))
  left = last - queue.next_Z[0] + jnp.sum(slots.row_B < rows)
  groups = queue.ended_R.reshape(-1, sampler.group_size).all(1).sum()
  return queue, slots, (left[None], groups[None])


def _admit(queue: Queue, slots: Slots) -> tuple[Queue, Slots]:
  """Empty slots take the next rows, in the order of the queue."""
  rows, first = len(queue.lengths_R), queue.next_Z[0]
  free_B = slots.row_B == rows
  next_B = first + jnp.cumsum(free_B) - 1
  takes_B = free_B & (next_B < queue.last_Z[0])
  row_B = jnp.where(takes_B, queue.order_R[next_B], slots.row_B)
  prompt_B = queue.prompt_R[row_B]

  def copy(n, cache):
    """The prefix of the n-th of them, in place."""
    slot = slot_B[n]
    prefix = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, prompt_B[slot], 1, 1),
        queue.cache,
    )
    return _with_row(cache, prefix, slot)

  slot_B = jnp.argsort(~takes_B)
  count = takes_B.sum()
  return queue.replace(next_Z=queue.next_Z + count), Slots(
      cache=jax.lax.fori_loop(0, count, copy, slots.cache),
      hidden_BD=jnp.where(
          takes_B[:, None], queue.hidden_ND[prompt_B], slots.hidden_BD
      ),
      row_B=row_B,
      t_B=jnp.where(takes_B, 0, slots.t_B),
      position_B=jnp.where(takes_B, queue.length_N[prompt_B], slots.position_B),
  )


def _step(sampler: Sampler, params: Tree, order_B, _, carry):
  """One token of every row: drawn, noted, and read by the model."""
  queue, slots = carry
  cfg, rows = sampler.cfg, len(queue.lengths_R)
  row_B, t_B = slots.row_B, slots.t_B
  heat_B = queue.heat_R[row_B]
  greedy_B = heat_B == 0
  scaled_BV = decoder.logits(params, cfg, slots.hidden_BD)
  scaled_BV /= jnp.where(greedy_B, 1, heat_B)[:, None]
  key_B = jax.random.wrap_key_data(queue.key_R[row_B])
  noise_B = jax.vmap(
      lambda key, t: jax.random.uniform(jax.random.fold_in(key, t))
  )(key_B, t_B)
  token_B = jnp.where(
      greedy_B,
      jnp.argmax(scaled_BV, -1),
      choose(scaled_BV, noise_B, sampler.top_p),
  )
  chosen_B = jnp.take_along_axis(scaled_BV, token_B[:, None], -1)[:, 0]
  logp_B = chosen_B - jax.nn.logsumexp(scaled_BV, -1)
  token_B = token_B.astype(jnp.int32)

  ends_B = jnp.isin(token_B, np.array(sampler.eos))
  going_B = (row_B < rows) & ~ends_B & (t_B + 1 < queue.limit_R[row_B])
  # What an empty slot writes is dropped: its row is out of bounds.
  queue = queue.replace(
      tokens_RT=queue.tokens_RT.at[row_B, t_B].set(token_B, mode="drop"),
      logps_RT=queue.logps_RT.at[row_B, t_B].set(logp_B, mode="drop"),
      lengths_R=queue.lengths_R.at[row_B].set(t_B + 1, mode="drop"),
      truncated_R=queue.truncated_R.at[row_B].set(~ends_B, mode="drop"),
      ended_R=queue.ended_R.at[row_B].set(~going_B, mode="drop"),
  )
  position_B = jnp.where(going_B, slots.position_B, -1)
  hidden_B1D, cache = decoder.forward(
      params,
      cfg,
      token_B[:, None],
      position_B[:, None],
      attention.decode(position_B, order_B),
      slots.cache,
  )
  return queue, Slots(
      cache=cache,
      hidden_BD=hidden_B1D[:, 0],
      row_B=jnp.where(going_B, row_B, rows),
      t_B=t_B + 1,
      position_B=position_B + going_B,
  )


def _shrink(slots: Slots) -> Slots:
  """`Sampler.shrink` of one data shard."""
  keep_B = jnp.argsort(-slots.position_B)[: len(slots.row_B) // 2]
  cache = jax.tree.map(lambda x: x[:, keep_B], slots.cache)
  rest = jax.tree.map(lambda x: x[keep_B], slots.replace(cache=None))
  return rest.replace(cache=cache)


@functools.cache
def program(sampler: Sampler, name: str, _) -> Callable:
  """A method of a sampler, jit-ed."""
  donated = (1, 2) if name == "decode" else ()
  return jax.jit(getattr(sampler, name), donate_argnums=donated)


def stream(
    params: Tree,
    prompts: Prompts,
    key: Array,
    temperature: Array | float = 1.0,
    sizes_N: Array | None = None,
    limits_B: Array | None = None,
    expected_B: Array | None = None,
    begun: tuple[Rollouts, Array] | None = None,
    *,
    tell: int = 0,
    program: Callable[[Sampler, str, Any], Callable] = program,
    meanwhile: Callable[[], None] = lambda: None,
    **static: Any,
) -> Iterator[tuple[Rollouts, Array]]:
  """G responses to each of N prompts, as they come.

  Each prompt is prefilled once, its cache copied to the slots of its G samples.
  Of the loop nothing crosses to the host but, a chunk late, the number of rows
  left.

  Args:
    params: of the model; whole on every data shard, or they are gathered for
      every chunk.
    prompts: N prompts of P slots.
    key: seeds all noise, together with `prompts.ids_N`.
    temperature: scalar or [G], one per sample; 0 is greedy (log-probs are then
      those at temperature 1).
    sizes_N: int, how many responses to each prompt, N * G in all; None: G to
      each. With sizes the temperature must be a scalar.
    limits_B: int, the most tokens of each response, from 1 to max_tokens;
      None: max_tokens.
    expected_B: how long each will be, roughly: the longest start first, so that
      none is left alone at the end. It changes no token. None: in order.
    begun: what was yielded before, to go on from there, perhaps with another
      policy: the N * G responses so far, and which of them have ended.
    tell: a number of groups; see below. Not with sizes.
    program: (sampler, name of its method, what its shapes depend on) -> that
      method, compiled.
    meanwhile: called once the device has work.
    **static: fields of `Sampler`.

  Yields:
    Rollouts of N * G rows, those of a prompt adjacent, and which of them have
    ended, bool [N * G]: whenever about a `SHARE` more have, and as soon as no
    more groups than `tell` are unfinished, while the device goes on with the
    others; at last all of them.
  """
  sampler = Sampler(**static, even=sizes_N is None)
  count = len(prompts.start_N)
  rows = count * sampler.group_size
  kind = count, jnp.ndim(temperature), begun is None
  start = program(sampler, "start", kind)
  finish = program(sampler, "finish", count)
  queue, slots = start(
      params, prompts, key, temperature, sizes_N, limits_B, expected_B, begun
  )
  shards, size = len(queue.next_Z), len(slots.row_B)
  late = last = some = None
  told, wanted = 0, tell > 0
  while True:
    if late is not None:
      most, whole = map(int, jax.device_get(late))
      if not most:
        break
      while sampler.slots and 2 * most * shards <= size >= 2 * LEAST * shards:
        slots = program(sampler, "shrink", size)(slots)
        size //= 2
      ended = rows - most * shards
      few = wanted and count - whole <= tell
      if few or ended - told >= SHARE * rows:
        some, told = finish(prompts, sizes_N, queue), ended
        wanted &= not few
    decode = program(sampler, "decode", (count, size))
    queue, slots, left = decode(params, queue, slots)
    if last is None:
      meanwhile()
    if some is not None:
      yield some
    late, last, some = last, left, None
  yield finish(prompts, sizes_N, queue)


def sample(*args: Any, **kwargs: Any) -> Rollouts:
  """What `stream` yields last: all responses, whole."""
  *_, (rollouts, _) = stream(*args, **kwargs)
  return rollouts
