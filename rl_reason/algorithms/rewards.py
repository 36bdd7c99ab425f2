"""Rewards: what the verifier and the length say, one number per response."""

import jax.numpy as jnp

from rl_reason.algorithms.groups import group_max, group_sum
from rl_reason.structs import Array


def correctness(
    correct_B: Array, *, right: float = 1.0, wrong: float = -1.0
) -> Array:
  """`right` where the verifier said yes, `wrong` elsewhere: DAPO eq 7.

  Args:
    correct_B: [B] in {0, 1}.
    right: reward of a correct response.
    wrong: reward of any other.

  Returns:
    [B] float.
  """
  dtype = jnp.result_type(correct_B, 1.0)
  return jnp.where(correct_B > 0, right, wrong).astype(dtype)


def cosine(
    correct_B: Array,
    lengths_B: Array,
    *,
    max_tokens: int,
    right: float = 2.0,
    right_long: float = 1.0,
    wrong: float = -10.0,
    wrong_long: float = 0.0,
) -> Array:
  """Right answers pay more if short, wrong ones cost less if long.

  With l the length and L the longest that is allowed, half a cosine wave from
  `right` at l = 0 to `right_long` at l = L, and from `wrong` to `wrong_long`
  (arXiv:2502.03373, sec 4.2). A response of L tokens or more that is wrong gets
  `wrong`: it ran out, it did not think.

  Args:
    correct_B: [B] float in {0, 1}.
    lengths_B: [B] int, response tokens.
    max_tokens: L.
    right: of a correct response without length.
    right_long: of one of L tokens.
    wrong: of any other response without length.
    wrong_long: of one of almost L tokens.

  Returns:
    [B] float.
  """
  share_B = jnp.minimum(lengths_B / max_tokens, 1).astype(correct_B.dtype)
  short_B = (1 + jnp.cos(jnp.pi * share_B)) / 2
  right_B = right_long + (right - right_long) * short_B
  wrong_B = wrong_long + (wrong - wrong_long) * short_B
  wrong_B = jnp.where(lengths_B >= max_tokens, wrong, wrong_B)
  return jnp.where(correct_B > 0, right_B, wrong_B).astype(correct_B.dtype)


def weighted(
    scores_NB: tuple[Array, ...],
    weights_N: tuple[tuple[float, float], ...],
    progress: Array | float,
) -> Array | float:
  """Sum of scores, each times its weight, which may move over the run.

  Args:
    scores_NB: [B] float each, by N scorers.
    weights_N: of each at progress 0 and at progress 1.
    progress: share of the run that is done.

  Returns:
    [B] float; 0 without scorers.
  """
  return sum(
      (first + (last - first) * progress) * score_B
      for score_B, (first, last) in zip(scores_NB, weights_N, strict=True)
  )


def soft_overlong(lengths_B: Array, *, max_tokens: int, buffer: int) -> Array:
  """Soft overlong punishment: DAPO (arXiv:2503.14476, eq 13).

  0 up to max_tokens - buffer, falling linearly to -1 at max_tokens, and -1
  beyond. Lengths are TOKENS.

  Args:
    lengths_B: [B] int, response tokens.
    max_tokens: L_max, the longest response that is allowed.
    buffer: L_cache, tokens over which the punishment grows; 0 is off.

  Returns:
    [B] float in [-1, 0].
  """
  if not buffer:
    return jnp.zeros(lengths_B.shape)
  over_B = lengths_B - (max_tokens - buffer)
  return -jnp.clip(over_B / buffer, 0, 1)


def bootstrap_truncated(
    rewards_B: Array, truncated_B: Array, groups_B: Array
) -> Array:
  """A truncated response is worth what its group's finished ones are.

  A response cut at the length limit did not end in a state of value 0: its
  return is unknown. Without a critic the best estimate is the mean of the
  finished responses to the same prompt (0 if there is none).

  Args:
    rewards_B: [B] float.
    truncated_B: [B] bool.
    groups_B: [B] int.

  Returns:
    [B] float.
  """
  finished_B = (~truncated_B).astype(rewards_B.dtype)
  # The mean as a distance from the best reward: that of equal rewards is then
  # that reward to the bit, and rounding does not become signal.
  best_B = group_max(jnp.where(truncated_B, -jnp.inf, rewards_B), groups_B)
  count_B = group_sum(finished_B, groups_B)
  best_B = jnp.where(count_B > 0, best_B, 0)
  below_B = group_sum((rewards_B - best_B) * finished_B, groups_B)
  mean_B = best_B + below_B / jnp.maximum(count_B, 1)
  return jnp.where(truncated_B, mean_B, rewards_B)


def logquad(
    rewards_B: Array,
    correct_B: Array,
    lengths_B: Array,
    *,
    max_tokens: int,
    length_coef: float = 0.1,
    length_decay: float = 1.0,
    length_threshold: float = 0.0,
) -> Array:
  """A length penalty: logarithmic for right answers, quadratic for wrong ones.

  -lambda log2(1 + l / L) where right and -lambda (l / L)^2 where wrong (both 0
  at l = 0 and -lambda at l = L), with lambda = length_coef
  exp(-length_decay max(0, R - length_threshold)): good answers pay less.

  Args:
    rewards_B: [B] float, R.
    correct_B: [B] float in {0, 1}.
    lengths_B: [B] int, l, response tokens.
    max_tokens: L.
    length_coef: lambda of a reward up to the threshold; 0 is off.
    length_decay: g.
    length_threshold: thr.

  Returns:
    [B] float, at most 0.
  """
  share_B = lengths_B.astype(rewards_B.dtype) / max_tokens
  extra_B = jnp.maximum(rewards_B - length_threshold, 0)
  coef_B = length_coef * jnp.exp(-length_decay * extra_B)
  shape_B = jnp.where(correct_B > 0, jnp.log2(1 + share_B), share_B**2)
  return -coef_B * shape_B


def per_token(
    rewards_B: Array, mask_BT: Array, kl_BT: Array, kl_coef: Array | float
) -> Array:
  """The outcome on the last token, less kl_coef * KL on every token.

  PPO with a KL in the reward (arXiv:2203.02155, sec 3.5).

  Args:
    rewards_B: [B] float, of a response.
    mask_BT: [B, T], response tokens.
    kl_BT: [B, T] estimate of KL(policy || reference) of each token.
    kl_coef: beta; 0 without a KL.

  Returns:
    [B, T] float, 0 outside the mask. A row without a token keeps nothing.
  """
  mask_BT = mask_BT > 0
  later_BT = jnp.cumsum(mask_BT[:, ::-1], 1)[:, ::-1]
  last_BT = mask_BT & (later_BT == 1)
  out_BT = jnp.where(last_BT, rewards_B[:, None], 0)
  return out_BT - jnp.where(mask_BT, kl_coef * kl_BT, 0)
