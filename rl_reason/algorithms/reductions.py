"""Reductions over groups, rows and tokens, and the aggregations of the loss.

A group is an id: ids may be any integers, the rows of a group need not be
adjacent, and groups need not be of one size. Statistics of groups are scattered
back to the rows.

A loss aggregation (`token_mean`, `seq_mean_token_mean` ...) takes the mask and
the groups and returns one weight per token, so that the loss is
`sum(weights_BT * loss_BT)`. The weights are computed once over ALL rows of one
optimizer step: each micro-batch and device then contributes its terms to the
same sum, and neither gradient accumulation nor parallelism changes the result.
Rows with an empty mask are left out of every count.
"""

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array

# --- statistics of groups ----------------------------------------------------


def group_sum(
    values_B: Array, groups_B: Array, *, exclude_self: bool = False
) -> Array:
  """Sum over the rows of each row's group.

  Args:
    values_B: [B].
    groups_B: [B] int.
    exclude_self: leave the row itself out of its sum. Subtracting it from the
      full sum instead would cancel where it is much larger than the rest.

  Returns:
    [B] in the dtype of the values.
  """
  member_BB = groups_B[:, None] == groups_B
  if exclude_self:
    member_BB &= ~jnp.eye(len(groups_B), dtype=bool)
  # A tree of additions in fp32 or wider: a segment sum adds row by row, which
  # in a group of a thousand is off by 1e-5, and bf16 cannot count beyond 256.
  wide_B = values_B.astype(jnp.promote_types(values_B.dtype, jnp.float32))
  total_B = jnp.sum(jnp.where(member_BB, wide_B, 0), 1)
  return total_B.astype(values_B.dtype)


def group_max(values_B: Array, groups_B: Array) -> Array:
  """Largest value in each row's group: [B]."""
  # In place of a row of another group stands the row's own value.
  member_BB = groups_B[:, None] == groups_B
  return jnp.where(member_BB, values_B, values_B[:, None]).max(1)


def group_constant(values_B: Array, groups_B: Array) -> Array:
  """Whether all values of each row's group are equal: [B] bool.

  Compares values with each other and not with their mean, which is rounded:
  the mean of sixteen float32 0.7 is not 0.7.
  """
  other_BB = groups_B[:, None] != groups_B
  return jnp.all(other_BB | (values_B[:, None] == values_B), 1)


# --- statistics of tokens ----------------------------------------------------


def row_mean(values_BT: Array, mask_BT: Array) -> Array:
  """Mean over the tokens of each row's mask: [B]; 0 where the mask is empty."""
  # `where` and not a product: a masked position may hold NaN.
  total_B = jnp.sum(jnp.where(mask_BT > 0, values_BT, 0), 1)
  return total_B / jnp.maximum((mask_BT > 0).sum(1), 1)


def masked_mean(values_BT: Array, mask_BT: Array) -> Array:
  """Mean over all tokens of the mask: scalar; 0 if the mask is empty."""
  total = jnp.sum(jnp.where(mask_BT > 0, values_BT, 0))
  return total / jnp.maximum((mask_BT > 0).sum(), 1)


def varies(values_BT: Array, mask_BT: Array) -> Array:
  """Whether the tokens of the mask differ: bool scalar.

  Compares values with each other: the rounded variance of equal values may be
  greater than 0.
  """
  low = jnp.min(values_BT, where=mask_BT > 0, initial=jnp.inf)
  high = jnp.max(values_BT, where=mask_BT > 0, initial=-jnp.inf)
  return low < high


def whiten(values_BT: Array, mask_BT: Array, *, eps: float = 1e-8) -> Array:
  """Shifts and scales to mean 0 and variance 1 (verl's `masked_whiten`).

  Args:
    values_BT: [B, T] float.
    mask_BT: [B, T], tokens that count.
    eps: added to the unbiased variance.

  Returns:
    [B, T] (x - mean) * rsqrt(variance + eps); 0 outside the mask, and exactly 0
    everywhere if all tokens are equal.
  """
  mask_BT = mask_BT > 0
  centred_BT = values_BT - masked_mean(values_BT, mask_BT)
  squares = jnp.sum(jnp.where(mask_BT, centred_BT**2, 0))
  scale = jax.lax.rsqrt(squares / jnp.maximum(mask_BT.sum() - 1, 1) + eps)
  # Rounding residue of equal values must not be scaled up to a signal.
  varied = varies(values_BT, mask_BT)
  return jnp.where(mask_BT & varied, centred_BT * scale, 0)


# --- aggregations of the loss ------------------------------------------------
#
# mask_BT: [B, T] float, 1 for tokens that count; groups_B: [B] int, rows of one
# prompt share an id. Means have weights that sum to 1 unless the mask is empty.


def _divide(mask_BT, count):
  """mask / count; 0 where the count, and with it the mask, is 0."""
  return mask_BT / jnp.maximum(count, 1)


def token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over all tokens of the batch: DAPO (arXiv:2503.14476, sec 3.3).

  This is the reading of the released recipe; `prompt_token_mean` is equation 8
  as printed.
  """
  del groups_B
  return _divide(mask_BT, mask_BT.sum())


def seq_mean_token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over responses of the mean over tokens: GRPO (2402.03300, eq 3)."""
  del groups_B
  length_B1 = mask_BT.sum(1, keepdims=True)
  return _divide(_divide(mask_BT, length_B1), (length_B1 > 0).sum())


def seq_mean_token_sum(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over responses of the sum over tokens (the name is verl's).

  With the ratio of GSPO it is LUSPO (arXiv:2602.05261): m / responses.
  """
  del groups_B
  return _divide(mask_BT, (mask_BT.sum(1) > 0).sum())


def token_sum(mask_BT: Array, groups_B: Array) -> Array:
  """Sum over all tokens of the minibatch (the name is verl's)."""
  del groups_B
  return mask_BT


def constant(mask_BT: Array, groups_B: Array) -> Array:
  """Sum over tokens / (responses x T): Dr.GRPO (arXiv:2503.20783, sec 3.2).

  The divisor is a constant, with T the maximal response length, so that a long
  incorrect response is not penalised less per token than a short one.
  """
  del groups_B
  return _divide(mask_BT, (mask_BT.sum(1) > 0).sum() * mask_BT.shape[1])


def prompt_token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over prompts of the mean over a prompt's tokens: DAPO, eq 8."""
  tokens_B = group_sum(mask_BT.sum(1), groups_B)
  share_BT = _divide(mask_BT, tokens_B[:, None])
  # Each prompt's shares add up to 1, so their sum counts the prompts; rounded,
  # since it is a float sum.
  return _divide(share_BT, jnp.round(share_BT.sum()))
