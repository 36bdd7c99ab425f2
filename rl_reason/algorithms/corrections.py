"""Factors per token or row, known before the update: 1 changes nothing.

They multiply advantages (every surrogate is linear in them for factors >= 0) or
weights. All are computed from the log-probs of the policy that sampled, over
all rows of a step, so micro-batches cannot change them.
"""

import chex
import jax.numpy as jnp

from rl_reason.algorithms.groups import row_mean, token_mean
from rl_reason.structs import Array

LEVELS = ("token", "sequence", "geometric")


def _mismatch(old_logps_BT, sampler_logps_BT, mask_BT, level):
  """pi_old / pi_sampler: trainer over sampler, before any update."""
  chex.assert_equal_shape([old_logps_BT, sampler_logps_BT, mask_BT])
  here_BT = mask_BT > 0
  log_BT = jnp.where(here_BT, old_logps_BT - sampler_logps_BT, 0)
  if level == "sequence":
    log_BT = jnp.broadcast_to(log_BT.sum(1, keepdims=True), log_BT.shape)
  elif level == "geometric":
    mean_B1 = row_mean(log_BT, here_BT)[:, None]
    log_BT = jnp.broadcast_to(mean_B1, log_BT.shape)
  elif level != "token":
    raise ValueError(f"level {level!r}: one of {', '.join(LEVELS)}")
  return jnp.where(here_BT, jnp.exp(jnp.clip(log_BT, -20, 20)), 0)


def truncate(
    old_logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    *,
    correction_high: float = 2.0,
    correction_level: str = "token",
) -> Array:
  """Truncated importance sampling: min(pi_old / pi_sampler, C).

  Against a sampler whose probabilities are not the trainer's (other kernels,
  lower precision). pi_old is the trainer's, before the update.

  Args:
    old_logps_BT: [B, T] by the trainer.
    sampler_logps_BT: [B, T] by the sampler.
    mask_BT: [B, T], response tokens.
    correction_high: C; 2 is usual.
    correction_level: 'token', 'sequence' (product over the response) or
      'geometric' (its geometric mean).

  Returns:
    [B, T] factors in [0, C], 0 outside the mask.

  Raises:
    ValueError: another level.
  """
  ratio_BT = _mismatch(
      old_logps_BT, sampler_logps_BT, mask_BT, correction_level
  )
  return jnp.minimum(ratio_BT, correction_high)


def two_sided(
    old_logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    *,
    correction_low: float = 0.5,
    correction_high: float = 2.0,
    correction_level: str = "token",
) -> Array:
  """IcePop: the ratio where it lies in [low, high], 0 where it does not.

  Args:
    old_logps_BT: [B, T] by the trainer.
    sampler_logps_BT: [B, T] by the sampler.
    mask_BT: [B, T], response tokens.
    correction_low: alpha, .5 in IcePop.
    correction_high: beta, 5 in IcePop.
    correction_level: as in `truncate`.

  Returns:
    [B, T] factors, 0 outside the mask.

  Raises:
    ValueError: another level.
  """
  ratio_BT = _mismatch(
      old_logps_BT, sampler_logps_BT, mask_BT, correction_level
  )
  inside_BT = (ratio_BT >= correction_low) & (ratio_BT <= correction_high)
  return jnp.where(inside_BT, ratio_BT, 0)


def top_share(values_BT: Array, mask_BT: Array, share: float) -> Array:
  """Which tokens are among the `share` with the largest values.

  Of entropies: only forking tokens learn (arXiv:2506.01939, eq 5, share .2). Of
  covariances: KL-Cov's tokens (arXiv:2505.22617, eq 13).

  Args:
    values_BT: [B, T] float.
    mask_BT: [B, T], tokens that take part.
    share: in [0, 1]; at least one token, ties with the last one included.

  Returns:
    [B, T] bool, False outside the mask.
  """
  here_BT = mask_BT > 0
  flat = jnp.sort(jnp.where(here_BT, values_BT, -jnp.inf).reshape(-1))
  # A hair less: .3 of 100 must not round up to 31.
  count = jnp.ceil(share * here_BT.sum() * (1 - 1e-6)).astype(jnp.int32)
  least = flat[jnp.clip(flat.size - count, 0, flat.size - 1)]
  return here_BT & (values_BT >= least)


def covariance(logps_BT: Array, advantages_BT: Array, mask_BT: Array) -> Array:
  """(log p - mean) * (A - mean) of each token (arXiv:2505.22617, eq 10).

  Tokens that are likely and good: they are what takes entropy away.

  Args:
    logps_BT: [B, T] of the policy that sampled.
    advantages_BT: [B, T].
    mask_BT: [B, T], tokens to take the means over.

  Returns:
    [B, T], 0 outside the mask.
  """
  product_BT = (logps_BT - token_mean(logps_BT, mask_BT)) * (
      advantages_BT - token_mean(advantages_BT, mask_BT)
  )
  return jnp.where(mask_BT > 0, product_BT, 0)


def clip_cov(
    cov_BT: Array,
    mask_BT: Array,
    uniform_BT: Array,
    *,
    cov_share: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
) -> Array:
  """Clip-Cov: some tokens of high covariance lose their gradient (eq 12).

  Args:
    cov_BT: [B, T], `covariance`.
    mask_BT: [B, T].
    uniform_BT: [B, T] in [0, 1), decides which ones.
    cov_share: r, how many of all tokens, at most; at least one.
    cov_low: least covariance of a candidate.
    cov_high: largest one.

  Returns:
    [B, T] factors: 0 for the tokens drawn, 1 elsewhere.
  """
  able_BT = (mask_BT > 0) & (cov_BT > cov_low) & (cov_BT < cov_high)
  order = jnp.argsort(jnp.where(able_BT, uniform_BT, 2).reshape(-1))
  place_BT = jnp.argsort(order).reshape(able_BT.shape)
  count = jnp.maximum(jnp.floor(cov_share * (mask_BT > 0).sum()), 1)
  return jnp.where(able_BT & (place_BT < count), 0, 1).astype(cov_BT.dtype)


def length_factor(mask_BT: Array, alpha: float) -> Array:
  """(|o| / median)^-alpha of each response, a factor on any reduction.

  Args:
    mask_BT: [B, T] of one optimizer step; rows without a token do not count.
    alpha: in [0, .5]; 0 is all ones.

  Returns:
    [B] float.
  """
  dtype = jnp.promote_types(mask_BT.dtype, jnp.float32)
  length_B = (mask_BT > 0).sum(1).astype(dtype)
  full_B = length_B > 0
  median = jnp.nanmedian(jnp.where(full_B, length_B, jnp.nan))
  return jnp.where(full_B, (length_B / median) ** -alpha, 1)


def past_weights(
    logps_HT: Array, past_logps_HT: Array, mask_HT: Array, *, limit: float = 2.0
) -> Array:
  """What an old response still says of the policy: min(pi / pi_then, limit).

  Args:
    logps_HT: [H, T] of the policy now.
    past_logps_HT: [H, T] of the one that sampled it.
    mask_HT: [H, T]; a row without a token is an empty place.
    limit: cap of the ratio of the whole response.

  Returns:
    [H] float, 0 for an empty place.
  """
  ratio_HT = truncate(
      logps_HT,
      past_logps_HT,
      mask_HT,
      correction_high=limit,
      correction_level="sequence",
  )
  return jnp.max(ratio_HT, 1)
