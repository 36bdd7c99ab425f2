"""Who attends to whom: one small interface, and the ways to go about it.

`model.forward` gives each layer's queries, keys and values to a function

    attend(index, q_BLKQC, k_BLKC, v_BLKC, cache) -> out_BLKQC, cache

and knows nothing of masks or caches. `packed` is for whole rows, `prefill` for
prompts whose keys and values are kept, `decode` for one more token of each row.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason import sharding
from rl_reason.structs import Array

Attend = Callable[..., tuple[Array, "Cache | None"]]
NEVER = -1e30  # a score that no softmax sees


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cache:
  """Keys and values of every layer: [layers, B, K, S, C]."""

  k: Array
  v: Array


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
    out, _ = within(index, q_BLKQC, k_BLKC, v_BLKC, None)
    at = (index, 0, 0, 0, 0)
    return out, Cache(
        jax.lax.dynamic_update_slice(cache.k, k_BLKC.swapaxes(1, 2)[None], at),
        jax.lax.dynamic_update_slice(cache.v, v_BLKC.swapaxes(1, 2)[None], at),
    )

  return attend


def decode(start_B: Array, slot: Array | int) -> Attend:
  """One token a row, written to slot `slot` of the cache, sees `start_B` on."""

  def attend(index, q_B1KQC, k_B1KC, v_B1KC, cache):
    # In the carry and written in place: as scan outputs the keys would cost a
    # second whole cache.
    at = (index, 0, 0, slot, 0)
    cache = Cache(
        jax.lax.dynamic_update_slice(cache.k, k_B1KC.swapaxes(1, 2)[None], at),
        jax.lax.dynamic_update_slice(cache.v, v_B1KC.swapaxes(1, 2)[None], at),
    )
    slots_S = jnp.arange(cache.k.shape[3])
    visible_B1S = (slots_S <= slot) & (slots_S >= start_B[:, None, None])
    k_BKSC, v_BKSC = cache.k[index], cache.v[index]
    return softmax(q_B1KQC, k_BKSC, v_BKSC, visible_B1S), cache

  return attend
