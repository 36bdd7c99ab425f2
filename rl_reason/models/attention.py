"""Grouped-query attention: packed rows, prefill, and decoding with a cache.

`decoder.forward` passes each layer's queries, keys and values to a function

    attend(kernels, layer, q_BLKQC, k_BLKC, v_BLKC, cache) -> out_BLKQC, cache

and knows nothing of masks or caches. `packed` makes this function for training,
`prefill` for prompts whose keys and values are cached, `extend` for more tokens
of one row, `decode` for one more token of each row.

`kernels` is "xla", which runs everywhere (this module, and
`models.packed_attention` for packed rows), or a key of
`models.kernels.KERNELS`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Shared
from rl_reason.devices import sharding
from rl_reason.models import cudnn, linear, packed_attention, pallas, sequence
from rl_reason.models.kernels import by_layer, cached, paged
from rl_reason.models.packed_attention import (
    LOG2,
    MASK_VALUE,
    einsum32,
    softmax_shift,
    softmax_terms,
)

BLOCK = 128  # cache slots that `decode` reads at a time
BUCKETS = 4  # parts of a batch, by length; rows of a part read equal blocks


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cache:
  """Keys and values of every layer; slot s holds the token of position s.

  Kernels may use larger heads than the model, filled with zeros. `_stored`
  changes the layout for a kernel.

  Attributes:
    k: [layers, B, K, C, S]. With slots last, scores are sums of rows, which
      XLA's CPU backend computes three times as fast as products of columns.
      Paged kernels use the layout of v, cuDNN [1, B, S, K, C].
    v: [layers, B, K, S, C]; of cuDNN [1, B, S, K, C].
    k_scale, v_scale: float32 [layers, B, K, S], the scales of int8 k and v;
      None for other dtypes. Of cuDNN [1, B, S, K].
  """

  k: Array
  v: Array
  k_scale: Array | None = None
  v_scale: Array | None = None


Caches = Cache | tuple[Cache, ...]  # of all layers, or one for each layer
# Attend(kernels, layer, q, k, v, cache) -> out, cache
Attend = Callable[[str, Array, Array, Array, Array, Cache], tuple[Array, Cache]]


def cache_slots(length: int) -> int:
  """Slots of a cache for `length` tokens: beyond BLOCK, a multiple of it."""
  return length if length <= BLOCK else -(-length // BLOCK) * BLOCK


def empty_cache(kernels: str, shape: tuple[int, ...], dtype) -> Cache:
  """A cache of zeros: rows over the batch axes, heads over the tensor axis.

  The shape is [layers, B, K, S, C]; a dtype of int8 adds scales.
  """
  v = jnp.zeros((*shape[:-1], cached(kernels, shape[-1])), dtype)
  scale = jnp.zeros(v.shape[:-1]) if v.dtype == jnp.int8 else None
  axes = cache_axes(by_layer(kernels))
  return jax.tree.map(
      lambda x: sharding.constrain(x, *axes, *(None,) * (x.ndim - len(axes))),
      _stored(kernels, Cache(v, v, scale, scale)),
  )


def cache_axes(by_layer: bool) -> tuple[str | None, ...]:
  """Logical axes of the arrays of a cache, up to that of the heads."""
  return None, "batch", *(None,) * by_layer, "kv_heads"


def with_row(cache: Caches, row: Caches, slot: Array) -> Caches:
  """Copies the cache of one row to the beginning of row `slot` of another."""

  def write(to, x):
    return jax.lax.dynamic_update_slice(to, x, (0, slot, *(0,) * (x.ndim - 2)))

  return jax.tree.map(write, cache, row)


def _stored(kernels: str, cache: Cache) -> Cache:
  """Keys and values [..., K, S, C] in the layout of the cache, or back."""
  if by_layer(kernels):
    of_heads = cache.k, cache.v
    k, v = (x.swapaxes(-2, -3) for x in of_heads)
    scales = cache.k_scale, cache.v_scale
    return Cache(k, v, *jax.tree.map(lambda x: x.swapaxes(-1, -2), scales))
  k = cache.k if paged(kernels) else cache.k.swapaxes(-1, -2)
  return dataclasses.replace(cache, k=k)


def _slot_axes(kernels: str) -> tuple[int, int]:
  """The axis of slots in keys, and in values and scales."""
  if by_layer(kernels):
    return 2, 2
  return (3, 3) if paged(kernels) else (4, 3)


def first_slot(kernels: str, cache: Cache) -> Cache:
  """The keys and values of position 0."""
  of_k, of_rest = _slot_axes(kernels)

  def first(x, axis):
    return jax.lax.slice_in_dim(x, 0, 1, axis=axis)

  rest = dataclasses.replace(cache, k=None)
  rest = jax.tree.map(lambda x: first(x, of_rest), rest)
  return dataclasses.replace(rest, k=first(cache.k, of_k))


def _cache_entries(cache: Cache, k: Array, v: Array) -> Cache:
  """New keys and values [..., C] in the dtype of a cache.

  int8 is symmetric, with one scale per token and head: absmax / 127.
  """
  if (more := cache.v.shape[-1] - v.shape[-1]) > 0:
    k, v = (jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, more),)) for x in (k, v))
  if cache.k_scale is None:
    return Cache(k, v)
  # A vector is a matrix of one column.
  k8, v8 = (linear.quantize(x[..., None]) for x in (k, v))
  return Cache(
      k8.values[..., 0], v8.values[..., 0], k8.scale[..., 0], v8.scale[..., 0]
  )


def packed(
    segments_BL: Array, shared: Shared | None = None, *, chunks: bool = False
) -> Attend:
  """Causal attention within segments: a token sees its segment up to itself.

  Args:
    segments_BL: int32, tokens of a sequence are adjacent and share a number; 0
      is padding, which sees only padding.
    shared: prompts that tokens see, too; only with kernels of XLA.
    chunks: whether rows are the chunks of `sequence.split`.
  """

  def attend(kernels, layer, q_BLKQC, k_BLKC, v_BLKC, cache):
    in_xla, of_tokens = packed_attention.attend, (segments_BL,)
    if shared is not None and kernels != "xla":
      raise ValueError(
          f"{kernels} has no masks for shared prompts: set"
          " updates.share_prompts = 'never'"
      )
    if shared is not None:
      in_xla = functools.partial(in_xla, longest=shared.longest)
      of_tokens += (shared.prompt_RL2,)
    others = dict(xla=in_xla, cudnn=cudnn.attend)
    fn = others.get(kernels, functools.partial(pallas.packed, kernels))
    if chunks:
      fn = sequence.whole_rows(fn, in_xla)
    # Rows and heads are independent: each device computes its own.
    keys = "batch", None, "kv_heads", None
    queries = *keys, None
    axes = [("batch", *(None,) * (x.ndim - 1)) for x in of_tokens]
    run = sharding.by_device(fn, (queries, keys, keys, *axes), queries)
    q_BLKQC = q_BLKQC * q_BLKQC.shape[-1] ** -0.5
    return run(q_BLKQC, k_BLKC, v_BLKC, *of_tokens), cache

  return attend


def prefill(segments_BL: Array) -> Attend:
  """As `packed`, and writes keys and values to the cache's first L slots."""
  within = packed(segments_BL)

  def attend(kernels, layer, q_BLKQC, k_BLKC, v_BLKC, cache):
    out, _ = within(kernels, layer, q_BLKQC, k_BLKC, v_BLKC, cache)
    new = _cache_entries(cache, k_BLKC.swapaxes(1, 2), v_BLKC.swapaxes(1, 2))
    new = _stored(kernels, new)

    def write(x, new):
      at = layer, *(0,) * new.ndim
      return jax.lax.dynamic_update_slice(x, new[None], at)

    return out, jax.tree.map(write, cache, new)

  return attend


