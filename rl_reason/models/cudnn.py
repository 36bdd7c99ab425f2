"""Attention of packed rows by cuDNN, through `jax.nn.dot_product_attention`.

cuDNN supports causal masks and lengths of rows, but no segments, for which the
public function of JAX needs a mask of all pairs of tokens. Therefore the
queries of a row are split into tiles, which are processed in sequence: only the
mask of one tile is in memory at a time, without an axis of heads.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from rl_reason.base.errors import one_line
from rl_reason.base.structs import Array
from rl_reason.devices import sharding
from rl_reason.models import kernels, packed_attention

NEAR = 0.02  # tolerance relative to the largest number: two bfloat16 roundings


def attend(
    q_BLKQC: Array,
    k_BLKC: Array,
    v_BLKC: Array,
    segments_BL: Array,
    implementation: str = "cudnn",
) -> Array:
  """`packed_attention.attend`, with an `implementation` of `jax.nn`."""
  rows, length, kv, group, dim = q_BLKQC.shape
  block = kernels.KERNELS["cudnn"].block
  tile = -(-length // (packed_attention.MAX_TILES * block)) * block
  more = kernels.padded("cudnn", dim) - dim

  def pad(x):
    heads = ((0, 0),) * (x.ndim - 3) + ((0, more),) if x.ndim > 2 else ()
    return jnp.pad(x, ((0, 0), (0, -length % tile), *heads))

  q_BLHC = pad(q_BLKQC.reshape(rows, length, kv * group, dim))
  k_BLKC, v_BLKC, segments_BL = map(pad, (k_BLKC, v_BLKC, segments_BL))
  first_BL = packed_attention.first_keys(segments_BL)
  outs = [
      _tile(implementation, start, tile, q_BLHC, k_BLKC, v_BLKC, first_BL)
      for start in range(0, q_BLHC.shape[1], tile)
  ]
  out_BLHC = jnp.concatenate(outs, 1)[:, :length, :, :dim]
  out_BLHC = checkpoint_name(out_BLHC, packed_attention.SAVED)
  return out_BLHC.reshape(q_BLKQC.shape)


# The backward pass recomputes the slices and the mask of a tile.
@functools.partial(jax.checkpoint, static_argnums=(0, 1, 2))
def _tile(implementation, start, tile, q_BLHC, k_BLKC, v_BLKC, first_BL):
  """The outputs of a tile of queries [B, X, H, C]."""
  stop = start + tile
  at_S = jnp.arange(stop)
  visible_BXS = (first_BL[:, start:stop, None] <= at_S) & (
      at_S <= at_S[start:, None]
  )
  return jax.nn.dot_product_attention(
      q_BLHC[:, start:stop],
      k_BLKC[:, :stop],
      v_BLKC[:, :stop],
      mask=visible_BXS[:, None],
      scale=1.0,
      implementation=implementation,
  )


def decode(
    q_BKQC: Array,
    k_BSKC: Array,
    v_BSKC: Array,
    position_B: Array,
    implementation: str = "cudnn",
) -> Array:
  """Attention of one scaled query per row to slots up to its position.

  Rows at position -1 read slot 0: a softmax of nothing is not a number.
  """

  def local(q_BKQC, k_BSKC, v_BSKC, position_B):
    rows, kv, group, dim = q_BKQC.shape
    more = k_BSKC.shape[-1] - dim  # the heads of the cache may be padded
    q_BKQC = jnp.pad(q_BKQC, ((0, 0), (0, 0), (0, 0), (0, more)))
    out_B1HC = jax.nn.dot_product_attention(
        q_BKQC.reshape(rows, 1, kv * group, -1),
        k_BSKC,
        v_BSKC,
        scale=1.0,
        key_value_seq_lengths=jnp.maximum(position_B, 0) + 1,
        implementation=implementation,
    )
    return out_B1HC.reshape(q_BKQC.shape)[..., :dim]

  queries = "batch", "kv_heads", None, None
  slots = "batch", None, "kv_heads", None
  axes = queries, slots, slots, ("batch",)
  return sharding.by_device(local, axes, queries)(
      q_BKQC, k_BSKC, v_BSKC, position_B
  )


@functools.cache
def failure(head_dim: int) -> str:
  """Why cuDNN attention does not work on this machine, or ''.

  The function runs forward and backward passes and a step of decoding once,
  and compares them with XLA, since the masks and sizes that cuDNN supports
  depend on its version and the GPU.
  """

  def total(attend, q, k, v):
    out = attend(q, k, v, segments)
    return jnp.sum(out.astype(jnp.float32) * weights), out

  def run(attend, decode):
    fn = functools.partial(total, attend)
    fn = jax.value_and_grad(fn, (0, 1, 2), has_aux=True)
    (_, out), grads = jax.jit(fn)(*qkv)
    more = kernels.cached("cudnn", head_dim) - head_dim
    k, v = (jnp.pad(x, [(0, 0)] * 3 + [(0, more)]) for x in qkv[1:])
    position_B = jnp.asarray([250, -1], jnp.int32)
    token = jax.jit(decode)(qkv[0][:, -1], k, v, position_B)
    return [np.asarray(x, np.float32) for x in (out, *grads, token)]

  rng = np.random.default_rng(0)
  shape = 2, 3 * kernels.KERNELS["cudnn"].block, 2  # three tiles
  qkv = [
      jnp.asarray(rng.normal(size=(*shape, *more)), jnp.bfloat16)
      for more in ((2, head_dim), (head_dim,), (head_dim,))
  ]
  qkv[0] *= head_dim**-0.5
  weights = rng.normal(size=qkv[0].shape).astype(np.float32)
  places = np.arange(shape[1]) // np.array([[50], [250]])
  segments = jnp.asarray(1 + places, jnp.int32)
  try:
    got = run(attend, decode)
  except (RuntimeError, ValueError) as e:  # from JAX, XLA or cuDNN
    return one_line(e)[:300]
  of_xla = functools.partial(decode, implementation="xla")
  for a, b in zip(got, run(packed_attention.attend, of_xla), strict=True):
    gap = np.abs(a - b).max() / np.abs(b).max()
    if not gap <= NEAR:
      return f"differs from XLA by {gap:.2g} of the largest number"
  return ""
