"""Rewards: correctness, scores and length, one number per response.

`credit.outcome` adds them up. `variants.py` holds outcomes and length penalties
that no named algorithm uses.
"""

import jax.numpy as jnp

from rl_reason.base.structs import NO_SCORE, Array


def correctness(correct_B: Array, correct: float, incorrect: float) -> Array:
  """`correct` where the verifier accepts, else `incorrect`: DAPO, eq 7.

  correct_B is [B] in {0, 1}; the rewards are 1 and -1 in DAPO. Returns [B].
  """
  dtype = jnp.result_type(correct_B, 1.0)
  return jnp.where(correct_B > 0, correct, incorrect).astype(dtype)


def weighted(
    scores_EB: tuple[Array, ...],
    weights_E: tuple[tuple[float, float], ...],
    progress: Array | float,
) -> Array | float:
  """Weighted sum of scores, [B]; weights move linearly over the run.

  Args:
    scores_EB: [B] float of each of E terms; without any the sum is 0, and
      `NO_SCORE` adds nothing.
    weights_E: weight of each at progress 0 and at progress 1.
    progress: fraction of the run that is done, in [0, 1].
  """
  return sum(
      (first + (last - first) * progress)
      * jnp.where(score_B == NO_SCORE, 0, score_B)
      for score_B, (first, last) in zip(scores_EB, weights_E, strict=True)
  )


def soft_overlong(lengths_B: Array, *, max_tokens: int, buffer: int) -> Array:
  """Soft overlong punishment: DAPO (arXiv:2503.14476, eq 13).

  0 up to max_tokens - buffer, then linearly down to -1 at max_tokens, and -1
  beyond. Lengths are tokens, not characters.

  Args:
    lengths_B: [B] int, response tokens.
    max_tokens: L_max, the maximal response length.
    buffer: L_cache, tokens over which the punishment grows; 0 turns it off.

  Returns:
    [B] float in [-1, 0].
  """
  if not buffer:
    return jnp.zeros(lengths_B.shape)
  over_B = lengths_B - (max_tokens - buffer)
  # Floored at -1, as in the paper and TRL; verl lets it fall further.
  return -jnp.clip(over_B / buffer, 0, 1)


def per_token(
    rewards_B: Array,
    mask_BT: Array,
    kl_BT: Array,
    kl_coef: Array | float,
    turn_rewards_BT: Array | None = None,
) -> Array:
  """The outcome on the last token, minus kl_coef * KL on every token.

  PPO with a KL penalty in the reward (arXiv:2203.02155, sec 3.5).

  Args:
    rewards_B: [B] float, outcome of each response.
    mask_BT: [B, T], response tokens.
    kl_BT: [B, T] estimate of KL(policy || reference) of each token.
    kl_coef: beta; 0 without a KL penalty.
    turn_rewards_BT: [B, T] float, the part of rewards_B that was given at the
      ends of turns, where it stays; None: there are no turns.

  Returns:
    [B, T] float, 0 outside the mask; all 0 in rows without a token.
  """
  mask_BT = mask_BT > 0
  # The last token of the mask has one token to come, itself. The mask may have
  # holes (a tool's output), so that a length would not find it.
  to_come_BT = jnp.cumsum(mask_BT[:, ::-1], 1)[:, ::-1]
  last_BT = mask_BT & (to_come_BT == 1)
  if turn_rewards_BT is not None:
    rewards_B -= turn_rewards_BT.sum(1)
  out_BT = jnp.where(last_BT, rewards_B[:, None], 0)
  if turn_rewards_BT is not None:
    out_BT += turn_rewards_BT
  return out_BT - jnp.where(mask_BT, kl_coef * kl_BT, 0)
