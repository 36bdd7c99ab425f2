"""Surrogates outside of the reading path; chosen like the others.

Arguments and results are those of `surrogates.py`. LUSPO needs no function of
its own: it is `surrogates.gspo` with `reductions.seq_mean_token_sum`.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.reductions import row_mean
from rl_reason.algorithms.surrogates import ppo
from rl_reason.base.structs import Array, NonNegative, Positive, UnitInterval


def _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT):
  arrays = [logps_BT, old_logps_BT, advantages_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  return logps_BT - old_logps_BT


def _ratio(log_BT, log_ratio_max):
  return jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))


def _aux(ratio_BT, clipped_BT):
  none_BT = jnp.zeros_like(clipped_BT)
  return dict(ratio=ratio_BT, clipped=clipped_BT, clipped_lower=none_BT)


def sapo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    tau_positive: Positive = 1.0,
    tau_negative: Positive = 1.05,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-4 / tau sigmoid(tau (r - 1)) A: SAPO (arXiv:2511.20347).

  A soft gate in place of the clip: at r = 1 the gradient is that of -r A, and
  the factor between the two decays on both sides. The derivative by log p, r
  times this factor, is largest near r = 2 at tau = 1.

  Keywords: tau_positive is tau where A > 0, tau_negative elsewhere (defaults:
  the paper's); the gate of a larger tau is narrower. log_ratio_max as in `ppo`.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  ratio_BT = _ratio(log_BT, log_ratio_max)
  tau_BT = jnp.where(advantages_BT > 0, tau_positive, tau_negative)
  gate_BT = 4 / tau_BT * jax.nn.sigmoid(tau_BT * (ratio_BT - 1))
  none_BT = jnp.zeros_like(log_BT, bool)
  return -gate_BT * advantages_BT, _aux(ratio_BT, none_BT)


def gmpo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    clip_low: NonNegative = 0.4,
    clip_high: NonNegative = 0.4,
) -> tuple[Array, dict[str, Any]]:
  """-s A, s the geometric mean of clipped ratios: GMPO (arXiv:2507.20673).

  log r of each token is at most clip_high where A > 0, and at least -clip_low
  elsewhere; s = exp(their mean over the response). Written per token, as
  `surrogates.gspo` is: it is the paper's loss with `seq_mean_token_mean`.

  Keywords: the bounds of log r, in nats; the defaults are the paper's.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  bounded_BT = jnp.where(
      advantages_BT > 0,
      jnp.minimum(log_BT, clip_high),
      jnp.maximum(log_BT, -clip_low),
  )
  stop = jax.lax.stop_gradient
  mean_B1 = row_mean(stop(bounded_BT), mask_BT)[:, None]
  # The value is s; a token that is clipped has no gradient.
  ratio_BT = _ratio(mean_B1 + (bounded_BT - stop(bounded_BT)), 20.0)
  clipped_BT = (bounded_BT != log_BT) & (advantages_BT != 0)
  return -ratio_BT * advantages_BT, _aux(ratio_BT, clipped_BT)


def dppo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    change_low: UnitInterval = 0.2,
    change_high: UnitInterval = 0.2,
    ratio_max: Positive = 20.0,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-stop_gradient(min(r, ratio_max)) A log p: DPPO (arXiv:2602.04879).

  The variant Binary-TV: the loss is 0 where the probability p has risen by more
  than change_high and A > 0, or has fallen by more than change_low and A <= 0.
  |p - p_old| is the total variation between the policies that only tell the
  token from all others.

  Keywords: ratio_max truncates the ratio (20 in verl, 10 in TRL); log_ratio_max
  as in `ppo`.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  stop = jax.lax.stop_gradient
  ratio_BT = stop(_ratio(log_BT, log_ratio_max))
  change_BT = stop(jnp.exp(logps_BT)) - jnp.exp(old_logps_BT)
  far_BT = jnp.where(
      advantages_BT > 0, change_BT > change_high, change_BT < -change_low
  )
  far_BT &= advantages_BT != 0  # else the loss is 0 without a mask
  weight_BT = jnp.where(far_BT, 0, jnp.minimum(ratio_BT, ratio_max))
  return -weight_BT * advantages_BT * logps_BT, _aux(ratio_BT, far_BT)


def vespo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    k_positive: NonNegative = 2.0,
    lam_positive: NonNegative = 3.0,
    k_negative: NonNegative = 3.0,
    lam_negative: NonNegative = 2.0,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-stop_gradient(W^k exp(lam (1 - W))) A log p: VESPO (arXiv:2602.10693).

  W is the ratio of the whole response, the product over its tokens. The weight
  is 1 at W = 1 and falls to 0 on both sides, without a normalization by length.

  Keywords: k and lam where A >= 0, and where A < 0 (defaults: TRL's); log r of
  a token, and log W from above, are clamped as in `ppo`; W is at least 1e-8.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  log_BT = jax.lax.stop_gradient(log_BT)
  log_BT = jnp.clip(log_BT, -log_ratio_max, log_ratio_max)
  log_B1 = jnp.where(mask_BT > 0, log_BT, 0).sum(1, keepdims=True)
  log_B1 = jnp.clip(log_B1, jnp.log(1e-8), log_ratio_max)
  good_BT = advantages_BT >= 0
  k_BT = jnp.where(good_BT, k_positive, k_negative)
  lam_BT = jnp.where(good_BT, lam_positive, lam_negative)
  weight_BT = jnp.exp(k_BT * log_B1 - lam_BT * jnp.expm1(log_B1))
  ratio_BT = jnp.broadcast_to(jnp.exp(log_B1), log_BT.shape)
  none_BT = jnp.zeros_like(log_BT, bool)
  return -weight_BT * advantages_BT * logps_BT, _aux(ratio_BT, none_BT)


def ppo_sequence_mask(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    sampler_logps_BT: Array | None = None,
    *,
    clip_low: UnitInterval = 0.2,
    clip_high: NonNegative = 0.2,
    delta: NonNegative = 0.5,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """PPO without far negative responses: DeepSeek-V3.2 (2512.02556, eq 9).

  The loss of tokens with A < 0 is 0 in a response whose mean of
  log(p_sampler / p) exceeds delta: incorrect, and no longer likely under the
  policy. p_sampler is the probability that sampled the token (the paper's
  pi_old, below eq 9), so that staleness and low precision of the sampler count;
  without sampler_logps_BT it is that of old_logps_BT.

  Keywords: delta in nats per token (the paper does not state its value; .5 is
  the value of TRL's documentation); the others as in `ppo`.
  """
  arrays = logps_BT, old_logps_BT, advantages_BT, mask_BT
  loss_BT, aux = ppo(
      *arrays,
      clip_low=clip_low,
      clip_high=clip_high,
      log_ratio_max=log_ratio_max,
  )
  if sampler_logps_BT is None:
    sampler_logps_BT = old_logps_BT
  drift_B1 = row_mean(sampler_logps_BT - logps_BT, mask_BT)[:, None]
  far_BT = (advantages_BT < 0) & (drift_B1 > delta)
  loss_BT = jnp.where(far_BT, 0, loss_BT)
  return loss_BT, aux | dict(clipped=aux["clipped"] | far_BT)
