"""Estimators of KL(policy || reference) from samples of the policy.

With d = log p - log p_ref (Schulman, "Approximating KL divergence", 2020). As a
LOSS on-policy, k1 has an expected gradient of zero, those of k2 and of
`k3_unbiased` are the gradient of the reverse KL, and that of k3 is neither.
Each takes the log-probs [B, T] of the policy and of the reference, and returns
[B, T]. `full` needs no estimate: it takes the log-probs of all tokens of the
vocabulary.
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


def full(logps_XV: Array, ref_logps_XV: Array, *, beta: float = 1.0) -> Array:
  """The divergence of policy p and reference q over the whole vocabulary.

  The generalized Jensen-Shannon divergence of GKD (arXiv:2306.13649, sec 2),
  beta KL(q || m) + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p. At
  both ends of beta it would be 0; as in TRL, beta 0 is the forward KL(q || p)
  and beta 1 the reverse KL(p || q).

  The gradient by log p is written by hand. It leaves out multiples of p, which
  normalized log-probs cancel: where p = q it is exactly 0.

  Args:
    logps_XV: [X, V] of the policy.
    ref_logps_XV: [X, V] of the reference; no gradient.
    beta: in [0, 1].

  Returns:
    [X], in nats.
  """
  chex.assert_equal_shape([logps_XV, ref_logps_XV])
  fixed_XV = jax.lax.stop_gradient(logps_XV)
  p_XV, q_XV = jnp.exp(fixed_XV), jnp.exp(ref_logps_XV)
  # A token that both exclude (a logit of -inf) adds 0 to all.
  none_XV = jnp.isneginf(fixed_XV) & jnp.isneginf(ref_logps_XV)
  ratio_XV = jnp.where(none_XV, 0, ref_logps_XV - fixed_XV)  # log q / p
  if beta == 1:
    value_XV = slope_XV = jnp.where(p_XV > 0, -p_XV * ratio_XV, 0)
  elif beta == 0:
    value_XV = jnp.where(q_XV > 0, q_XV * ratio_XV, 0)
    slope_XV = p_XV - q_XV
  else:
    ratio_XV = jnp.clip(ratio_XV, -80, 80)  # exp(80) fits into float32
    mixed_XV = jnp.log1p(beta * jnp.expm1(ratio_XV))  # log m / p
    slope_XV = -(1 - beta) * p_XV * mixed_XV
    value_XV = beta * q_XV * (ratio_XV - mixed_XV) + slope_XV
  slope_XV = jax.lax.stop_gradient(slope_XV)
  change_XV = jnp.where(jnp.isneginf(fixed_XV), 0, logps_XV - fixed_XV)
  return jnp.sum(value_XV + slope_XV * change_XV, -1)
