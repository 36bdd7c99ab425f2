"""Rows padded on both sides: what tests compare packed ones with."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rl_reason import attention, model, packing
from rl_reason.structs import Array, Batch, Packed, Rollouts


@struct.dataclass
class Rows(Batch):
  """A batch and its tokens: padded rows, as `Rollouts` has them."""

  tokens_BL: Array
  start_B: Array


def split(tree, *axes):
  """Rows [B, ...] -> [*axes, B / prod(axes), ...]."""
  return jax.tree.map(lambda x: x.reshape(*axes, -1, *x.shape[1:]), tree)


def packed(rows: Rows | Rollouts, count: int | None = None) -> Packed:
  """Each micro-batch of rows [M, A, B, ...], as one row a sequence at most."""
  cuts = rows.mask_BT.shape[:2]
  flat = [
      np.asarray(x).reshape(-1, *x.shape[2:])
      for x in (rows.tokens_BL, rows.start_B, rows.mask_BT)
  ]
  count = count or flat[0].shape[1]
  each = [packing.pack(*row, count) for row in zip(*flat, strict=True)]
  return jax.tree.map(
      lambda *x: np.stack(x).reshape(*cuts, *x[0].shape), *each
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
  return model.forward(params, cfg, tokens_BL, positions_BL, attend)[0]


def response_logps(params, cfg, tokens_BL, start_B, length, temperature=1.0):
  """Log-probs and entropy [B, T] by the whole softmax of padded rows."""
  states = hidden(params, cfg, tokens_BL, start_B)[:, -length - 1 : -1]
  logps_BTV = jax.nn.log_softmax(
      model.logits(params, cfg, states) / temperature
  )
  targets_BT1 = jnp.asarray(tokens_BL)[:, -length:, None]
  chosen_BT = jnp.take_along_axis(logps_BTV, targets_BT1, -1)[..., 0]
  return chosen_BT, -jnp.sum(jnp.exp(logps_BTV) * logps_BTV, -1)
