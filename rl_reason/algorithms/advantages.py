"""Advantages: rewards in, one number per response or per token out.

A function takes the arrays that it names and nothing else; the loop looks its
positional arguments up by name (`credit.py` lists all that there are), and its
keywords are fields of config.advantage. A group is an id: `groups_B` are
prompts, problem types or one id for the whole batch (config.advantage.groups),
unequal groups included. Ids may be any integers; rows of a group need not be
adjacent.
"""

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.groups import (
    group_max,
    group_min,
    group_sum,
    row_mean,
    whiten,
)
from rl_reason.structs import Array


def _group_stats(rewards_B, groups_B):
  """Mean, size and 'all rewards are equal' of each row's group."""
  chex.assert_rank([rewards_B, groups_B], 1)
  chex.assert_equal_shape([rewards_B, groups_B])
  size_B = group_sum(jnp.ones_like(rewards_B), groups_B)
  mean_B = group_sum(rewards_B, groups_B) / size_B
  # Comparing rewards with each other, not with the rounded mean: sixteen
  # rewards of float32(0.7) have a mean other than 0.7 and would get signal.
  constant_B = group_max(rewards_B, groups_B) == group_min(rewards_B, groups_B)
  return mean_B, size_B, constant_B


def _group_std(rewards_B, groups_B, ddof):
  """Standard deviation of each row's group; 1 where all rewards are equal."""
  mean_B, size_B, constant_B = _group_stats(rewards_B, groups_B)
  squares_B = group_sum((rewards_B - mean_B) ** 2, groups_B)
  std_B = jnp.sqrt(squares_B / jnp.maximum(size_B - ddof, 1))
  return jnp.where(constant_B, 1, std_B)


# --- of a response -----------------------------------------------------------


def group_mean(rewards_B: Array, groups_B: Array) -> Array:
  """Reward less the mean of its group: Dr.GRPO (arXiv:2503.20783, eq 3).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.

  Returns:
    [B] float, exactly 0 in groups whose rewards are all equal.
  """
  mean_B, _, constant_B = _group_stats(rewards_B, groups_B)
  return jnp.where(constant_B, 0, rewards_B - mean_B)


def group_norm(
    rewards_B: Array, groups_B: Array, *, eps: float = 1e-6, ddof: int = 1
) -> Array:
  """(R - mean) / (std + eps) in the group: GRPO (arXiv:2402.03300, sec 4.1.2).

  With one group for the whole batch it is batch whitening.

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.
    eps: added to the standard deviation (1e-6 in verl, 1e-4 in TRL).
    ddof: 1 divides the squared deviations by G - 1, as both peers do.

  Returns:
    [B] float, exactly 0 in groups whose rewards are all equal.
  """
  std_B = _group_std(rewards_B, groups_B, ddof)
  return group_mean(rewards_B, groups_B) / (std_B + eps)


