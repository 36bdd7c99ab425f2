"""Attention by the Pallas kernels that JAX ships, for GPUs and TPUs.

`models.attention` calls `packed` and `paged` if the run uses kernels of this
module (`models.kernels`). Heads of unsupported sizes are padded with zeros.

Shapes here: H query heads; X rows times key/value heads; P pages of one of
them; N pages of all; S slots of a page.
"""

import importlib
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base.errors import one_line
from rl_reason.base.structs import Array
from rl_reason.devices import sharding
from rl_reason.models.kernels import KERNELS, padded

PAGE = 128  # tokens of the smallest page of a cache and block of queries


def packed(
    kernels: str,
    q_BLKQC: Array,
    k_BLKC: Array,
    v_BLKC: Array,
    segments_BL: Array,
) -> Array:
  """`packed_attention.attend` by the kernels of a key of KERNELS."""
  length, dim = q_BLKQC.shape[1], q_BLKQC.shape[-1]
  block = min(KERNELS[kernels].block, -(-length // PAGE) * PAGE)
  qkv = (_widened(x, padded(kernels, dim)) for x in (q_BLKQC, k_BLKC, v_BLKC))
  whole = [
      jnp.pad(x, ((0, 0), (0, -length % block)) + ((0, 0),) * (x.ndim - 2))
      for x in (*qkv, segments_BL)
  ]
  return _PACKED[kernels](block, *whole)[:, :length, ..., :dim]


def _widened(x: Array, dim: int) -> Array:
  """Heads [..., C], padded with zeros to size `dim`."""
  return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, dim - x.shape[-1]),))


def _packed_triton(block: int, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """FlashAttention-2 (arXiv:2307.08691); keys are repeated for query heads."""
  ops = _import("gpu.attention")
  q_BLHC = q_BLKQC.reshape(*q_BLKQC.shape[:2], -1, q_BLKQC.shape[-1])
  k_BLHC, v_BLHC = (
      jnp.repeat(x, q_BLKQC.shape[3], axis=2) for x in (k_BLKC, v_BLKC)
  )
  out_BLHC = ops.mha(q_BLHC, k_BLHC, v_BLHC, segments_BL, causal=True)
  return out_BLHC.reshape(q_BLKQC.shape)


def _packed_tpu(block: int, q_BLKQC, k_BLKC, v_BLKC, segments_BL):
  """Splash attention, which skips blocks above the diagonal."""
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


def paged(
    kernels: str,
    q_BKQC: Array,
    pools: list[Array],
    layer: Array,
    position_B: Array,
) -> Array:
  """Paged attention of one token per row to one layer of a cache; [B, K, Q, C].

  Kernels read pages by index from a pool. The pool is the cache of all layers
  in its memory layout, so that no layer is copied. Each row of each key/value
  head is a sequence.

  Args:
    kernels: key of KERNELS.
    q_BKQC: scaled queries.
    pools: keys and values [layers, B, K, S, C], with padded heads; for int8
      also scales [layers, B, K, S].
    layer: int32, index of the layer.
    position_B: int32, last visible slot of each row; -1 for none.
  """

  def local(q_BKQC, layer, position_B, k, v, *scales):
    _, rows, heads, slots, dim = v.shape
    page = PAGE * math.gcd(slots // PAGE, KERNELS[kernels].block // PAGE)
    pages = slots // page
    first_X1 = (layer * rows * heads + jnp.arange(rows * heads))[:, None]
    out_XQC = _PAGED[kernels](
        _widened(q_BKQC, dim).reshape(rows * heads, -1, dim),
        *(x.reshape(1, -1, page, dim) for x in (k, v)),
        jnp.repeat(position_B + 1, heads),
        first_X1 * pages + jnp.arange(pages),
        *(x.reshape(1, -1, page) for x in scales),
    )
    out_BKQC = out_XQC.reshape(*q_BKQC.shape[:3], dim)
    return out_BKQC[..., : q_BKQC.shape[3]]

  rows = "batch", "kv_heads", None, None
  axes = [(None, *rows)[: x.ndim] for x in pools]
  run = sharding.by_device(local, (rows, (), ("batch",), *axes), rows)
  return run(q_BKQC, layer, position_B, *pools)


def _paged_triton(q_XQC, k_1NSC, v_1NSC, lengths_X, table_XP, *scales_1NS):
  """Processes splits of a row in parallel, and combines them by a softmax."""
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
  """Prefetches the next page during the computation of a page."""
  ops = _import("tpu.paged_attention")
  return ops.paged_attention(
      q_XQC, k_1NSC, v_1NSC, lengths_X, table_XP, pages_per_compute_block=1
  )


def failure(head_dim: int) -> str:
  """Why this version of JAX has no kernels for GPUs, or ''."""
  del head_dim
  try:
    for name in "gpu.attention", "gpu.paged_attention":
      _import(name)
  except ImportError as e:
    return one_line(e)
  return ""


def _import(name: str) -> Any:
  """Imports a module of kernels of JAX.

  Since jax 0.11 the modules for GPUs give deprecation warnings.
  """
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    return importlib.import_module(f"jax.experimental.pallas.ops.{name}")


_PACKED = {"triton": _packed_triton, "tpu": _packed_tpu}
_PAGED = {"triton": _paged_triton, "tpu": _paged_tpu}
