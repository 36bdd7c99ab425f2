"""Who attends to whom: one small interface, and the ways to go about it.

`model.forward` gives each layer's queries, keys and values to a function

    attend(kernels, index, q_BLKQC, k_BLKC, v_BLKC, cache) -> out_BLKQC, cache

and knows nothing of masks or caches. `packed` is for whole rows, `prefill` for
prompts whose keys and values are kept, `decode` for one more token of each row.

`kernels` says who computes it: "xla" runs everywhere, "tpu" and "gpu" are the
Pallas kernels that JAX ships. `choose` names the one that fits.
"""

import dataclasses
import functools
import importlib
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl_reason.scale import linear, sharding
from rl_reason.structs import Array

BLOCK = 128  # slots of the cache that `decode` reads at a time
SEGMENTS = 4  # parts of a batch, by length, that read as many blocks
PART = 64  # tokens of a part of a row, which sees no more keys than it must
PARTS = 8  # of a row, at most: of a long one they have more tokens
KEPT = "attention"  # name of what a backward pass need not compute again
NEVER = -1e30  # a score that no softmax sees


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cache:
  """Keys and values of every layer; slot s holds the token of position s.

  Attributes:
    k: [layers, B, K, C, S] for "xla". Slots last: scores are then sums of rows,
      which XLA's CPU backend computes three times as fast as products of
      columns. As v for the kernels, which read both alike.
    v: [layers, B, K, S, C].
    k_scale, v_scale: float32 [layers, B, K, S], if k and v are int8: they stand
      for that many times their numbers. Else None.
  """

  k: Array
  v: Array
  k_scale: Array | None = None
  v_scale: Array | None = None


# Attend(kernels, index of the layer, q, k, v, cache) -> out, cache
Attend = Callable[[str, Array, Array, Array, Array, Cache], tuple[Array, Cache]]


class Kernels(NamedTuple):
  """What the kernels of a platform take.

  Attributes:
    head_dims: sizes of a head.
    block: tokens that they look at together, at most; rows are padded to it.
    int8: whether they read a cache of int8. The TPU's would spread each scale
      over the numbers that it scales: an array of four times the bytes of the
      cache, for each layer of each step.
  """

  head_dims: tuple[int, ...]
  block: int
  int8: bool


KERNELS = {
    "gpu": Kernels((64, 128), 128, int8=True),
    "tpu": Kernels((128, 256), 512, int8=False),
}


def choose(
    wanted: str, backend: str, dtype: str, head_dim: int
) -> tuple[str, str]:
  """Who computes attention, and why.

  Args:
    wanted: 'auto', or 'xla' for no kernels.
    backend: what jax runs on.
    dtype: of the matrix products.
    head_dim: of the model.

  Returns:
    'xla', or the key of KERNELS; and the reason, in words.
  """
  fits = KERNELS.get(backend, Kernels((), 0, int8=False))
  reasons = {
      "model.attention": wanted == "xla",
      f"no kernels for {backend}": backend not in KERNELS,
      f"the kernels take bfloat16, not {dtype}": dtype != "bfloat16",
      f"the kernels take heads of {fits.head_dims}, not {head_dim}": (
          head_dim not in fits.head_dims
      ),
  }
  for reason, holds in reasons.items():
    if holds:
      return "xla", reason
  return backend, f"kernels for {backend}"


