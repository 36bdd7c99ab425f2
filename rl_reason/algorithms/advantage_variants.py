"""Advantages outside of the reading path; chosen like the others.

See `advantages.py` for the conventions, `credit.py` for the arrays. Weighted
baselines without a paper are leave-one-out: the reward and the weight of a
response are not part of its own baseline, which keeps the policy gradient
unbiased. Advantages are 0 in groups whose rewards are all equal (except
`weak_positives`), and outside the mask.
"""

from collections.abc import Mapping
from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms import variants
from rl_reason.algorithms.advantages import (
    gae,
    gae_length_adaptive,
    group_norm,
    returns_to_go,
)
from rl_reason.algorithms.reductions import (
    group_constant,
    group_max,
    group_sum,
    row_mean,
    whiten,
)
from rl_reason.base.structs import Array, NonNegative, Positive, UnitInterval

# --- of papers, one per response ---------------------------------------------


def opo(rewards_B: Array, groups_B: Array, mask_BT: Array) -> Array:
  """R - sum(|o| R) / sum(|o|) in the group: OPO (arXiv:2505.23585).

  The baseline of least variance, if the squared gradient of a response is
  proportional to its length; the response is part of its own baseline.
  """
  length_B = mask_BT.sum(1).astype(rewards_B.dtype)
  total_B = group_sum(length_B, groups_B)
  mean_B = group_sum(length_B * rewards_B, groups_B) / jnp.maximum(total_B, 1)
  zero_B = group_constant(rewards_B, groups_B) | (total_B == 0)
  return jnp.where(zero_B, 0, rewards_B - mean_B)


def _all_fail(failures_B, size_B, k):
  """Chance that k of `size` responses, drawn at random, are all failures."""
  # C(failures, k) / C(size, k) as a product of k factors.
  before_1B = jnp.arange(len(size_B))[None]
  left_BB = jnp.maximum(failures_B[:, None] - before_1B, 0)
  share_BB = left_BB / jnp.maximum(size_B[:, None] - before_1B, 1)
  return jnp.prod(jnp.where(before_1B < k, share_BB, 1), 1)


def pass_at_k(
    rewards_B: Array,
    groups_B: Array,
    *,
    k: Annotated[int, (1, None)] = 4,
    eps: NonNegative = 1e-6,
) -> Array:
  """Pass@k training by its analytical advantage (arXiv:2508.10751).

  The reward of k responses is that of the best one. With P the chance that k of
  the group's responses have a success and s = sqrt(P (1 - P)), a success has
  the advantage (1 - P) / (s + eps), and a failure (1 - P - Q) / (s + eps) with
  Q the chance that k - 1 of the others are all failures. R > 0 is a success.

  Keywords: k is at most the size of a group; eps is added to s.
  """
  success_B = (rewards_B > 0).astype(rewards_B.dtype)
  size_B = group_sum(jnp.ones_like(rewards_B), groups_B)
  failures_B = size_B - group_sum(success_B, groups_B)
  miss_B = _all_fail(failures_B, size_B, k)
  others_B = _all_fail(failures_B - 1, size_B - 1, k - 1)
  gain_B = miss_B - jnp.where(success_B > 0, 0, others_B)
  std_B = jnp.sqrt((1 - miss_B) * miss_B)
  # Where no draw differs from another there is no gain, and s is 0.
  return jnp.where(gain_B == 0, 0, gain_B / (std_B + eps))


def weak_positives(rewards_B: Array, *, weight: UnitInterval = 0.1) -> Array:
  """R, times `weight` where R > 0: W-REINFORCE (arXiv:2506.01347).

  Negative samples reinforce what else the policy may say, positive ones only
  what it has said. No baseline: groups whose rewards are equal have a signal.

  Keywords: weight is the paper's lambda; 0 trains on negative samples only.
  """
  return jnp.where(rewards_B > 0, weight, 1) * rewards_B


