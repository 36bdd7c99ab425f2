"""Which tokens count in the loss, and how much: functions of arrays."""

from collections.abc import Callable

import jax.numpy as jnp

from rl_reason.base.structs import Array, call_by_name


def of_high_entropy(
    advantages_BT: Array, entropy_BT: Array, mask_BT: Array, *, share: float
) -> Array:
  """Advantages that are 0 beside the `share` of tokens of highest entropy."""
  selected_BT = top_share(entropy_BT, mask_BT, share)
  return jnp.where(selected_BT, advantages_BT, 0)


def top_share(values_BT: Array, mask_BT: Array, share: float) -> Array:
  """Selects the `share` of tokens with the largest values.

  Of entropies: only forking tokens are trained on (arXiv:2506.01939, eq 5,
  share .2).

  Args:
    values_BT: [B, T] float.
    mask_BT: [B, T], tokens to select from.
    share: in [0, 1]; at least one token, and ties with the last one included.

  Returns:
    [B, T] bool, False outside the mask.
  """
  mask_BT = mask_BT > 0
  ordered = jnp.sort(jnp.where(mask_BT, values_BT, -jnp.inf).reshape(-1))
  # Slightly less, so that .3 of 100 is not rounded up to 31.
  count = jnp.ceil(share * mask_BT.sum() * (1 - 1e-6)).astype(jnp.int32)
  least = ordered[jnp.clip(ordered.size - count, 0, ordered.size - 1)]
  return mask_BT & (values_BT >= least)


def by_length(
    mask_BT: Array, groups_B: Array, *, reduction: Callable, alpha: float
) -> Array:
  """The weights of a loss aggregation times `length_factor`, [B, T]."""
  rows = dict(mask_BT=mask_BT, groups_B=groups_B)
  weights_BT = call_by_name(reduction, rows)
  return weights_BT * length_factor(mask_BT, alpha)[:, None]


def length_factor(mask_BT: Array, alpha: float) -> Array:
  """(|o| / median)^-alpha of each response, a factor on any loss aggregation.

  alpha is in [0, .5], mask_BT that of one optimizer step; returns [B].
  """
  dtype = jnp.promote_types(mask_BT.dtype, jnp.float32)
  length_B = (mask_BT > 0).sum(1).astype(dtype)
  some_B = length_B > 0
  median = jnp.nanmedian(jnp.where(some_B, length_B, jnp.nan))
  return jnp.where(some_B, (length_B / median) ** -alpha, 1)
