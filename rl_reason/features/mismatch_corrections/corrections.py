"""Corrections of the mismatch between the sampler and the trainer.

Rollouts are sampled with other kernels, and possibly in lower precision, than
the policy is trained with. A correction turns the ratio pi_old / pi_sampler
into one factor per token, which multiplies the advantages. pi_old are the
trainer's log-probs BEFORE the update: factors are computed once over all rows
of a step and have no gradient, so micro-batches do not change them.

Each takes old_logps_BT [B, T] by the trainer before the update,
sampler_logps_BT [B, T] by the sampler, mask_BT [B, T], and advantages_BT [B, T]
where the factor depends on them; and returns factors [B, T], 0 outside the
mask. `level` is the ratio of each 'token', of the whole
'sequence' (product over its tokens), or its 'geometric' mean over the tokens;
another one is a ValueError.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import chex
import jax.numpy as jnp

from rl_reason.algorithms.reductions import masked_mean, row_mean
from rl_reason.base.structs import (
    Array,
    NonNegative,
    UnitInterval,
    call_by_name,
)

Level = Literal["token", "sequence", "geometric"]
AtLeastOne = Annotated[float, (1, None)]


def _mismatch(old_logps_BT, sampler_logps_BT, mask_BT, level):
  """pi_old / pi_sampler of tokens or of whole responses; 0 if masked."""
  chex.assert_equal_shape([old_logps_BT, sampler_logps_BT, mask_BT])
  mask_BT = mask_BT > 0
  log_BT = jnp.where(mask_BT, old_logps_BT - sampler_logps_BT, 0)
  if level == "sequence":
    log_BT = jnp.broadcast_to(log_BT.sum(1, keepdims=True), log_BT.shape)
  elif level == "geometric":
    mean_B1 = row_mean(log_BT, mask_BT)[:, None]
    log_BT = jnp.broadcast_to(mean_B1, log_BT.shape)
  elif level != "token":
    raise ValueError(f"level {level!r}: one of token, sequence, geometric")
  # Clamped: products over long responses overflow fp32.
  return jnp.where(mask_BT, jnp.exp(jnp.clip(log_BT, -20, 20)), 0)


def truncate(
    old_logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    *,
    high: AtLeastOne = 2.0,
    level: Level = "token",
) -> Array:
  """Truncated importance sampling: min(pi_old / pi_sampler, high).

  `high` is the upper bound of the ratio; 2 is usual.
  """
  ratio_BT = _mismatch(old_logps_BT, sampler_logps_BT, mask_BT, level)
  return jnp.minimum(ratio_BT, high)


def two_sided(
    old_logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    *,
    low: UnitInterval = 0.5,
    high: AtLeastOne = 2.0,
    level: Level = "token",
) -> Array:
  """IcePop: the ratio pi_old / pi_sampler inside [low, high], 0 outside.

  `low` is alpha, .5 in IcePop; `high` is beta, 5 in IcePop.
  """
  ratio_BT = _mismatch(old_logps_BT, sampler_logps_BT, mask_BT, level)
  inside_BT = (ratio_BT >= low) & (ratio_BT <= high)
  return jnp.where(inside_BT, ratio_BT, 0)


def second_moment(
    old_logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    advantages_BT: Array,
    *,
    threshold: NonNegative = 0.04,
) -> Array:
  """M2PO: the ratio pi_old / pi_sampler of tokens, 0 for the furthest ones.

  Tokens that a clip could stop (log r > 0 and A > 0, log r < 0 and A < 0) are
  dropped, the largest (log r)^2 first, until the mean of (log r)^2 of the rest
  of them is at most `threshold` (arXiv:2510.01161, algorithm 1; .04 is the
  paper's). r is taken before the update, over all rows of a step.
  """
  ratio_BT = _mismatch(old_logps_BT, sampler_logps_BT, mask_BT, "token")
  log_BT = jnp.where(mask_BT > 0, old_logps_BT - sampler_logps_BT, 0)
  active_BT = log_BT * advantages_BT > 0
  square = jnp.where(active_BT, log_BT**2, jnp.inf).reshape(-1)
  order = jnp.argsort(square)  # the active ones come first
  means = jnp.cumsum(square[order]) / jnp.arange(1, square.size + 1)
  place_BT = jnp.argsort(order).reshape(active_BT.shape)
  far_BT = active_BT & (place_BT >= jnp.sum(means <= threshold))
  return jnp.where(far_BT, 0, ratio_BT)


def corrected(
    advantages_BT: Array,
    logps_BT: Array,
    sampler_logps_BT: Array,
    mask_BT: Array,
    *,
    correction: Callable[..., Array],
) -> tuple[Array, dict[str, Array]]:
  """Advantages times a factor of each token: an adjustment of `credit.assign`.

  logps_BT are those of pi_old; correction is one of the functions above,
  keywords bound. The mean of the factor over tokens is a metric.
  """
  inputs = dict(
      old_logps_BT=logps_BT,
      sampler_logps_BT=sampler_logps_BT,
      mask_BT=mask_BT,
      advantages_BT=advantages_BT,
  )
  factor_BT = call_by_name(correction, inputs)
  mean = masked_mean(factor_BT, mask_BT)
  return advantages_BT * factor_BT, {"rollout/correction_mean": mean}