def gdpo(
    rewards_B: Array,
    groups_B: Array,
    valid_B: Array,
    parts: Mapping[str, tuple[Array, Array]],
    *,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> tuple[Array, dict[str, Array]]:
  """Each part of the reward normalised in its group: GDPO (arXiv:2601.05242).

  The advantage is the weighted sum of `group_norm` of the parts: a part of
  large spread does not drown the others. A response without a part (NaN) is
  not in the part's statistics, and the part adds 0 to its advantage (as in
  TRL). `advantage.whiten` then whitens over the batch, as the paper does.

  Args:
    rewards_B: the sum of the parts; not read.
    groups_B: [B] int.
    valid_B: [B] bool, False for padding rows, which are in no metric.
    parts: reward [B], NaN without one, and weight of each part
      (`variants.reward_parts`).
    eps: as in `group_norm`.
    ddof: as in `group_norm`.

  Returns:
    [B]; and metrics: mean and standard deviation of each part, and its share in
    the sum of the absolute values of the terms of the advantage.
  """
  del rewards_B
  terms, metrics = {}, {}
  for name, (part_B, weight) in parts.items():
    known_B = jnp.isfinite(part_B)
    own_B = jnp.where(known_B, groups_B, jnp.min(groups_B) - 1)
    filled_B = jnp.where(known_B, part_B, 0)
    terms[name] = weight * group_norm(filled_B, own_B, eps=eps, ddof=ddof)
    metrics |= variants.spread(name, part_B, valid_B)
  return sum(terms.values()), metrics | variants.shares(terms, valid_B)


# --- one advantage per response ----------------------------------------------


def rank(rewards_B: Array, groups_B: Array) -> Array:
  """(rank - (K + 1) / 2) / (K / 2) in a group of K; tied ranks are averaged."""
  chex.assert_equal_shape([rewards_B, groups_B])
  same_BB = groups_B[:, None] == groups_B[None]
  # Number of lower rewards minus number of higher ones = 2 rank - (K + 1).
  beats_BB = jnp.sign(rewards_B[:, None] - rewards_B[None])
  return jnp.sum(same_BB * beats_BB, 1) / jnp.sum(same_BB, 1)


def _less_weighted_mean(rewards_B, groups_B, weights_B):
  """R - weighted mean of the other rewards; 0 where they have no weight."""
  total_B = group_sum(weights_B, groups_B, exclude_self=True)
  sum_B = group_sum(weights_B * rewards_B, groups_B, exclude_self=True)
  zero_B = group_constant(rewards_B, groups_B) | (total_B <= 0)
  mean_B = sum_B / jnp.where(zero_B, 1, total_B)
  return jnp.where(zero_B, 0, rewards_B - mean_B)


def length_weighted(rewards_B: Array, groups_B: Array, mask_BT: Array) -> Array:
  """Leave-one-out baseline with weights 1 / sqrt(|o|)."""
  length_B = jnp.maximum(mask_BT.sum(1), 1).astype(rewards_B.dtype)
  return _less_weighted_mean(rewards_B, groups_B, length_B**-0.5)


def quality_weighted(
    rewards_B: Array,
    groups_B: Array,
    logps_BT: Array,
    mask_BT: Array,
    *,
    alpha: NonNegative = 1.0,
) -> Array:
  """Leave-one-out baseline, weights exp(mean log-prob of the response)^alpha.

  Keywords: alpha is the strength of the weights; 0 is `leave_one_out`.
  """
  mean_B = row_mean(logps_BT, mask_BT)
  # Only ratios of weights matter; with the largest at 1 none underflows alone.
  quality_B = jnp.exp(alpha * (mean_B - group_max(mean_B, groups_B)))
  return _less_weighted_mean(rewards_B, groups_B, quality_B)


def score_weighted(
    rewards_B: Array,
    groups_B: Array,
    parts: Mapping[str, tuple[Array, Array]],
    *,
    score: str,
    alpha: NonNegative = 1.0,
) -> Array:
  """Leave-one-out baseline with weights q^alpha, q a score of a function.

  A response without the score, or with one of 0 or less, is in no baseline
  unless alpha is 0; all scores may have any scale.

  Args:
    rewards_B: [B] float, the sum of the parts.
    groups_B: [B] int.
    parts: score [B], NaN without one, and weight of each part of the reward
      (`variants.reward_parts`); a part of weight 0 only weighs the baseline.
    score: the part that is q, as reward.functions names it.
    alpha: strength of the weights; 0 is `leave_one_out`.
  """
  quality_B, _ = parts[score]
  known_B = quality_B > 0  # not where it is NaN
  log_B = jnp.log(jnp.where(known_B, quality_B, 1))
  log_B = jnp.where(known_B, log_B, -jnp.inf)
  best_B = group_max(log_B, groups_B)
  # Only ratios of weights matter; a group without scores has equal ones.
  distance_B = jnp.where(known_B, log_B - jnp.where(known_B, best_B, 0), 0)
  weights_B = jnp.where(known_B | (alpha == 0), jnp.exp(alpha * distance_B), 0)
  return _less_weighted_mean(rewards_B, groups_B, weights_B)


def confidence_weighted(rewards_B: Array, groups_B: Array) -> Array:
  """Leave-one-out baseline with weights |tanh(R / 2)| = |2 sigmoid(R) - 1|.

  That is the confidence of a Bradley-Terry reward. Rewards of two values of
  equal magnitude all weigh the same: this is then `leave_one_out`.
  """
  confidence_B = jnp.abs(jnp.tanh(rewards_B / 2))
  return _less_weighted_mean(rewards_B, groups_B, confidence_B)


def hierarchical(
    rewards_B: Array,
    types_B: Array,
    valid_B: Array,
    *,
    mix: UnitInterval = 0.5,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """mix * group_norm in the problem type + (1 - mix) * group_norm in the batch.

  Keywords: mix weighs the problem type; eps and ddof as in `group_norm`.
  """
  # Padding rows form a group of their own in both terms.
  batch_B = valid_B.astype(jnp.int32)
  local_B = jnp.where(valid_B, types_B, jnp.min(types_B) - 1)
  return mix * group_norm(rewards_B, local_B, eps=eps, ddof=ddof) + (
      1 - mix
  ) * group_norm(rewards_B, batch_B, eps=eps, ddof=ddof)


def temporal(
    rewards_B: Array,
    problems_B: Array,
    past_rewards_H: Array,
    past_problems_H: Array,
    past_weights_H: Array,
) -> Array:
  """Leave-one-out over a prompt's responses in this and in recent steps.

  past_weights_H are importance weights; 0 marks an empty slot.
  """
  both = zip(
      (rewards_B, problems_B, jnp.ones_like(rewards_B)),
      (past_rewards_H, past_problems_H, past_weights_H),
      strict=True,
  )
  all_rows = (jnp.concatenate(x) for x in both)
  return _less_weighted_mean(*all_rows)[: rewards_B.shape[0]]


def explore(
    rewards_B: Array,
    groups_B: Array,
    logps_BT: Array,
    mask_BT: Array,
    progress: Array,
    *,
    bonus: NonNegative = 0.1,
    decay: NonNegative = 1.0,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """GRPO's advantage plus a bonus for responses of low probability.

  The bonus is bonus * exp(-decay * progress) * the group-normalised mean of
  -log p. Groups whose rewards are all equal get none.

  Keywords: bonus is its scale at the start, in standard deviations; decay its
  rate of decay; eps and ddof as in `group_norm`.
  """
  reward_B = group_norm(rewards_B, groups_B, eps=eps, ddof=ddof)
  surprise_B = -row_mean(logps_BT, mask_BT)
  novelty_B = group_norm(surprise_B, groups_B, eps=eps, ddof=ddof)
  scale = bonus * jnp.exp(-decay * progress)
  constant_B = group_constant(rewards_B, groups_B)
  return reward_B + jnp.where(constant_B, 0, scale * novelty_B)


# --- one advantage per token -------------------------------------------------


def optimal_token_baseline(
    rewards_B: Array,
    rewards_BT: Array,
    groups_B: Array,
    logps_BT: Array,
    squares_BT: Array,
    mask_BT: Array,
    *,
    zero_tail: Annotated[int, (0, 1)] = 0,
    eps: NonNegative = 1e-8,
) -> Array:
  """R_t - sum(W_t R_t) / (sum(W_t) + eps) in the group: OTB (arXiv:2602.07078).

  R_t is the return from token t on, and W_t sums 1 - 2 p + sum_v p_v^2 over the
  tokens up to t: the squared norms of the scores by the logits. Only responses
  that reach token t are in its sums; tokens that the mask hides are skipped. A
  group whose returns are equal token by token is silent; rewards_B are not
  read.

  Keywords: with zero_tail 1 a token that no other response reaches has the
  baseline 0, not its own return, as verl's handle_zero_tail; eps as in verl.
  """
  del rewards_B  # outcomes may be equal where rewards of steps differ
  # The tokens of the mask move to the front, so that token t is the t-th one.
  order_BT = jnp.argsort(~(mask_BT > 0), axis=1, stable=True)
  inputs = (mask_BT > 0, rewards_BT, logps_BT, squares_BT)
  inside_BT, rewards_BT, logps_BT, squares_BT = (
      jnp.take_along_axis(x, order_BT, 1) for x in inputs
  )
  norm_BT = jnp.maximum(1 - 2 * jnp.exp(logps_BT) + squares_BT, 0)
  energy_BT = jnp.cumsum(jnp.where(inside_BT, norm_BT, 0), 1) * inside_BT
  returns_BT = returns_to_go(rewards_BT, inside_BT)
  of_group = jax.vmap(group_sum, (1, None), 1)
  sum_BT = of_group(energy_BT * returns_BT, groups_B)
  baseline_BT = sum_BT / (of_group(energy_BT, groups_B) + eps)
  alone_BT = of_group(inside_BT.astype(norm_BT.dtype), groups_B) <= 1
  baseline_BT = jnp.where(alone_BT & (zero_tail > 0), 0, baseline_BT)
  # Compared with each other: the baseline of equal returns is rounded.
  highest = jax.vmap(group_max, (1, None), 1)
  high_BT = highest(jnp.where(inside_BT, returns_BT, -jnp.inf), groups_B)
  low_BT = -highest(jnp.where(inside_BT, -returns_BT, -jnp.inf), groups_B)
  differ_B = jnp.any(high_BT > low_BT, 1).astype(norm_BT.dtype)
  silent_BT = ~inside_BT | (group_max(differ_B, groups_B) == 0)[:, None]
  out_BT = jnp.where(silent_BT, 0, returns_BT - baseline_BT)
  return jnp.take_along_axis(out_BT, jnp.argsort(order_BT, 1), 1)


def gae_exp_complexity(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    types_B: Array,
    *,
    gamma: UnitInterval = 1.0,
    lam: UnitInterval = 0.95,
    decay: NonNegative = 1.0,
    slope: UnitInterval = 0.5,
    hardest: Positive = 10.0,
) -> Array:
  """GAE whose lambda decreases with the offset and the problem's complexity.

  lam_l = lam exp(-decay l / T) (1 - slope complexity / hardest), and
  delta_{t+l} enters A_t with gamma^l lam_1 ... lam_l. The cumulative product
  keeps the properties of GAE: decay = slope = 0 is GAE, and a lambda of 0 ends
  the sum.

  types_B is the complexity of each problem: its difficulty, or by pass rate its
  tenths of incorrect responses, of which the most are 10; offsets count tokens
  of the mask.
  Keywords: gamma as in `gae`; lam is lambda at offset 0, decay its rate of
  decay with the offset, slope the relative decrease for the hardest problems;
  a complexity above hardest is clipped to it.
  """
  rows, length = values_BT.shape
  td_BT = gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=0.0)
  # Move the tokens of the mask to the front, so that offsets count tokens.
  order_BT = jnp.argsort(~(mask_BT > 0), axis=1, stable=True)
  delta_BT = jnp.take_along_axis(td_BT, order_BT, 1)
  ease_B1 = 1 - slope * jnp.clip(types_B[:, None] / hardest, 0, 1)
  padded_BT = jnp.pad(delta_BT, ((0, 0), (0, length)))

  def horner(sum_BT, offset):
    """sum <- lam_offset (delta_{t + offset} + sum), from the largest offset."""
    later_BT = jax.lax.dynamic_slice_in_dim(padded_BT, offset, length, 1)
    lam_B1 = gamma * lam * jnp.exp(-decay * offset / length) * ease_B1
    return (lam_B1 * (later_BT + sum_BT)).astype(sum_BT.dtype), None

  offsets = jnp.arange(length - 1, 0, -1)
  tail_BT, _ = jax.lax.scan(horner, jnp.zeros_like(delta_BT), offsets)
  # Move the tokens back to their positions.
  out_BT = (
      jnp.zeros_like(delta_BT)
      .at[jnp.arange(rows)[:, None], order_BT]
      .set(delta_BT + tail_BT)
  )
  return jnp.where(mask_BT > 0, out_BT, 0)


def hybrid(
    rewards_B: Array,
    groups_B: Array,
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    progress: Array,
    *,
    mix: UnitInterval = 0.5,
    decay: NonNegative = 1.0,
    gamma: UnitInterval = 1.0,
    alpha: Positive = 0.05,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """a(t) * VAPO's advantage + (1 - a(t)) * GRPO's, both whitened first.

  a(t) = mix * exp(-decay * progress). Keywords: mix and decay; gamma and alpha
  as in `gae_length_adaptive`, eps and ddof as in `group_norm`.
  """
  vapo_BT = gae_length_adaptive(
      rewards_BT, values_BT, mask_BT, gamma=gamma, alpha=alpha
  )
  grpo_B = group_norm(rewards_B, groups_B, eps=eps, ddof=ddof)
  grpo_BT = grpo_B[:, None] * (mask_BT > 0)
  # Whitened: otherwise their scales and not `mix` would decide the weights.
  share = mix * jnp.exp(-decay * progress)
  return share * whiten(vapo_BT, mask_BT) + (1 - share) * whiten(
      grpo_BT, mask_BT
  )