def extend(first: Array, length: int) -> Attend:
  """Adjacent tokens of a single row; each sees the row up to itself.

  Args:
    first: position of the first token; the cache has slots for all tokens.
    length: number of tokens.
  """
  position_L1 = first + jnp.arange(length)[:, None]

  def attend(kernels, layer, q_1LKQC, k_1LKC, v_1LKC, cache):
    new = _cache_entries(cache, k_1LKC.swapaxes(1, 2), v_1LKC.swapaxes(1, 2))
    new = _stored(kernels, new)

    def write(x, new, slots):
      at = [layer, *[0] * new.ndim]
      at[slots] = first
      return jax.lax.dynamic_update_slice(x, new[None], at)

    of_k, of_rest = _slot_axes(kernels)
    k = write(cache.k, new.k, of_k)
    rest = jax.tree.map(
        lambda x, new: write(x, new, of_rest),
        (cache.v, cache.k_scale, cache.v_scale),
        (new.v, new.k_scale, new.v_scale),
    )
    cache = Cache(k, *rest)
    short = jax.tree.map(lambda x: x[layer], cache)
    short = _stored("xla", _stored(kernels, short))
    q_1LKQC = q_1LKQC * q_1LKQC.shape[-1] ** -0.5
    each = jax.vmap(_attend_at_once, (1, None, 0), 1)
    return each(q_1LKQC, short, position_L1).astype(v_1LKC.dtype), cache

  return attend


