"""Statistics within groups, rows and batches: what the core counts with.

A group is an id: ids may be any integers, rows of a group need not be adjacent,
groups need not be of one size. Results are scattered back to the rows.
"""

import jax
import jax.numpy as jnp

from rl_reason.structs import Array


def group_sum(
    values_B: Array, groups_B: Array, *, others: bool = False
) -> Array:
  """Sum over the rows of each row's group.

  A tree of additions in fp32 or wider, whatever the dtype: a segment's sum adds
  row by row, and in a group of a thousand that is off by 1e-5.

  Args:
    values_B: [B].
    groups_B: [B] int.
    others: without the row itself, summed as such: what a row has to do with a
      small rest would cancel in a difference.

  Returns:
    [B] in the dtype of the values.
  """
  counts_BB = groups_B[:, None] == groups_B
  if others:
    counts_BB &= ~jnp.eye(len(groups_B), dtype=bool)
  wide_B = values_B.astype(jnp.promote_types(values_B.dtype, jnp.float32))
  total_B = jnp.sum(jnp.where(counts_BB, wide_B, 0), 1)
  return total_B.astype(values_B.dtype)


def group_max(values_B: Array, groups_B: Array) -> Array:
  """Largest value in each row's group."""
  return _reduce(jax.ops.segment_max, values_B, groups_B)


def group_min(values_B: Array, groups_B: Array) -> Array:
  """Smallest value in each row's group."""
  return _reduce(jax.ops.segment_min, values_B, groups_B)


def _reduce(reduction, values_B, groups_B):
  rows = values_B.shape[0]
  _, slot_B = jnp.unique(
      groups_B, return_inverse=True, size=rows, fill_value=-1
  )
  return reduction(values_B, slot_B, num_segments=rows)[slot_B]


def row_mean(values_BT: Array, mask_BT: Array) -> Array:
  """Mean over the tokens of each row's mask: [B]; 0 where it is empty."""
  total_B = jnp.sum(jnp.where(mask_BT > 0, values_BT, 0), 1)
  return total_B / jnp.maximum((mask_BT > 0).sum(1), 1)


def token_mean(values_BT: Array, mask_BT: Array) -> Array:
  """Mean over all tokens of the mask: scalar; 0 if it is empty."""
  total = jnp.sum(jnp.where(mask_BT > 0, values_BT, 0))
  return total / jnp.maximum((mask_BT > 0).sum(), 1)


def varies(values_BT: Array, mask_BT: Array) -> Array:
  """Whether the tokens of the mask are not all equal: bool scalar.

  Compared with each other: equal values may have a rounded variance above 0.
  """
  here_BT = mask_BT > 0
  low = jnp.min(values_BT, where=here_BT, initial=jnp.inf)
  high = jnp.max(values_BT, where=here_BT, initial=-jnp.inf)
  return low < high


def whiten(values_BT: Array, mask_BT: Array, *, eps: float = 1e-8) -> Array:
  """Mean 0 and variance 1 over the tokens of the mask (verl's masked_whiten).

  Args:
    values_BT: [B, T] float.
    mask_BT: [B, T], tokens that count.
    eps: added to the unbiased variance.

  Returns:
    [B, T] (x - mean) * rsqrt(variance + eps); 0 outside the mask, and exactly 0
    everywhere if all tokens are equal.
  """
  here_BT = mask_BT > 0
  centred_BT = values_BT - token_mean(values_BT, here_BT)
  squares = jnp.sum(jnp.where(here_BT, centred_BT**2, 0))
  scale = jax.lax.rsqrt(squares / jnp.maximum(here_BT.sum() - 1, 1) + eps)
  varied = varies(values_BT, here_BT)
  return jnp.where(here_BT & varied, centred_BT * scale, 0)