def slots(length: int) -> int:
  """Slots of a cache for `length` tokens: whole blocks, if there are many."""
  return length if length <= BLOCK else -(-length // BLOCK) * BLOCK


def empty(
    kernels: str,
    layers: int,
    rows: int,
    heads: int,
    slots: int,
    dim: int,
    dtype,
) -> Cache:
  """A cache of zeros: rows over the batch axes, heads over the tensor axis.

  Args:
    kernels: who computes attention.
    layers: of the model.
    rows: B.
    heads: of keys and values.
    slots: tokens of a row.
    dim: numbers of a head.
    dtype: of keys and values; int8 has scales beside them.
  """
  v = jnp.zeros((layers, rows, heads, slots, dim), dtype)
  scale = jnp.zeros(v.shape[:-1]) if v.dtype == jnp.int8 else None
  k = _turned(kernels, v)
  return jax.tree.map(pinned, Cache(k, v, scale, scale))


def pinned(x: Array, rows: str | None = "batch") -> Array:
  """An array of a cache, split over the mesh: rows or none, and heads."""
  rest = (None,) * (x.ndim - 3)
  return sharding.constrain(x, None, rows, "kv_heads", *rest)


def _turned(kernels: str, k: Array) -> Array:
  """Keys [..., S, C] as the cache holds them, and back."""
  return k.swapaxes(-1, -2) if kernels == "xla" else k


def _held(cache: Cache, k: Array, v: Array) -> Cache:
  """New keys and values [..., C] in the dtype of a cache, not yet turned.

  int8 is symmetric, a scale a token and head: absmax / 127.
  """
  if cache.k_scale is None:
    return Cache(k, v)
  # A vector is a matrix of one column.
  k8, v8 = (linear.quantize(x[..., None]) for x in (k, v))
  return Cache(
      k8.values[..., 0], v8.values[..., 0], k8.scale[..., 0], v8.scale[..., 0]
  )


def packed(segments_BL: Array) -> Attend:
  """Each token sees its own segment up to itself.

  Args:
    segments_BL: int32, tokens of one sequence are adjacent and share a number;
      0 is padding, which sees only padding.
  """

  def attend(kernels, index, q_BLKQC, k_BLKC, v_BLKC, cache):
    return _flash(kernels, q_BLKQC, k_BLKC, v_BLKC, segments_BL), cache

  return attend


def prefill(segments_BL: Array) -> Attend:
  """As `packed`, and fills the first L slots of the cache."""
  within = packed(segments_BL)

  def attend(kernels, index, q_BLKQC, k_BLKC, v_BLKC, cache):
    out, _ = within(kernels, index, q_BLKQC, k_BLKC, v_BLKC, cache)
    new = _held(cache, k_BLKC.swapaxes(1, 2), v_BLKC.swapaxes(1, 2))
    turned = _turned(kernels, new.k)

    def write(x, new):
      at = index, *(0,) * new.ndim
      return jax.lax.dynamic_update_slice(x, new[None], at)

    return out, jax.tree.map(write, cache, dataclasses.replace(new, k=turned))

  return attend


def decode(position_B: Array, order_B: Array | None = None) -> Attend:
  """One token a row, which sees its row up to itself.

  Keys and values are written in place, into the carry of the loop over layers:
  as outputs of a scan they would cost a second whole cache. A long cache is
  read in blocks, as many as the longest row of a segment needs, with a running
  softmax (arXiv:2205.14135, algorithm 1): blocks beyond a row's end add
  nothing, exactly. Kernels read as many as each row needs.

  Args:
    position_B: int32, of each row's token; -1 for a row that is not in use.
    order_B: rows by position; what are neighbours here share a segment. It
      changes nothing but the time.
  """
  rows = len(position_B)
  segments = math.gcd(rows, SEGMENTS)
  order_B = jnp.arange(rows) if order_B is None else order_B
  write_B = jnp.maximum(position_B, 0)

  def attend(kernels, index, q_B1KQC, k_B1KC, v_B1KC, cache):
    new = _held(cache, k_B1KC[:, 0], v_B1KC[:, 0])
    at = index, jnp.arange(rows), slice(None)
    k_at = (*at, slice(None), write_B) if kernels == "xla" else (*at, write_B)
    k = cache.k.at[k_at].set(new.k)
    rest = jax.tree.map(
        lambda x, new: x.at[(*at, write_B)].set(new),
        (cache.v, cache.k_scale, cache.v_scale),
        (new.v, new.k_scale, new.v_scale),
    )
    cache = Cache(k, *rest)
    q_BKQC = q_B1KQC[:, 0] * q_B1KQC.shape[-1] ** -0.5
    if cache.v.shape[3] <= BLOCK:
      layer = jax.tree.map(lambda x: x[index], cache)
      k_BKCS = layer.k if kernels == "xla" else layer.k.swapaxes(-1, -2)
      layer = dataclasses.replace(layer, k=k_BKCS)
      out_BKQC = _whole(q_BKQC, layer, position_B)
    elif kernels != "xla":
      out_BKQC = _paged(kernels, q_BKQC, cache, index, position_B)
    else:

      def segment(some):
        return _blocks(q_BKQC[some], cache, index, some, position_B[some])

      parts = jax.lax.map(segment, order_B.reshape(segments, -1))
      out_BKQC = parts.reshape(q_BKQC.shape)[jnp.argsort(order_B)]
    return out_BKQC[:, None].astype(v_B1KC.dtype), cache

  return attend


def _einsum32(axes: str, *args: Array) -> Array:
  """A product summed in fp32, whatever the dtype of its arguments."""
  return jnp.einsum(axes, *args, preferred_element_type=jnp.float32)


def _scaled(x_BKQS, scale_BKS):
  """Numbers of slots, times their scale if they have one."""
  return x_BKQS if scale_BKS is None else x_BKQS * scale_BKS[:, :, None]


def _scores(q_BKQC, some: Cache, first, position_B):
  """fp32 scores of slots from `first` on, and which of them count.

  int8 is exact in the dtype of the queries: scores are scaled, not keys, and
  probabilities, not values.
  """
  k_BKCS = some.k.astype(q_BKQC.dtype)
  scores = _einsum32("BKQC,BKCS->BKQS", q_BKQC, k_BKCS)
  scores = _scaled(scores, some.k_scale)
  slot_S = first + jnp.arange(k_BKCS.shape[-1])
  visible = (slot_S <= position_B[:, None])[:, None, None]
  return jnp.where(visible, scores, NEVER), visible


def _whole(q_BKQC, layer: Cache, position_B):
  scores, _ = _scores(q_BKQC, layer, 0, position_B)
  probs = _scaled(jax.nn.softmax(scores, -1), layer.v_scale)
  dtype = q_BKQC.dtype
  return jnp.einsum(
      "BKQS,BKSC->BKQC", probs.astype(dtype), layer.v.astype(dtype)
  )


def _blocks(q_BKQC, cache: Cache, index, rows_B, position_B):
  """Attention of some rows of the cache to as many blocks as they need."""
  blocks = jnp.max(position_B) // BLOCK + 1

  def read(x, axis, at):
    """[B, ...] a block of slots of one layer; `axis` counts slots."""
    sizes = [1, 1, *x.shape[2:]]
    sizes[axis] = BLOCK
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.ndim - 1)),
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
    rest = cache.v, cache.k_scale, cache.v_scale
    rest = jax.tree.map(lambda x: read(x, 3, at), rest)
    some = Cache(read(cache.k, 4, at), *rest)
    scores, visible = _scores(q_BKQC, some, at, position_B)
    higher = jnp.maximum(most, scores.max(-1))
    probs = jnp.where(visible, jnp.exp(scores - higher[..., None]), 0)
    fade = jnp.exp(most - higher)
    here = _einsum32(
        "BKQS,BKSC->BKQC",
        _scaled(probs, some.v_scale).astype(q_BKQC.dtype),
        some.v.astype(q_BKQC.dtype),
    )
    out = out * fade[..., None] + here
    return higher, total * fade + probs.sum(-1), out

  zeros = jnp.zeros(q_BKQC.shape, jnp.float32)
  carry = zeros[..., 0] + NEVER, zeros[..., 0], zeros
  _, total, out = jax.lax.fori_loop(0, blocks, add, carry)
  return out / jnp.maximum(total, 1e-30)[..., None]


