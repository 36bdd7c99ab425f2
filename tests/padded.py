"""Rows padded on both sides: what tests compare packed ones with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rl_reason.base.structs import Array, Batch, Packed, Rollouts
from rl_reason.devices import sharding
from rl_reason.models import attention, decoder
from rl_reason.training import packing


@struct.dataclass
class Rows(Batch):
  """A batch and its tokens: padded rows, as `Rollouts` has them."""

  tokens_BL: Array
  start_B: Array


def split(tree, minibatches):
  """Rows [B, ...] -> [M, B / M, ...]."""
  return jax.tree.map(lambda x: x.reshape(minibatches, -1, *x.shape[1:]), tree)


def packed(rows: Rows | Rollouts, micro_batches: int = 1) -> Packed:
  """Packs minibatches [M, B, ...] into at most so many micro-batches each."""
  arrays = rows.tokens_BL, rows.start_B, rows.mask_BT
  each = [
      packing.pack(*map(np.asarray, x), x[0].shape[0] // micro_batches)
      for x in zip(*arrays, strict=True)
  ]
  return jax.tree.map(lambda *x: np.stack(x), *each)


def put(mesh, rows: Rows, micro_batches: int = 1) -> tuple[Rows, Packed]:
  """Minibatches of rows, and packed, on a mesh."""
  placed = sharding.put(mesh, rows, None, "batch")
  return placed, sharding.put_packed(mesh, packed(rows, micro_batches))


def micro(tokens_BL, start_B, mask_BT, rows: int | None = None) -> Packed:
  """One micro-batch that holds them all, of as many packed rows as it takes."""
  packed = packing.pack(tokens_BL, start_B, mask_BT, rows or len(tokens_BL))
  assert not packed.segments_RL[1:].any(), "they do not fit"
  count = rows or max(packed.segments_RL[0].any(1).sum(), 1)
  return Packed(
      tokens_RL=packed.tokens_RL[0, :count],
      positions_RL=packed.positions_RL[0, :count],
      segments_RL=packed.segments_RL[0, :count],
      source_BT=packed.source_BT,
  )


def positions(tokens_BL, start_B):
  """Positions and segments of rows that are padded on the left.

  Args:
    tokens_BL: one sequence a row.
    start_B: first slot that is not padding.

  Returns:
    [B, L] int32 each: positions from 0 at `start_B`; 1, and 0 for padding.
  """
  at_BL = jnp.arange(tokens_BL.shape[1]) - start_B[:, None]
  return jnp.maximum(at_BL, 0), (at_BL >= 0).astype(jnp.int32)


def hidden(params, cfg, tokens_BL, start_B):
  """The residual stream of rows that are padded on the left: [B, L, D]."""
  positions_BL, segments_BL = positions(tokens_BL, start_B)
  attend = attention.packed(segments_BL)
  return decoder.forward(params, cfg, tokens_BL, positions_BL, attend)[0]


@functools.partial(jax.jit, static_argnums=(1, 4))
def response_logps(params, cfg, tokens_BL, start_B, length, temperature=1.0):
  """Log-probs and entropy [B, T] of padded rows by the softmax."""
  states = hidden(params, cfg, tokens_BL, start_B)[:, -length - 1 : -1]
  logps_BTV = jax.nn.log_softmax(
      decoder.logits(params, cfg, states) / temperature
  )
  targets_BT1 = jnp.asarray(tokens_BL)[:, -length:, None]
  chosen_BT = jnp.take_along_axis(logps_BTV, targets_BT1, -1)[..., 0]
  return chosen_BT, -jnp.sum(jnp.exp(logps_BTV) * logps_BTV, -1)