def group_mean_batch_std(
    rewards_B: Array,
    groups_B: Array,
    valid_B: Array,
    *,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Array:
  """(R - mean of the group) / (std of the batch + eps): LitePPO (2508.08221).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int.
    valid_B: [B] bool, rows that are not padding: they make up the batch.
    eps: added to the standard deviation.
    ddof: as in `group_norm`.

  Returns:
    [B] float, exactly 0 in groups whose rewards are all equal.
  """
  std_B = _group_std(rewards_B, valid_B.astype(jnp.int32), ddof)
  return group_mean(rewards_B, groups_B) / (std_B + eps)


def leave_one_out(rewards_B: Array, groups_B: Array) -> Array:
  """Reward less the mean of the group's OTHERS: RLOO (arXiv:2402.14740, eq 8).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.

  Returns:
    [B] float, G / (G - 1) * (R - mean); 0 for a group of one.
  """
  mean_B, size_B, constant_B = _group_stats(rewards_B, groups_B)
  scale_B = size_B / jnp.maximum(size_B - 1, 1)
  return jnp.where(constant_B, 0, scale_B * (rewards_B - mean_B))


def max_rl(rewards_B: Array, groups_B: Array) -> Array:
  """(R - mean) / mean for rewards in {0, 1}: MaxRL (arXiv:2602.02710).

  Args:
    rewards_B: [B] float in {0, 1}; with -1 the mean vanishes or turns.
    groups_B: [B] int.

  Returns:
    [B] float, exactly 0 in groups that are all right or all wrong.
  """
  mean_B, _, constant_B = _group_stats(rewards_B, groups_B)
  share_B = (rewards_B - mean_B) / jnp.where(constant_B, 1, mean_B)
  return jnp.where(constant_B, 0, share_B)


def rank(rewards_B: Array, groups_B: Array) -> Array:
  """(rank - (K + 1) / 2) / (K / 2) in a group of K, ranks of ties averaged.

  Args:
    rewards_B: [B] float; only their order matters.
    groups_B: [B] int.

  Returns:
    [B] float in (-1, 1), exactly 0 in groups whose rewards are all equal.
  """
  chex.assert_equal_shape([rewards_B, groups_B])
  same_BB = groups_B[:, None] == groups_B[None]
  # How many others it beats, less how many beat it: twice the centred rank.
  beats_BB = jnp.sign(rewards_B[:, None] - rewards_B[None])
  return jnp.sum(same_BB * beats_BB, 1) / jnp.sum(same_BB, 1)


def _weighted(rewards_B, groups_B, weights_B):
  """R less the weighted mean of the others; 0 where there are none."""
  _, _, constant_B = _group_stats(rewards_B, groups_B)
  others_B = group_sum(weights_B, groups_B, others=True)
  worth_B = group_sum(weights_B * rewards_B, groups_B, others=True)
  # Each of the others counts only with what it weighs, so the baseline knows
  # nothing of the response that it is for: no bias.
  alone_B = constant_B | (others_B <= 0)
  mean_B = worth_B / jnp.where(alone_B, 1, others_B)
  return jnp.where(alone_B, 0, rewards_B - mean_B)


def length_weighted(rewards_B: Array, groups_B: Array, mask_BT: Array) -> Array:
  """Leave-one-out baseline in which a response weighs 1 / sqrt(|o|).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int.
    mask_BT: [B, T], tokens that count as length.

  Returns:
    [B] float.
  """
  length_B = jnp.maximum(mask_BT.sum(1), 1).astype(rewards_B.dtype)
  return _weighted(rewards_B, groups_B, length_B**-0.5)


def quality_weighted(
    rewards_B: Array, groups_B: Array, logps_BT: Array, mask_BT: Array
) -> Array:
  """Leave-one-out baseline in which a response weighs exp(mean log-prob).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int.
    logps_BT: [B, T] of the policy that sampled.
    mask_BT: [B, T], response tokens.

  Returns:
    [B] float.
  """
  mean_B = row_mean(logps_BT, mask_BT)
  # Only the ratios of weights matter; the largest of a group is 1.
  quality_B = jnp.exp(mean_B - group_max(mean_B, groups_B))
  return _weighted(rewards_B, groups_B, quality_B)


def confidence_weighted(rewards_B: Array, groups_B: Array) -> Array:
  """Leave-one-out baseline in which a response weighs |tanh(R / 2)|.

  That is how sure a Bradley-Terry reward is: 2 sigmoid(R) - 1, without sign.

  Args:
    rewards_B: [B] float, logits of a preference.
    groups_B: [B] int.

  Returns:
    [B] float; 0 where the others are all undecided.
  """
  return _weighted(rewards_B, groups_B, jnp.abs(jnp.tanh(rewards_B / 2)))


def hierarchical(
    rewards_B: Array,
    types_B: Array,
    valid_B: Array,
    *,
    mix: float = 0.5,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Array:
  """mix * (whitened in the problem type) + (1 - mix) * (in the batch).

  Args:
    rewards_B: [B] float.
    types_B: [B] int, the problem type of each row.
    valid_B: [B] bool, rows that are not padding.
    mix: a, the share of the local one.
    eps: as in `group_norm`.
    ddof: as in `group_norm`.

  Returns:
    [B] float.
  """
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
  """Leave-one-out over a prompt's responses of now and of recent steps.

  Args:
    rewards_B: [B] float.
    problems_B: [B] int, equal for equal prompts, in whatever step.
    past_rewards_H: [H] float, rewards of earlier responses.
    past_problems_H: [H] int, their prompts.
    past_weights_H: [H] float, `past_weights`; 0 for an empty place.

  Returns:
    [B] float.
  """
  both = zip(
      (rewards_B, problems_B, jnp.ones_like(rewards_B)),
      (past_rewards_H, past_problems_H, past_weights_H),
      strict=True,
  )
  return _weighted(*(jnp.concatenate(x) for x in both))[: rewards_B.shape[0]]


def explore(
    rewards_B: Array,
    groups_B: Array,
    logps_BT: Array,
    mask_BT: Array,
    progress: Array,
    *,
    bonus: float = 0.1,
    decay: float = 1.0,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Array:
  """GRPO's advantage plus a bonus for what the policy finds surprising.

  bonus * exp(-decay * progress) * the group-normalised mean of -log p. A group
  without signal gets none: there is nothing to prefer among its responses.

  Args:
    rewards_B: [B] float.
    groups_B: [B] int.
    logps_BT: [B, T] of the policy that sampled.
    mask_BT: [B, T], response tokens.
    progress: scalar in [0, 1], the share of the training that is done.
    bonus: size of the bonus at the start, in standard deviations.
    decay: k.
    eps: as in `group_norm`.
    ddof: as in `group_norm`.

  Returns:
    [B] float.
  """
  reward_B = group_norm(rewards_B, groups_B, eps=eps, ddof=ddof)
  surprise_B = -row_mean(logps_BT, mask_BT)
  novel_B = group_norm(surprise_B, groups_B, eps=eps, ddof=ddof)
  _, _, constant_B = _group_stats(rewards_B, groups_B)
  scale = bonus * jnp.exp(-decay * progress)
  return reward_B + jnp.where(constant_B, 0, scale * novel_B)


# --- of a token --------------------------------------------------------------


def returns_to_go(
    rewards_BT: Array, mask_BT: Array, *, gamma: float = 1.0
) -> Array:
  """Discounted sum of the rewards from each token on: REINFORCE++ (2501.03262).

  Args:
    rewards_BT: [B, T] float: per-token penalties, and the outcome at the end.
    mask_BT: [B, T]; masked positions are skipped, undiscounted.
    gamma: discount.

  Returns:
    [B, T] float, 0 outside the mask.
  """
  zeros_BT = jnp.zeros_like(rewards_BT)
  return gae(rewards_BT, zeros_BT, mask_BT, gamma=gamma, lam=1.0)


def gae(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    *,
    gamma: float = 1.0,
    lam: float | Array = 0.95,
) -> Array:
  """Generalised advantage estimation (arXiv:1506.02438, eq 16).

  A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, and
  V = A = 0 behind the last token. lam = 1 gives the return less V_t, lam = 0
  the TD error.

  Args:
    rewards_BT: [B, T] float.
    values_BT: [B, T] float, V of the prefix BEFORE token t.
    mask_BT: [B, T]; masked positions are skipped: t + 1 is the next token that
      counts, and there is no discount in between.
    gamma: discount.
    lam: scalar, or anything that broadcasts to [B, T].

  Returns:
    [B, T] float, 0 outside the mask.
  """
  chex.assert_rank([rewards_BT, values_BT, mask_BT], 2)
  chex.assert_equal_shape([rewards_BT, values_BT, mask_BT])
  dtype = jnp.result_type(rewards_BT, values_BT, 1.0)
  rewards_BT, values_BT = rewards_BT.astype(dtype), values_BT.astype(dtype)
  discount = jnp.asarray(gamma, dtype)
  lam_BT = jnp.broadcast_to(jnp.asarray(lam, dtype), values_BT.shape)

  def back(carry, at_t):
    next_value_B, next_B = carry
    reward_B, value_B, here_B, lam_B = at_t
    delta_B = reward_B + discount * next_value_B - value_B
    advantage_B = delta_B + discount * lam_B * next_B
    carry = (
        jnp.where(here_B, value_B, next_value_B),
        jnp.where(here_B, advantage_B, next_B),
    )
    return carry, jnp.where(here_B, advantage_B, 0)

  by_time = jax.tree.map(
      lambda x: x.T, (rewards_BT, values_BT, mask_BT > 0, lam_BT)
  )
  zeros_B = jnp.zeros_like(values_BT[:, 0])
  _, out_TB = jax.lax.scan(back, (zeros_B, zeros_B), by_time, reverse=True)
  return out_TB.T


def gae_length_adaptive(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    *,
    gamma: float = 1.0,
    alpha: float = 0.05,
) -> Array:
  """GAE with lam = 1 - 1 / (alpha l), l tokens: VAPO (2504.05118, sec 4.2).

  lam is clamped at 0: it would be negative for l < 1 / alpha.

  Args:
    rewards_BT: as in `gae`.
    values_BT: as in `gae`.
    mask_BT: as in `gae`.
    gamma: discount.
    alpha: a larger one gives larger lam.

  Returns:
    [B, T] float, 0 outside the mask.
  """
  length_B1 = mask_BT.sum(1, keepdims=True).astype(values_BT.dtype)
  lam_B1 = jnp.clip(1 - 1 / (alpha * jnp.maximum(length_B1, 1)), 0, 1)
  return gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam_B1)


def gae_exp_complexity(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    types_B: Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    decay: float = 1.0,
    slope: float = 0.5,
    hardest: float = 1.0,
) -> Array:
  """GAE whose lam falls with the offset and with the problem's complexity.

  lam_l = lam exp(-decay l / T) (1 - slope complexity / hardest), and
  delta_{t+l} enters A_t with gamma^l lam_1 ... lam_l: the cumulative product
  keeps what GAE promises (decay = slope = 0 is GAE; a lam of 0 ends the sum).

  Args:
    rewards_BT: as in `gae`.
    values_BT: as in `gae`.
    mask_BT: as in `gae`; offsets count tokens inside the mask.
    types_B: [B] int >= 0, the complexity of each problem.
    gamma: discount.
    lam: lam at offset 0.
    decay: a.
    slope: b, in [0, 1].
    hardest: C_max; a larger complexity counts as this one.

  Returns:
    [B, T] float, 0 outside the mask.
  """
  rows, length = values_BT.shape
  td_BT = gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=0.0)
  order_BT = jnp.argsort(~(mask_BT > 0), axis=1, stable=True)  # tokens first
  delta_BT = jnp.take_along_axis(td_BT, order_BT, 1)
  ease_B1 = 1 - slope * jnp.clip(types_B[:, None] / hardest, 0, 1)
  ahead_BT = jnp.pad(delta_BT, ((0, 0), (0, length)))

  def horner(sum_BT, offset):
    """sum <- lam_offset (delta_{t + offset} + sum), from the far end."""
    here_BT = jax.lax.dynamic_slice_in_dim(ahead_BT, offset, length, 1)
    lam_B1 = gamma * lam * jnp.exp(-decay * offset / length) * ease_B1
    return (lam_B1 * (here_BT + sum_BT)).astype(sum_BT.dtype), None

  offsets = jnp.arange(length - 1, 0, -1)
  tail_BT, _ = jax.lax.scan(horner, jnp.zeros_like(delta_BT), offsets)
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
    mix: float = 0.5,
    decay: float = 1.0,
    gamma: float = 1.0,
    alpha: float = 0.05,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Array:
  """a(t) * VAPO + (1 - a(t)) * GRPO, both whitened first.

  Args:
    rewards_B: as in `group_norm`.
    groups_B: as in `group_norm`.
    rewards_BT: as in `gae`.
    values_BT: as in `gae`.
    mask_BT: as in `gae`.
    progress: scalar in [0, 1], the share of the training that is done.
    mix: a0; a(t) = a0 exp(-decay progress).
    decay: k.
    gamma: as in `gae`.
    alpha: as in `gae_length_adaptive`.
    eps: as in `group_norm`.
    ddof: as in `group_norm`.

  Returns:
    [B, T] float, 0 outside the mask.
  """
  vapo_BT = gae_length_adaptive(
      rewards_BT, values_BT, mask_BT, gamma=gamma, alpha=alpha
  )
  grpo_B = group_norm(rewards_B, groups_B, eps=eps, ddof=ddof)
  grpo_BT = grpo_B[:, None] * (mask_BT > 0)
  share = mix * jnp.exp(-decay * progress)
  return share * whiten(vapo_BT, mask_BT) + (1 - share) * whiten(
      grpo_BT, mask_BT
  )
