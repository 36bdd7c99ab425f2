"""Who attends to whom: one small interface, and the ways to go about it.

`model.forward` gives each layer's queries, keys and values to a function

    attend(index, q_BLKQC, k_BLKC, v_BLKC, cache) -> out_BLKQC, cache

and knows nothing of masks or caches. `packed` is for whole rows, `prefill` for
prompts whose keys and values are kept, `decode` for one more token of each row.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason import sharding
from rl_reason.structs import Array

BLOCK = 128  # slots of the cache that `decode` reads at a time
SEGMENTS = 4  # parts of a batch, by length, that read as many blocks
NEVER = -1e30  # a score that no softmax sees


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cache:
  """Keys and values of every layer; slot s holds the token of position s.

  Attributes:
    k: [layers, B, K, C, S]. Slots last: scores are then sums of rows, which
      XLA's CPU backend computes three times as fast as products of columns.
    v: [layers, B, K, S, C].
  """

  k: Array
  v: Array


# Attend(index of the layer, q, k, v, cache) -> out, cache
Attend = Callable[[Array, Array, Array, Array, Cache], tuple[Array, Cache]]


def slots(length: int) -> int:
  """Slots of a cache for `length` tokens: whole blocks, if there are many."""
  return length if length <= BLOCK else -(-length // BLOCK) * BLOCK


def constrain_cache(cache: Cache) -> Cache:
  """Rows over the batch axes, key/value heads over the tensor axis."""
  return jax.tree.map(
      lambda x: sharding.constrain(x, None, "batch", "kv_heads", None, None),
      cache,
  )


def softmax(q_BLKQC: Array, k_BKSC: Array, v_BKSC: Array, visible_BLS: Array):
  """Grouped-query attention, softmax in fp32: -> [B, L, K, Q, C]."""
  scale = q_BLKQC.shape[-1] ** -0.5
  scores = jnp.einsum("BLKQC,BKSC->BKQLS", q_BLKQC * scale, k_BKSC)
  scores = scores.astype(jnp.float32)
  scores = jnp.where(visible_BLS[:, None, None], scores, NEVER)
  probs = jax.nn.softmax(scores, -1).astype(v_BKSC.dtype)
  return jnp.einsum("BKQLS,BKSC->BLKQC", probs, v_BKSC)


def packed(segments_BL: Array) -> Attend:
  """Each token sees its own segment up to itself.

  Args:
    segments_BL: int32, tokens of one sequence share a number; 0 is padding,
      which sees only padding.
  """
  length = segments_BL.shape[1]
  before_LL = jnp.tril(jnp.ones((length, length), bool))
  same_BLL = segments_BL[:, :, None] == segments_BL[:, None, :]
  visible_BLL = before_LL & same_BLL

  def attend(index, q_BLKQC, k_BLKC, v_BLKC, cache):
    k_BKLC, v_BKLC = k_BLKC.swapaxes(1, 2), v_BLKC.swapaxes(1, 2)
    return softmax(q_BLKQC, k_BKLC, v_BKLC, visible_BLL), cache

  return attend


def prefill(segments_BL: Array) -> Attend:
  """As `packed`, and fills the first L slots of the cache."""
  within = packed(segments_BL)

  def attend(index, q_BLKQC, k_BLKC, v_BLKC, cache):
    out, _ = within(index, q_BLKQC, k_BLKC, v_BLKC, cache)
    at = (index, 0, 0, 0, 0)
    k_BKCL, v_BKLC = k_BLKC.transpose(0, 2, 3, 1), v_BLKC.swapaxes(1, 2)
    return out, Cache(
        jax.lax.dynamic_update_slice(cache.k, k_BKCL[None], at),
        jax.lax.dynamic_update_slice(cache.v, v_BKLC[None], at),
    )

  return attend


def decode(position_B: Array, order_B: Array | None = None) -> Attend:
  """One token a row, which sees its row up to itself.

  Keys and values are written in place, into the carry of the loop over layers:
  as outputs of a scan they would cost a second whole cache. A long cache is
  read in blocks, as many as the longest row of a segment needs, with a running
  softmax (arXiv:2205.14135, algorithm 1): blocks beyond a row's end add
  nothing, exactly.

  Args:
    position_B: int32, of each row's token; -1 for a row that is not in use.
    order_B: rows by position; what are neighbours here share a segment. It
      changes nothing but the time.
  """
  rows = len(position_B)
  segments = math.gcd(rows, SEGMENTS)
  order_B = jnp.arange(rows) if order_B is None else order_B
  write_B = jnp.maximum(position_B, 0)

  def attend(index, q_B1KQC, k_B1KC, v_B1KC, cache):
    at = index, jnp.arange(rows)
    cache = Cache(
        cache.k.at[*at, :, :, write_B].set(k_B1KC[:, 0]),
        cache.v.at[*at, :, write_B].set(v_B1KC[:, 0]),
    )
    q_BKQC = q_B1KQC[:, 0] * q_B1KQC.shape[-1] ** -0.5
    if cache.v.shape[3] <= BLOCK:
      out_BKQC = _whole(q_BKQC, cache.k[index], cache.v[index], position_B)
    else:

      def segment(some):
        return _blocks(q_BKQC[some], cache, index, some, position_B[some])

      parts = jax.lax.map(segment, order_B.reshape(segments, -1))
      out_BKQC = parts.reshape(q_BKQC.shape)[jnp.argsort(order_B)]
    return out_BKQC[:, None].astype(v_B1KC.dtype), cache

  return attend


def _scores(q_BKQC, k_BKCS, first, position_B):
  """fp32 scores of slots from `first` on, and which of them count."""
  scores = jnp.einsum("BKQC,BKCS->BKQS", q_BKQC, k_BKCS).astype(jnp.float32)
  slot_S = first + jnp.arange(k_BKCS.shape[-1])
  visible = (slot_S <= position_B[:, None])[:, None, None]
  return jnp.where(visible, scores, NEVER), visible


def _whole(q_BKQC, k_BKCS, v_BKSC, position_B):
  scores, _ = _scores(q_BKQC, k_BKCS, 0, position_B)
  probs = jax.nn.softmax(scores, -1).astype(v_BKSC.dtype)
  return jnp.einsum("BKQS,BKSC->BKQC", probs, v_BKSC)


def _blocks(q_BKQC, cache: Cache, index, rows_B, position_B):
  """Attention of some rows of the cache to as many blocks as they need."""
  blocks = jnp.max(position_B) // BLOCK + 1

  def read(x, axis, at):
    """[B, ...] a block of slots of one layer; `axis` counts slots."""
    sizes = [1, 1, *x.shape[2:]]
    sizes[axis] = BLOCK
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(1, 2, 3),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1, axis),
    )
    where = [jnp.broadcast_to(n, rows_B.shape) for n in (index, rows_B, at)]
    return jax.lax.gather(
        x, jnp.stack(where, -1), numbers, sizes, mode="promise_in_bounds"
    )

  def add(block, carry):
    most, total, out = carry
    at = block * BLOCK
    k_BKCS, v_BKSC = read(cache.k, 4, at), read(cache.v, 3, at)
    scores, visible = _scores(q_BKQC, k_BKCS, at, position_B)
    higher = jnp.maximum(most, scores.max(-1))
    probs = jnp.where(visible, jnp.exp(scores - higher[..., None]), 0)
    fade = jnp.exp(most - higher)
    here = jnp.einsum(
        "BKQS,BKSC->BKQC",
        probs.astype(v_BKSC.dtype),
        v_BKSC,
        preferred_element_type=jnp.float32,
    )
    out = out * fade[..., None] + here
    return higher, total * fade + probs.sum(-1), out

  some = jnp.zeros(q_BKQC.shape, jnp.float32)
  carry = some[..., 0] + NEVER, some[..., 0], some
  _, total, out = jax.lax.fori_loop(0, blocks, add, carry)
  return out / jnp.maximum(total, 1e-30)[..., None]
