"""Estimators of KL(policy || reference) from samples of the policy.

With d = log p - log p_ref (Schulman, "Approximating KL divergence", 2020). As a
LOSS on-policy, k1 has an expected gradient of zero, those of k2 and of
`k3_unbiased` are the gradient of the reverse KL, and that of k3 is neither.
Each takes the log-probs [B, T] of the policy and of the reference, and returns
[B, T].
"""

import chex
import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array


def k1(logps_BT: Array, ref_logps_BT: Array) -> Array:
  """k1 = d: unbiased, may be negative."""
  return logps_BT - ref_logps_BT


def k2(logps_BT: Array, ref_logps_BT: Array) -> Array:
  """k2 = d^2 / 2: biased, of low variance."""
  return (logps_BT - ref_logps_BT) ** 2 / 2


def k3(
    logps_BT: Array,
    ref_logps_BT: Array,
    *,
    log_ratio_max: float = 20.0,
    k3_max: float = 10.0,
) -> Array:
  """k3 = exp(-d) - 1 + d: unbiased and never negative.

  Args:
    logps_BT: [B, T] of the policy.
    ref_logps_BT: [B, T] of the reference; no gradient.
    log_ratio_max: d is clamped to +- this (as in verl).
    k3_max: upper bound of k3, with zero gradient beyond (as in verl).
  """
  down_BT = -(logps_BT - ref_logps_BT)
  down_BT = jnp.clip(down_BT, -log_ratio_max, log_ratio_max)
  # expm1: exp(x) - 1 loses all digits near x = 0, and k3 would be negative.
  return jnp.clip(jnp.expm1(down_BT) - down_BT, -k3_max, k3_max)


def absolute(logps_BT: Array, ref_logps_BT: Array) -> Array:
  """|d|: no estimate of the KL, but a penalty on the ratio (verl's "abs")."""
  return jnp.abs(logps_BT - ref_logps_BT)


def k3_unbiased(
    logps_BT: Array, ref_logps_BT: Array, old_logps_BT: Array | None = None
) -> Array:
  """r k3, r = p / p_old: DeepSeek-V3.2 (arXiv:2512.02556).

  The value is that of k3, weighed by the ratio to the policy that sampled; the
  gradient is r d times that of log p, which is that of the reverse KL for
  samples of any policy. Written as that product: the gradients of r and of k3
  cancel where d is far below 0. Neither has the bounds of `k3`, beyond which
  the value would be that of another function; d and log r are at least and at
  most 20, so that nothing overflows.

  old_logps_BT are [B, T] of the policy that sampled; None: this policy did.
  """
  stop = jax.lax.stop_gradient
  now_BT = stop(logps_BT)
  old_BT = now_BT if old_logps_BT is None else old_logps_BT
  ratio_BT = jnp.exp(jnp.clip(now_BT - old_BT, -20, 20))
  d_BT = jnp.clip(k1(now_BT, ref_logps_BT), -20, 20)
  value_BT = ratio_BT * (jnp.expm1(-d_BT) + d_BT)
  return value_BT + ratio_BT * d_BT * (logps_BT - now_BT)


ESTIMATORS = dict(k1=k1, k2=k2, k3=k3, k3_unbiased=k3_unbiased, abs=absolute)


def estimate(
    kind: str,
    logps_BT: Array,
    ref_logps_BT: Array,
    old_logps_BT: Array | None = None,
) -> Array:
  """The estimator of that name in `ESTIMATORS`.

  old_logps_BT are those of the policy that sampled, if it is another one; only
  `k3_unbiased` reads them.

  Raises:
    ValueError: unknown kind.
  """
  if kind not in ESTIMATORS:
    raise ValueError(f"kl kind {kind!r}: one of {', '.join(ESTIMATORS)}")
  chex.assert_equal_shape([logps_BT, ref_logps_BT])
  if kind == "k3_unbiased":
    return k3_unbiased(logps_BT, ref_logps_BT, old_logps_BT)
  return ESTIMATORS[kind](logps_BT, ref_logps_BT)
