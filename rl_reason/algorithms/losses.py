"""Losses beside the surrogate, per token: arrays in, arrays out."""

import chex
import jax
import jax.numpy as jnp

from rl_reason.structs import Array


def kl(
    logps_BT: Array,
    ref_logps_BT: Array,
    *,
    kind: str = "k3",
    log_ratio_max: float = 20.0,
    k3_max: float = 10.0,
) -> Array:
  """Estimates of KL(policy || reference) from the policy's own samples.

  With d = logp - ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1
  (Schulman, "Approximating KL divergence", 2020). As a LOSS on-policy, k1 has
  zero expected gradient, and the gradient of k3 is not that of the reverse KL;
  that of k2 is.

  Args:
    logps_BT: [B, T].
    ref_logps_BT: [B, T]; no gradient.
    kind: 'k1', 'k2' or 'k3'.
    log_ratio_max: d is clamped to +- this in k3.
    k3_max: k3 is capped here, with zero gradient beyond.

  Returns:
    [B, T].

  Raises:
    ValueError: another kind.
  """
  chex.assert_equal_shape([logps_BT, ref_logps_BT])
  diff_BT = logps_BT - ref_logps_BT
  if kind == "k1":
    return diff_BT
  if kind == "k2":
    return diff_BT**2 / 2
  if kind == "k3":
    down_BT = jnp.clip(-diff_BT, -log_ratio_max, log_ratio_max)
    return jnp.clip(jnp.expm1(down_BT) - down_BT, -k3_max, k3_max)
  raise ValueError(f"kl kind {kind!r}: one of 'k1', 'k2', 'k3'")


def bradley_terry(chosen_B: Array, rejected_B: Array) -> Array:
  """-log P(chosen is preferred) = -log sigmoid(chosen - rejected).

  Bradley and Terry (1952), as a loss of reward models: arXiv:2203.02155, eq 1.

  Args:
    chosen_B: [B] scores of the preferred responses.
    rejected_B: [B] scores of the others.

  Returns:
    [B], at least 0.
  """
  chex.assert_equal_shape([chosen_B, rejected_B])
  return -jax.nn.log_sigmoid(chosen_B - rejected_B)
