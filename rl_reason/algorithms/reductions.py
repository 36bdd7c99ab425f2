"""Loss reductions, each as one weight per token: `loss = sum(w_BT * loss_BT)`.

A weight is computed once over ALL rows of one optimizer step: every
micro-batch and device then adds its share of the same sum, and neither
accumulation nor parallelism can change the result. Rows whose mask is empty
leave every count.
"""

import jax.numpy as jnp

from rl_reason.algorithms.groups import group_sum
from rl_reason.structs import Array


def _over(mask_BT, count):
  """mask / count, and 0 where there is nothing to count."""
  return mask_BT / jnp.maximum(count, 1)


def token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Every token of the step weighs the same: DAPO (arXiv:2503.14476, sec 3.3).

  The recipe's reading: one mean over the tokens of the whole batch.

  Args:
    mask_BT: [B, T] float, 1 for tokens that count.
    groups_B: [B] int, unused here.

  Returns:
    [B, T], sums to 1 unless the mask is empty.
  """
  del groups_B
  return _over(mask_BT, mask_BT.sum())


def seq_mean_token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over responses of the mean over tokens: GRPO (2402.03300, eq 3).

  Args:
    mask_BT: [B, T] float.
    groups_B: [B] int, unused here.

  Returns:
    [B, T], sums to 1 unless the mask is empty.
  """
  del groups_B
  length_B1 = mask_BT.sum(1, keepdims=True)
  return _over(_over(mask_BT, length_B1), (length_B1 > 0).sum())


def seq_mean_token_sum(mask_BT: Array, groups_B: Array) -> Array:
  """Mean over responses of the SUM over tokens (verl's name for it).

  Args:
    mask_BT: [B, T] float.
    groups_B: [B] int, unused here.

  Returns:
    [B, T]; the weights sum to the mean length.
  """
  del groups_B
  return _over(mask_BT, (mask_BT.sum(1) > 0).sum())


def constant(mask_BT: Array, groups_B: Array) -> Array:
  """Sum over tokens / (responses x T): Dr.GRPO (arXiv:2503.20783, sec 3.2).

  The divisor is a constant: T, the longest response that is allowed, so a
  long wrong answer is not punished less per token than a short one.

  Args:
    mask_BT: [B, T] float.
    groups_B: [B] int, unused here.

  Returns:
    [B, T].
  """
  del groups_B
  return _over(mask_BT, (mask_BT.sum(1) > 0).sum() * mask_BT.shape[1])


def prompt_token_mean(mask_BT: Array, groups_B: Array) -> Array:
  """Token mean in each group, then mean of groups: DAPO eq 8, read literally.

  Args:
    mask_BT: [B, T] float.
    groups_B: [B] int, rows of one prompt share an id.

  Returns:
    [B, T], sums to 1 unless the mask is empty.
  """
  length_B = mask_BT.sum(1)
  tokens_B = group_sum(length_B, groups_B)
  share_BT = _over(mask_BT, tokens_B[:, None])
  return _over(share_BT, jnp.round(share_BT.sum()))
