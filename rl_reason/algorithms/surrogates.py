"""Surrogates of the policy objective: arrays in, one loss per token out.

Minimised, so each is minus the objective of its paper. `weights` says how the
tokens are summed. config.loss.surrogate names one; its keywords are fields of
config.loss. Every one takes

  logps_BT: [B, T] log-probabilities under the policy that learns.
  old_logps_BT: [B, T] under the policy that sampled; no gradient.
  advantages_BT: [B, T]; no gradient.
  mask_BT: [B, T], response tokens that count.

and returns the loss [B, T] and a dict of [B, T]: `ratio` (as the loss has it),
`clipped` and `clipped_lower` (bool: the clip, the dual clip decides).
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.groups import row_mean
from rl_reason.structs import Array


def _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT):
  arrays = [logps_BT, old_logps_BT, advantages_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  return logps_BT - old_logps_BT


def _clip(ratio_BT, advantages_BT, clip_low, clip_high, dual_clip):
  """-min(r A, clip(r) A), at most -dual_clip A where A < 0."""
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
      ratio=ratio_BT, clipped=clipped_BT, clipped_lower=capped_BT
  )


def ppo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
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
    logps_BT: see above.
    old_logps_BT: see above.
    advantages_BT: see above.
    mask_BT: see above; unused.
    clip_low: epsilon of the lower bound, 1 - clip_low.
    clip_high: epsilon of the upper bound, 1 + clip_high.
    dual_clip: c > 1; 0 switches the cap off.
    log_ratio_max: log r is clamped to +- this before the exponential.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  ratio_BT = jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))
  return _clip(ratio_BT, advantages_BT, clip_low, clip_high, dual_clip)


def reinforce(
    logps_BT: Array, old_logps_BT: Array, advantages_BT: Array, mask_BT: Array
) -> tuple[Array, dict[str, Any]]:
  """-A log p: Williams (1992); RLOO's loss (arXiv:2402.14740, eq 7).

  No ratio: right on the policy that sampled, so with one update a rollout.

  Args:
    logps_BT: see above.
    old_logps_BT: see above; only for the metrics.
    advantages_BT: see above.
    mask_BT: see above; unused.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  never_BT = jnp.zeros_like(log_BT, bool)
  return -advantages_BT * logps_BT, dict(
      ratio=jnp.exp(log_BT), clipped=never_BT, clipped_lower=never_BT
  )


def gspo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    log_ratio_max: float = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """The clipped objective of a whole response: GSPO (arXiv:2507.18071, eq 5).

  s = exp(mean over the response of log r), one ratio for all of its tokens.
  Written per token (eq 14: s stopped, times p / p stopped), so that advantages
  may differ between tokens; with `seq_mean_token_mean` it is eq 5.

  Args:
    logps_BT: see above.
    old_logps_BT: see above.
    advantages_BT: see above.
    mask_BT: see above.
    clip_low: epsilon of the lower bound; 3e-4 in the paper.
    clip_high: epsilon of the upper bound; 4e-4 in the paper.
    log_ratio_max: log s is clamped to +- this before the exponential.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  stop = jax.lax.stop_gradient
  sequence_B1 = row_mean(stop(log_BT), mask_BT)[:, None]
  log_BT = sequence_B1 + (logps_BT - stop(logps_BT))
  ratio_BT = jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))
  return _clip(ratio_BT, advantages_BT, clip_low, clip_high, 0.0)


def cispo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
    log_ratio_max: float = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-stop(clip(r)) A log p: CISPO (arXiv:2506.13585, eq 4).

  The weight is clipped, not the gradient: every token goes on learning.

  Args:
    logps_BT: see above.
    old_logps_BT: see above.
    advantages_BT: see above.
    mask_BT: see above; unused.
    clip_low: epsilon of the lower bound; 1 switches it off, as in the paper.
    clip_high: epsilon of the upper bound.
    log_ratio_max: log r is clamped to +- this before the exponential.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  log_BT = jax.lax.stop_gradient(log_BT)
  ratio_BT = jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))
  weight_BT = jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  return -weight_BT * advantages_BT * logps_BT, dict(
      ratio=ratio_BT,
      clipped=weight_BT != ratio_BT,
      clipped_lower=jnp.zeros_like(log_BT, bool),
  )
