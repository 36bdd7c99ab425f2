"""Per-token losses: arrays in, arrays out. `weights` says how they are summed.

Minimised, so each is minus the objective of its paper.
"""

from typing import Any

import chex
import jax.numpy as jnp

from rl_reason.structs import Array


def policy_loss(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 0.0,
    log_ratio_max: float = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), per token.

  PPO (arXiv:1707.06347, eq 7); asymmetric as in DAPO (arXiv:2503.14476,
  eq 10: "clip-higher"); dual clip (arXiv:1912.09729, eq 5) caps the loss of
  tokens with A < 0 at -c A.

  Args:
    logps_BT: [B, T] log-probabilities under the policy that learns.
    old_logps_BT: [B, T] under the policy that sampled; no gradient.
    advantages_BT: [B, T]; no gradient.
    clip_low: epsilon of the lower bound, 1 - clip_low.
    clip_high: epsilon of the upper bound, 1 + clip_high.
    dual_clip: c > 1; 0 switches the cap off.
    log_ratio_max: log r is clamped to +- this before the exponential.

  Returns:
    loss [B, T] and a dict of [B, T]: `ratio`, `log_ratio` (unclamped),
    `clipped` and `clipped_lower` (bool: the clip, the dual clip decides).
  """
  chex.assert_rank([logps_BT, old_logps_BT, advantages_BT], 2)
  chex.assert_equal_shape([logps_BT, old_logps_BT, advantages_BT])
  log_ratio_BT = logps_BT - old_logps_BT
  ratio_BT = jnp.exp(jnp.clip(log_ratio_BT, -log_ratio_max, log_ratio_max))
  free_BT = -ratio_BT * advantages_BT
  bound_BT = -jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high) * advantages_BT
  loss_BT = jnp.maximum(free_BT, bound_BT)
  clipped_BT = bound_BT > free_BT
  capped_BT = jnp.zeros_like(clipped_BT)
  if dual_clip:
    cap_BT = -dual_clip * advantages_BT
    capped_BT = (advantages_BT < 0) & (cap_BT < loss_BT)
    loss_BT = jnp.where(capped_BT, cap_BT, loss_BT)
  return loss_BT, dict(
      ratio=ratio_BT,
      log_ratio=log_ratio_BT,
      clipped=clipped_BT,
      clipped_lower=capped_BT,
  )


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
