"""Statistics within groups, where a group is an id: [B], [B] -> [B].

Ids may be any integers; rows of a group need not be adjacent, groups need not
be of one size. Results are scattered back to the rows.
"""

import jax
import jax.numpy as jnp

from rl_reason.structs import Array


def group_sum(values_B: Array, groups_B: Array) -> Array:
  """Sum over the rows of each row's group."""
  return _reduce(jax.ops.segment_sum, values_B, groups_B)


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
