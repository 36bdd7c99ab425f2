"""Surrogates of the policy objective: arrays in, one loss per token out.

Each is minimised, so it is minus the objective of its paper; `reductions.py`
says how the tokens are aggregated. `config.surrogate.name` names one, and
`config.surrogate.args` are its keyword-only parameters. Each takes

  logps_BT: [B, T] log-probs of the policy that is trained.
  old_logps_BT: [B, T] log-probs before the update; no gradient.
  advantages_BT: [B, T]; no gradient.
  mask_BT: [B, T], response tokens that enter the loss.

and returns the loss [B, T] and a dict of [B, T]: the bools `clipped` and
`clipped_lower`, tokens whose loss is decided by the clip, by the dual clip,
which are logged; and the probability `ratio` that the loss uses, for tests.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.reductions import row_mean
from rl_reason.base.structs import Array, NonNegative, UnitInterval


def _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT):
  # A [B, 1] advantage or a [B] mask would broadcast silently.
  arrays = [logps_BT, old_logps_BT, advantages_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  return logps_BT - old_logps_BT


def _clip(ratio_BT, advantages_BT, clip_low, clip_high, dual_clip):
  """-min(r A, clip(r) A), at most -dual_clip A where A < 0."""
  free_BT = -ratio_BT * advantages_BT
  bound_BT = -jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high) * advantages_BT
  loss_BT = jnp.maximum(free_BT, bound_BT)
  # Strictly greater: at r = 1 both are equal, and the gradient is -A.
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
    clip_low: UnitInterval = 0.2,
    clip_high: NonNegative = 0.2,
    dual_clip: NonNegative = 0.0,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), per token.

  PPO (arXiv:1707.06347, eq 7), with asymmetric bounds as in DAPO
  (arXiv:2503.14476, eq 10: "clip-higher"). The dual clip (arXiv:1912.09729,
  eq 5) bounds the loss of tokens with A < 0 by -c A.

  Keywords: clip_low and clip_high are the epsilons of the bounds; dual_clip is
  c > 1, or 0 for no dual clip; log r is clamped to +-log_ratio_max (20 as in
  verl) before the exponential.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  ratio_BT = jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))
  return _clip(ratio_BT, advantages_BT, clip_low, clip_high, dual_clip)


def reinforce(
    logps_BT: Array, old_logps_BT: Array, advantages_BT: Array, mask_BT: Array
) -> tuple[Array, dict[str, Any]]:
  """-A log p: Williams (1992); RLOO's loss (arXiv:2402.14740, eq 7).

  Without an importance ratio it is only correct on-policy, i.e. with one
  optimizer step per rollout.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  false_BT = jnp.zeros_like(log_BT, bool)
  return -advantages_BT * logps_BT, dict(
      ratio=jnp.exp(log_BT), clipped=false_BT, clipped_lower=false_BT
  )


def gspo(
    logps_BT: Array,
    old_logps_BT: Array,
    advantages_BT: Array,
    mask_BT: Array,
    *,
    clip_low: UnitInterval = 3e-4,
    clip_high: NonNegative = 4e-4,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """PPO's clip with one ratio per response: GSPO (arXiv:2507.18071, eq 5).

  s = exp(mean of log r over the response) is the ratio of each of its tokens.
  Written per token (eq 14: stop_gradient(s) * p / stop_gradient(p)), so that
  advantages may differ between tokens; with `seq_mean_token_mean` it is eq 5.

  Keywords as in `ppo`; the defaults of the bounds are the paper's.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  stop = jax.lax.stop_gradient
  # The value is s for all tokens; the gradient is that of the token's own
  # log-prob, so that a token is weighted by its own advantage.
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
    clip_low: UnitInterval = 1.0,
    clip_high: NonNegative = 4.0,
    log_ratio_max: NonNegative = 20.0,
) -> tuple[Array, dict[str, Any]]:
  """-stop_gradient(clip(r)) A log p: CISPO (arXiv:2506.13585, eq 4).

  Clips the importance weight and not the objective: clipped tokens keep their
  gradient.

  Keywords as in `ppo`; a clip_low of 1 turns the lower bound off, as in the
  paper.
  """
  log_BT = _log_ratio(logps_BT, old_logps_BT, advantages_BT, mask_BT)
  log_BT = jax.lax.stop_gradient(log_BT)
  ratio_BT = jnp.exp(jnp.clip(log_BT, -log_ratio_max, log_ratio_max))
  weight_BT = jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  return -weight_BT * advantages_BT * logps_BT, dict(
      ratio=ratio_BT,
      clipped=(weight_BT != ratio_BT) & (advantages_BT != 0),
      clipped_lower=jnp.zeros_like(log_BT, bool),
  )
