"""Continues responses that an earlier call began.

`Sampler.start` calls `resume` if it gets such responses, perhaps with their
cache; no other rollout executes this module.

Shapes here: as in `sampler`, R rows of the queue; B decode slots.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Rollouts, Tree
from rl_reason.devices import sharding
from rl_reason.models import attention, decoder
from rl_reason.rollout.decode_loop import Queue, Slots, prefill_row

CHUNK = 16  # tokens after a cache that are read at a time
CHUNKS = 4  # chunks that are read as one, while as many are left


class RowCache(NamedTuple):
  """The cache after a call in which each row had a slot.

  Attributes:
    cache: of the slots.
    order_R: the row of each slot.
    lengths_R: response tokens of each row in the cache.
  """

  cache: attention.Caches
  order_R: Array
  lengths_R: Array


def resume(
    sampler: Any,
    params: Tree,
    tokens_NP: Array,
    queue: Queue,
    slots: Slots,
    resumed: tuple[Rollouts, Array],
    expected_R: Array,
    row_cache: RowCache | None,
) -> tuple[Queue, Slots]:
  """Puts partial responses into queue and slots, where decoding continues.

  Args:
    sampler: the caller, a `Sampler`.
    params: of the model.
    tokens_NP: prompts, padded on the right.
    queue: of `Sampler.start`.
    slots: empty ones.
    resumed: the responses so far, and whether each has ended.
    expected_R: as `expected_B` of `sampler.stream`.
    row_cache: of the rows; None: all their tokens are read again.
  """
  if row_cache is not None:
    return _go_on(sampler, params, tokens_NP, queue, slots, resumed, row_cache)
  rollouts, ended_R = resumed
  shards = len(queue.next_W)
  # Partial responses start first, then new ones, long ones before short ones.
  # Complete responses never start.
  rank_R = jnp.where(ended_R, 2, jnp.where(rollouts.lengths_B > 0, 0, 1))
  order_WR = jnp.lexsort(
      (-expected_R.reshape(shards, -1), rank_R.reshape(shards, -1)), -1
  )
  queue = _with(queue, resumed).replace(
      order_R=order_WR.reshape(-1),
      end_W=jnp.sum(~ended_R.reshape(shards, -1), 1),
  )
  queue, slots = sampler.constrain(queue, slots)
  specs = sampler.specs()
  prefill = sharding.by_batch_shard(
      functools.partial(_prefill, sampler),
      (sharding.spec(), specs[0].length_N, *specs),
      specs,
  )
  return prefill(params, tokens_NP, queue, slots)


def _with(queue: Queue, resumed: tuple[Rollouts, Array]) -> Queue:
  """The queue with the responses so far."""
  rollouts, ended_R = resumed
  return queue.replace(
      tokens_RT=rollouts.tokens_BL[:, -queue.tokens_RT.shape[1] :],
      logps_RT=rollouts.logps_BT,
      lengths_R=rollouts.lengths_B,
      truncated_R=rollouts.truncated_B,
      ended_R=ended_R,
  )


def _go_on(
    sampler: Any, params: Tree, tokens_NP, queue, slots, resumed, row_cache
) -> tuple[Queue, Slots]:
  """Continues responses in the slots that hold their cache."""
  cache, order_R, before_R = row_cache
  all_W = jnp.full_like(queue.next_W, len(order_R) // len(queue.next_W))
  queue = _with(queue, resumed).replace(
      order_R=order_R, end_W=all_W, next_W=all_W
  )
  queue, slots = sampler.constrain(queue, slots.replace(cache=cache))
  specs = sampler.specs()
  read = sharding.by_batch_shard(
      functools.partial(_read_new, sampler),
      (sharding.spec(), specs[0].length_N, sharding.spec("batch"), *specs),
      specs,
  )
  return read(params, tokens_NP, before_R, queue, slots)


def _read_new(
    sampler: Any, params: Tree, tokens_NP, before_R, queue, slots
) -> tuple[Queue, Slots]:
  """Reads the tokens that are not in the cache yet, one row at a time.

  Of one data shard.
  """
  order_B, max_tokens = queue.order_R, queue.tokens_RT.shape[1]
  live_B = ~queue.ended_R[order_B]
  end_B = queue.length_N[queue.prompt_R[order_B]] + queue.lengths_R[order_B]
  slots = slots.replace(
      row_B=jnp.where(live_B, order_B, len(order_B)),
      t_B=queue.lengths_R[order_B],
      position_B=jnp.where(live_B, end_B, -1),
  )
  first_B = jnp.argsort(~live_B)

  def one(n, slots):
    slot = first_B[n]
    row = order_B[slot]
    prompt = queue.prompt_R[row]
    length = queue.length_N[prompt]
    tokens_L = jnp.pad(tokens_NP[prompt], (0, max_tokens + CHUNK))
    tokens_L = jax.lax.dynamic_update_slice(
        tokens_L, queue.tokens_RT[row], (length,)
    )
    # The last token of the call before was drawn but not read. Slot 0 of the
    # row was overwritten while other rows went on (see `attention.decode`).
    start, end = length + before_R[row] - 1, end_B[slot]
    cache = _row(slots.cache, slot)
    prefix = jax.tree.map(
        functools.partial(attention.first_slot, sampler.cfg.attention),
        _row(queue.cache, prompt),
        is_leaf=lambda x: isinstance(x, attention.Cache),
    )
    cache = attention.with_row(cache, prefix, 0)

    def read_chunk(start, size, chunk, carry):
      at = start + chunk * size
      hidden_1LD, cache, _ = decoder.forward(
          params,
          sampler.cfg,
          jax.lax.dynamic_slice(tokens_L, (at,), (size,))[None],
          at + jnp.arange(size)[None],
          attention.extend(at, size),
          carry[1],
      )
      return hidden_1LD[0, -CHUNK:], cache

    hidden_LD = jnp.zeros((CHUNK, sampler.cfg.width), slots.hidden_BD.dtype)
    carry, before_last = (hidden_LD, cache), end - start - 1
    large = 0
    if len(tokens_L) >= CHUNKS * CHUNK:
      large = before_last // (CHUNKS * CHUNK)
      read = functools.partial(read_chunk, start, CHUNKS * CHUNK)
      carry = jax.lax.fori_loop(0, large, read, carry)
      start += large * CHUNKS * CHUNK
    read = functools.partial(read_chunk, start, CHUNK)
    chunks = before_last // CHUNK - large * CHUNKS + 1
    hidden_LD, cache = jax.lax.fori_loop(0, chunks, read, carry)
    hidden_D = hidden_LD[before_last % CHUNK]
    return slots.replace(
        cache=attention.with_row(slots.cache, cache, slot),
        hidden_BD=slots.hidden_BD.at[slot].set(hidden_D),
    )

  return queue, jax.lax.fori_loop(0, live_B.sum(), one, slots)


def _row(cache: attention.Caches, slot: Array) -> attention.Caches:
  return jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1, 1), cache
  )


def _prefill(sampler: Any, params: Tree, tokens_NP, queue, slots):
  """Prefills partial responses into the first slots of one data shard.

  Prompts and responses are prefilled again, because the policy may be another
  one; one row at a time, because few rows are resumed. Responses without a free
  slot are sampled again from their start.
  """
  max_tokens = queue.tokens_RT.shape[1]
  partial_R = (queue.lengths_R > 0) & ~queue.ended_R
  count = jnp.minimum(partial_R.sum(), len(slots.row_B))

  def one(n, slots):
    row = queue.order_R[n]
    prompt, t = queue.prompt_R[row], queue.lengths_R[row]
    length = queue.length_N[prompt]
    tokens_L = jnp.pad(tokens_NP[prompt], (0, max_tokens))
    tokens_L = jax.lax.dynamic_update_slice(
        tokens_L, queue.tokens_RT[row], (length,)
    )
    hidden_D, filled = prefill_row(sampler, params, tokens_L, length + t)
    return Slots(
        cache=attention.with_row(slots.cache, filled, n),
        hidden_BD=slots.hidden_BD.at[n].set(hidden_D),
        row_B=slots.row_B.at[n].set(row),
        t_B=slots.t_B.at[n].set(t),
        position_B=slots.position_B.at[n].set(length + t),
    )

  slots = jax.lax.fori_loop(0, count, one, slots)
  return queue.replace(next_W=queue.next_W + count), slots