def _flash(kernels: str, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """Grouped-query attention, softmax in fp32: [B, L, K, Q, C].

  In no way is there an array of length x length for all rows.
  """
  length = q_BLKQC.shape[1]
  block = 1
  if kernels != "xla":
    block = min(KERNELS[kernels].block, -(-length // BLOCK) * BLOCK)
  wide = [
      jnp.pad(x, ((0, 0), (0, -length % block)) + ((0, 0),) * (x.ndim - 2))
      for x in (
          q_BLKQC * q_BLKQC.shape[-1] ** -0.5,
          k_BLKC,
          v_BLKC,
          segments_BL,
      )
  ]
  keys = "batch", None, "kv_heads", None
  run = sharding.by_device(
      functools.partial(_FLASH[kernels], block),
      ((*keys, None), keys, keys, ("batch", None)),
      (*keys, None),
  )
  return run(*wide)[:, :length]


def _flash_xla(block: int, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """Scores again in the backward pass, instead of keeping them.

  On a CPU a row at a time: its scores stay in the cache, and their memory is
  not asked for again and again. Both passes took .4 of the time that they take
  with all rows at once (16 rows of 160, 8 heads of 32).
  """
  heads_first = (
      q_BLKQC.transpose(0, 2, 3, 1, 4),
      k_BLKC.swapaxes(1, 2),
      v_BLKC.swapaxes(1, 2),
  )
  # A token sees from the first of its segment to itself. To compare segments
  # would take XLA's CPU backend as long again as all the rest of attention.
  at_L = jnp.arange(segments_BL.shape[1])
  starts_BL = segments_BL != jnp.roll(segments_BL, 1, 1)
  first_BL = jax.lax.cummax(jnp.where(starts_BL, at_L, 0), 1)
  return _rows(*heads_first, first_BL).transpose(0, 3, 1, 2, 4)


@jax.custom_vjp
def _rows(q_BKQLC, k_BKLC, v_BKLC, first_BL):
  return _rows_forward(q_BKQLC, k_BKLC, v_BKLC, first_BL)[0]


def _rows_forward(*rows):
  out_BKQLC, total_BKQL = _each(_row_forward, rows)
  out_BKQLC = checkpoint_name(out_BKQLC, KEPT)
  total_BKQL = checkpoint_name(total_BKQL, KEPT)
  return out_BKQLC, (*rows, out_BKQLC, total_BKQL)


def _rows_backward(saved, grad_BKQLC):
  return *_each(_row_backward, (*saved, grad_BKQLC)), None


_rows.defvjp(_rows_forward, _rows_backward)


def _each(fn: Callable, rows: tuple[Array, ...]):
  if jax.default_backend() == "cpu":
    return jax.lax.map(lambda row: fn(*row), rows)
  return jax.vmap(fn)(*rows)


def _parts(length: int) -> list[slice]:
  """Parts of a row. No query of a part looks at a key behind it."""
  count = min(-(-length // PART), PARTS)
  ends = [length * n // count for n in range(count + 1)]
  return [slice(*pair) for pair in itertools.pairwise(ends)]


def _seen(part: slice, first_L):
  """Whether the queries of a part see a key, by their places: [X, S]."""
  at_L = jnp.arange(len(first_L))
  at_X1, at_S = at_L[part, None], at_L[: part.stop]
  return (first_L[part, None] <= at_S) & (at_S <= at_X1)


def _row_forward(q_KQLC, k_KLC, v_KLC, first_L):
  """What the queries of a row see, and the log of the sum of their weights."""
  outs, totals = [], []
  for part in _parts(len(first_L)):
    k_KSC, v_KSC = k_KLC[:, : part.stop], v_KLC[:, : part.stop]
    scores = _einsum32("KQXC,KSC->KQXS", q_KQLC[:, :, part], k_KSC)
    scores = jnp.where(_seen(part, first_L), scores, NEVER)
    most = scores.max(-1, keepdims=True)
    probs = jnp.exp(scores - most)
    total = probs.sum(-1, keepdims=True)
    seen = jnp.einsum("KQXS,KSC->KQXC", probs.astype(v_KSC.dtype), v_KSC)
    outs.append((seen / total).astype(v_KSC.dtype))
    totals.append((most + jnp.log(total))[..., 0])
  return jnp.concatenate(outs, 2), jnp.concatenate(totals, 2)


def _row_backward(
    q_KQLC, k_KLC, v_KLC, first_L, out_KQLC, total_KQL, grad_KQLC
):
  """Gradients of a row's queries, keys and values.

  Keys before queries, so that no product needs its scores turned: on a CPU
  each turn is a copy of them.
  """
  product = grad_KQLC.astype(jnp.float32) * out_KQLC
  mean_KQL = product.sum(-1)
  kv, group, _, dim = q_KQLC.shape
  grad_q, grad_k, grad_v = [], jnp.zeros_like(k_KLC), jnp.zeros_like(v_KLC)
  for part in _parts(len(first_L)):
    k_KSC, v_KSC = k_KLC[:, : part.stop], v_KLC[:, : part.stop]
    # The queries of all heads of a key, end to end: Z = Q * X.
    q_KZC, grad_KZC = (
        x[:, :, part].reshape(kv, -1, dim) for x in (q_KQLC, grad_KQLC)
    )

    def apart(x_KSZ):
      return x_KSZ.reshape(*x_KSZ.shape[:2], group, -1)

    scores = apart(_einsum32("KSC,KZC->KSZ", k_KSC, q_KZC))
    seen_S1X = _seen(part, first_L).T[:, None]
    scores = jnp.where(seen_S1X, scores, NEVER)
    probs = jnp.exp(scores - total_KQL[:, None, :, part])
    back = apart(_einsum32("KSC,KZC->KSZ", v_KSC, grad_KZC))
    back = (probs * (back - mean_KQL[:, None, :, part])).astype(k_KSC.dtype)
    probs_KSZ, back_KSZ = (
        x.reshape(*x.shape[:2], -1) for x in (probs.astype(v_KSC.dtype), back)
    )
    grad_KCZ = jnp.einsum("KSC,KSZ->KCZ", k_KSC, back_KSZ)
    grad_q.append(grad_KCZ.reshape(kv, dim, group, -1))
    # Padded, not added in place: on a mesh jaxlib 0.11.2 would crash compiling.
    rest = (0, 0), (0, k_KLC.shape[1] - part.stop), (0, 0)
    grad_k += jnp.pad(jnp.einsum("KSZ,KZC->KSC", back_KSZ, q_KZC), rest)
    grad_v += jnp.pad(jnp.einsum("KSZ,KZC->KSC", probs_KSZ, grad_KZC), rest)
  grad_KCQL = jnp.concatenate(grad_q, 3)
  return grad_KCQL.transpose(0, 2, 3, 1), grad_k, grad_v


def _flash_gpu(block: int, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """FlashAttention-2 (arXiv:2307.08691), which wants a key for each query."""
  ops = _import("gpu.attention")
  q_BLHC = q_BLKQC.reshape(*q_BLKQC.shape[:2], -1, q_BLKQC.shape[-1])
  k_BLHC, v_BLHC = (
      jnp.repeat(x, q_BLKQC.shape[3], axis=2) for x in (k_BLKC, v_BLKC)
  )
  out_BLHC = ops.mha(q_BLHC, k_BLHC, v_BLHC, segments_BL, causal=True)
  return out_BLHC.reshape(q_BLKQC.shape)


def _flash_tpu(block: int, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """Splash attention: blocks above the diagonal are never visited."""
  ops = _import("tpu.splash_attention")
  rows, length, kv, group, dim = q_BLKQC.shape
  mask = ops.MultiHeadMask([ops.CausalMask((length, length))] * kv * group)
  names = ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")
  sizes = ops.BlockSizes(**{f"block_{name}": block for name in names})
  kernel = ops.make_splash_mha(
      mask, block_sizes=sizes, head_shards=1, q_seq_shards=1
  )
  q_BHLC = q_BLKQC.reshape(rows, length, -1, dim).swapaxes(1, 2)
  out_BHLC = jax.vmap(kernel)(
      q_BHLC,
      k_BLKC.swapaxes(1, 2),
      v_BLKC.swapaxes(1, 2),
      ops.SegmentIds(segments_BL, segments_BL),
  )
  return out_BHLC.swapaxes(1, 2).reshape(q_BLKQC.shape)


def _paged(kernels: str, q_BKQC, cache: Cache, index, position_B):
  """Attention of each row to as many pages of one layer as it needs.

  The kernels read pages from a pool by number. Ours is the cache of all layers
  as it lies in memory, so that no layer is cut out of it. A row of a key/value
  head counts as a sequence.
  """

  def local(q_BKQC, index, position_B, k, v, *scales):
    layers, rows, heads, slots, dim = v.shape
    page = BLOCK * math.gcd(slots // BLOCK, KERNELS[kernels].block // BLOCK)
    pages = slots // page
    first_X1 = (index * rows * heads + jnp.arange(rows * heads))[:, None]
    out_XQC = _PAGED[kernels](
        q_BKQC.reshape(rows * heads, -1, dim),
        *(x.reshape(1, -1, page, dim) for x in (k, v)),
        jnp.repeat(position_B + 1, heads),
        first_X1 * pages + jnp.arange(pages),
        *(x.reshape(1, -1, page) for x in scales),
    )
    return out_XQC.reshape(q_BKQC.shape)

  rows = "batch", "kv_heads", None, None
  pools = jax.tree.leaves(cache)
  axes = [(None, *rows)[: x.ndim] for x in pools]
  run = sharding.by_device(local, (rows, (), ("batch",), *axes), rows)
  return run(q_BKQC, index, position_B, *pools)


def _paged_gpu(q_XQC, k_1NSC, v_1NSC, lengths_X, table_XP, *scales_1NS):
  """Parts of a row run side by side; one more softmax joins them."""
  ops = _import("gpu.paged_attention")
  return ops.paged_attention(
      q_XQC,
      k_1NSC,
      v_1NSC,
      table_XP,
      lengths_X,
      *scales_1NS,
      pages_per_compute_block=1,
      k_splits=math.gcd(table_XP.shape[1], 16),
  )


def _paged_tpu(q_XQC, k_1NSC, v_1NSC, lengths_X, table_XP):
  """The next page is on its way while one is computed."""
  ops = _import("tpu.paged_attention")
  return ops.paged_attention(
      q_XQC, k_1NSC, v_1NSC, lengths_X, table_XP, pages_per_compute_block=1
  )


def _import(name: str) -> Any:
  """A module of JAX's kernels, imported only where it is used.

  Those for the GPU say from jax 0.11 on that they are deprecated; setup.py
  bounds jax to versions that have them.
  """
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    return importlib.import_module(f"jax.experimental.pallas.ops.{name}")


_FLASH = {"xla": _flash_xla, "gpu": _flash_gpu, "tpu": _flash_tpu}
_PAGED = {"gpu": _paged_gpu, "tpu": _paged_tpu}