def decode(position_B: Array, order_B: Array | None = None) -> Attend:
  """One token a row, which sees its row up to itself.

  Keys and values are written in place, into the carry of the loop over layers:
  outputs of a scan would cost a second copy of the cache. A long cache is read
  in blocks up to the longest row of a bucket, with a running softmax
  (arXiv:2205.14135, algorithm 1): blocks past the end of a row add exactly
  nothing. Paged kernels and cuDNN read each row up to its end. XLA also takes a
  cache of more rows, and reads and writes the first B.

  Args:
    position_B: int32, of each row's token; -1 for an unused row.
    order_B: rows sorted by position, whose neighbours share a bucket; changes
      only the speed.
  """
  rows = len(position_B)
  buckets = math.gcd(rows, BUCKETS)
  order_B = jnp.arange(rows) if order_B is None else order_B
  write_B = jnp.maximum(position_B, 0)

  def attend(kernels, layer, q_B1KQC, k_B1KC, v_B1KC, cache):
    # Write one slot of each row. Unused rows write to slot 0, which the next
    # prefix overwrites.
    new = _cache_entries(cache, k_B1KC[:, 0], v_B1KC[:, 0])
    at = layer, jnp.arange(rows), slice(None)
    k_at, v_at = (*at, slice(None), write_B), (*at, write_B)
    if by_layer(kernels):
      k_at = v_at = *at[:2], write_B
    elif paged(kernels):
      # A window of heads would make XLA copy the cache into another layout.
      heads = jnp.arange(new.k.shape[1])
      k_at = v_at = layer, at[1][:, None], heads, write_B[:, None]
    k = cache.k.at[k_at].set(new.k)
    rest = jax.tree.map(
        lambda x, new: x.at[v_at].set(new),
        (cache.v, cache.k_scale, cache.v_scale),
        (new.v, new.k_scale, new.v_scale),
    )
    cache = Cache(k, *rest)

    # Read: a short cache at once, a long one in blocks or pages.
    q_BKQC = q_B1KQC[:, 0] * q_B1KQC.shape[-1] ** -0.5
    slots = cache.v.shape[_slot_axes(kernels)[1]]
    int8 = cache.k_scale is not None
    if slots <= BLOCK or (by_layer(kernels) and int8):
      short = jax.tree.map(lambda x: x[layer, :rows], cache)
      short = _stored("xla", _stored(kernels, short))
      out_BKQC = _attend_at_once(q_BKQC, short, position_B)
    elif by_layer(kernels):
      k_BSKC, v_BSKC = (x[layer, :rows] for x in (cache.k, cache.v))
      out_BKQC = cudnn.decode(q_BKQC, k_BSKC, v_BSKC, position_B)
    elif paged(kernels):
      pools = jax.tree.leaves(cache)
      out_BKQC = pallas.paged(kernels, q_BKQC, pools, layer, position_B)
    else:

      def bucket(rows_B):
        args = q_BKQC[rows_B], cache, layer, rows_B, position_B[rows_B]
        return _attend_in_blocks(*args)

      parts = jax.lax.map(bucket, order_B.reshape(buckets, -1))
      out_BKQC = parts.reshape(q_BKQC.shape)[jnp.argsort(order_B)]
    return out_BKQC[:, None].astype(v_B1KC.dtype), cache

  return attend


def _scaled(x_BKQS, scale_BKS):
  """Multiplies numbers of cache slots with their int8 scales, if any."""
  return x_BKQS if scale_BKS is None else x_BKQS * scale_BKS[:, :, None]


def _scores(q_BKQC, slots: Cache, first, position_B):
  """fp32 scores of cache slots from `first` on; MASK_VALUE for masked slots.

  int8 is exact in the dtype of the queries: scales multiply scores instead of
  keys, and probabilities instead of values.
  """
  k_BKCS = slots.k.astype(q_BKQC.dtype)
  scores = einsum32("BKQC,BKCS->BKQS", q_BKQC, k_BKCS)
  scores = _scaled(scores, slots.k_scale)
  slot_S = first + jnp.arange(k_BKCS.shape[-1])
  visible = (slot_S <= position_B[:, None])[:, None, None]
  return jnp.where(visible, scores, MASK_VALUE)


def _attend_at_once(q_BKQC, slots: Cache, position_B):
  """Attention to all slots of one layer of a short cache."""
  dim = q_BKQC.shape[-1]  # the heads of the cache may be padded with zeros
  slots = dataclasses.replace(
      slots, k=slots.k[:, :, :dim], v=slots.v[..., :dim]
  )
  scores = _scores(q_BKQC, slots, 0, position_B)
  shift = softmax_shift(scores.max(-1))
  return _normalized(*_weighted(scores, shift, q_BKQC.dtype, slots))


def _normalized(total, out):
  """Weighted values by their total weight; 0 where a row sees no slot."""
  return out / jnp.maximum(total, 1e-30)[..., None]


def _weighted(scores, shift, dtype, slots: Cache):
  """The sum of the softmax terms of some slots, and their weighted values."""
  terms = softmax_terms(scores, shift[..., None], dtype)
  out = einsum32(
      "BKQS,BKSC->BKQC",
      _scaled(terms, slots.v_scale).astype(dtype),
      slots.v.astype(dtype),
  )
  return terms.sum(-1), out


def _attend_in_blocks(q_BKQC, cache: Cache, layer, rows_B, position_B):
  """Attention of some rows of the cache, up to the end of the longest row."""
  blocks = jnp.max(position_B) // BLOCK + 1

  def read(x, axis, first):
    """A block of slots of one layer, [B, ...]; `axis` counts slots."""
    sizes = [1, 1, *x.shape[2:]]
    sizes[axis] = BLOCK
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.ndim - 1)),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1, axis),
    )
    at = [jnp.broadcast_to(n, rows_B.shape) for n in (layer, rows_B, first)]
    # One gather: indexing by layer and then by rows would copy the layer.
    return jax.lax.gather(
        x, jnp.stack(at, -1), numbers, sizes, mode="promise_in_bounds"
    )

  def add(block, carry):
    shift, total, out = carry
    first = block * BLOCK
    rest = cache.v, cache.k_scale, cache.v_scale
    rest = jax.tree.map(lambda x: read(x, 3, first), rest)
    slots = Cache(read(cache.k, 4, first), *rest)
    scores = _scores(q_BKQC, slots, first, position_B)
    new = jnp.maximum(shift, softmax_shift(scores.max(-1)))
    block_total, block_out = _weighted(scores, new, q_BKQC.dtype, slots)
    rescale = jnp.exp2(jnp.round((shift - new) / LOG2))  # a power of two
    out = out * rescale[..., None] + block_out
    return new, total * rescale + block_total, out

  zeros = jnp.zeros(q_BKQC.shape, jnp.float32)
  none = softmax_shift(zeros[..., 0] + MASK_VALUE)
  carry = none, zeros[..., 0], zeros
  _, total, out = jax.lax.fori_loop(0, blocks, add, carry)
  return _normalized(total, out)
