"""Techniques beside the advantages that no named algorithm uses.

Each plugs into one place: rewards and values into `credit.py`, token masks and
weights into `objective.py`. Their keyword-only parameters are the `args` of
their section of the config.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax.numpy as jnp

from rl_reason.algorithms.reductions import (
    group_max,
    group_sum,
    masked_mean,
)
from rl_reason.algorithms.rewards import per_token
from rl_reason.base.structs import (
    NO_SCORE,
    Array,
    NonNegative,
    call_by_name,
)

_LOG_2 = 0.6931471805599453
_EQUAL_AT_L = 1 / _LOG_2  # of alpha: log(1 + l / L) is log(2) at l = L

# --- rewards -----------------------------------------------------------------


def logquad(
    rewards_B: Array,
    correct_B: Array,
    lengths_B: Array,
    max_tokens: int,
    *,
    coef: NonNegative = 0.1,
    decay: NonNegative = 1.0,
    threshold: float = 0.0,
    alpha: NonNegative = _EQUAL_AT_L,
    beta: NonNegative = 1.0,
    length: NonNegative = 0.0,
    good: Literal["correct", "reward"] = "correct",
) -> Array:
  """Length penalty: logarithmic if correct, quadratic if incorrect.

  -lambda alpha log(1 + l / L) for good and -lambda beta (l / L)^2 for other
  responses: both 0 at l = 0 and, by default, -lambda at l = L, where
  lambda = coef * exp(-decay * max(0, R - threshold)) decreases with the reward.

  Keywords: coef and threshold are lambda and the reward up to which it applies;
  decay is the rate at which lambda decreases with the reward; alpha and beta
  scale the two penalties, and alpha is 1 / log(2) so that they meet at L;
  length is L in tokens, 0 for rollout.max_tokens; good responses are the
  correct ones, or those whose reward exceeds the threshold.
  """
  share_B = lengths_B.astype(rewards_B.dtype) / (length or max_tokens)
  excess_B = jnp.maximum(rewards_B - threshold, 0)
  coef_B = coef * jnp.exp(-decay * excess_B)
  is_good_B = correct_B > 0 if good == "correct" else rewards_B > threshold
  # The factor of log2 is exactly 1 by default.
  log_B = alpha * _LOG_2 * jnp.log2(1 + share_B)
  shape_B = jnp.where(is_good_B, log_B, beta * share_B**2)
  return -coef_B * shape_B


def bootstrap_truncated(
    rewards_B: Array, truncated_B: Array, groups_B: Array
) -> Array:
  """Truncated responses get the mean reward of their group's finished ones.

  A response cut at the length limit did not reach a terminal state: its return
  is unknown. Without a critic, the best estimate is the mean of the finished
  responses to the same prompt (0 if there are none).
  """
  # Unfinished responses and failed rewards are no part of the mean.
  finished_B = ~truncated_B & jnp.isfinite(rewards_B)
  # The mean as a distance from the best reward: the mean of equal rewards is
  # then exactly that reward, and rounding does not become a signal.
  best_B = group_max(jnp.where(finished_B, rewards_B, -jnp.inf), groups_B)
  count_B = group_sum(finished_B.astype(rewards_B.dtype), groups_B)
  best_B = jnp.where(count_B > 0, best_B, 0)
  below_B = group_sum(jnp.where(finished_B, rewards_B - best_B, 0), groups_B)
  mean_B = best_B + below_B / jnp.maximum(count_B, 1)
  return jnp.where(truncated_B, mean_B, rewards_B)


def reward_parts(
    rows: Mapping[str, Any],
    *,
    reward: Callable[..., Array],
    weights: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[Array, Array | float]]:
  """The parts of the reward and their weights, by name: input of `gdpo`.

  Args:
    rows: as for `credit.outcome`.
    reward: `credit.outcome`; without its functions it is the part `outcome`,
      of weight 1.
    weights: of each function, as `rewards.weighted` takes them.

  Returns:
    rewards [B] and weights. A reward is NaN where its function does not score
    the response, and 0 where it is not finite: that response leaves the loss.
  """
  outcome_B = reward(rows, term_weights=())
  parts = {"outcome": (jnp.nan_to_num(outcome_B, posinf=0, neginf=0), 1.0)}
  terms = zip(weights.items(), rows["scores_EB"], strict=True)
  for (name, (first, last)), score_B in terms:
    weight = first + (last - first) * rows["progress"]
    part_B = jnp.nan_to_num(score_B, posinf=0, neginf=0)
    parts[name] = jnp.where(score_B == NO_SCORE, jnp.nan, part_B), weight
  return parts


def spread(name: str, part_B: Array, valid_B: Array) -> dict[str, Array]:
  """Metrics: mean and standard deviation of a part over the valid rows.

  Rows without the part (NaN) are left out.
  """
  valid_B &= jnp.isfinite(part_B)
  count = jnp.maximum(valid_B.sum(), 1)
  mean = jnp.where(valid_B, part_B, 0).sum() / count
  squares = jnp.where(valid_B, part_B - mean, 0) ** 2
  std = jnp.sqrt(squares.sum() / count)
  return {f"reward/{name}/mean": mean, f"reward/{name}/std": std}


def shares(terms: Mapping[str, Array], valid_B: Array) -> dict[str, Array]:
  """Metrics: share of each term in the sum of their absolute values.

  Args:
    terms: terms of the advantage, [B], by the names of the parts.
    valid_B: [B] bool, False for padding rows; or [B, T], of terms [B, T].
  """
  sizes = {k: jnp.where(valid_B, jnp.abs(x), 0).sum() for k, x in terms.items()}
  total = jnp.maximum(sum(sizes.values()), 1e-9)
  return {f"reward/{k}/advantage_share": x / total for k, x in sizes.items()}


def with_shares(
    rewards_B: Array,
    groups_B: Array,
    valid_B: Array,
    parts: Mapping[str, tuple[Array, Array]],
    *,
    advantage: Callable[..., Array],
) -> tuple[Array, dict[str, Array]]:
  """An advantage s (R - mean), and what each part of the reward R adds to it.

  The mean and the scale s are of the group: 1 of `group_mean`, 1 / (std + eps)
  of `group_norm`, G / (G - 1) of `leave_one_out`. The term of a part r of
  weight w is s w (r - mean of r); the terms of all parts sum to the advantage.

  Args:
    rewards_B: [B] float, R.
    groups_B: [B] int.
    valid_B: [B] bool, False for padding rows, which are in no metric.
    parts: reward [B] and weight of each part, see `reward_parts`. The part
      `outcome` is replaced by the rest of R, which has length penalties.
    advantage: one of these functions, keywords bound.

  Returns:
    the advantage, [B]; and metrics: the share of each part in the sum of the
    absolute values of the terms, and mean and standard deviation of the rest.
  """
  rows = dict(rewards_B=rewards_B, groups_B=groups_B, valid_B=valid_B)
  advantages_B = call_by_name(advantage, rows)
  size_B = group_sum(jnp.ones_like(rewards_B), groups_B)

  def deviation(x_B):
    return x_B - group_sum(x_B, groups_B) / size_B

  added = _added(rewards_B, parts)
  total_B = group_sum(jnp.abs(deviation(rewards_B)), groups_B)
  scale_B = group_sum(jnp.abs(advantages_B), groups_B)
  scale_B = scale_B / jnp.where(total_B > 0, total_B, 1)
  terms = {name: scale_B * deviation(x_B) for name, x_B in added.items()}
  metrics = shares(terms, valid_B)
  return advantages_B, metrics | spread("outcome", added["outcome"], valid_B)


def with_linear_shares(
    rows: Mapping[str, Any], *, advantage: Callable[..., Array]
) -> tuple[Array, dict[str, Array]]:
  """An advantage A that is linear in the reward, and what each part adds to it.

  The term of a part r of weight w is A(w r) - A(0), minus its mean over the
  tokens of all rows, as `reductions.whiten` subtracts it: the constant part of
  a reward teaches nothing, and a critic's values are of no part.

  Args:
    rows: the arrays that `credit.assign` gives to an advantage, parts
      (`reward_parts`) among them.
    advantage: one of these functions, keywords bound.

  Returns:
    as `with_shares`.
  """
  mask_BT = (rows["mask_BT"] > 0) & rows["valid_B"][:, None]
  added = _added(rows["rewards_B"], rows["parts"])

  def of(reward_B):
    rewards_BT = per_token(reward_B, mask_BT, jnp.zeros(mask_BT.shape), 0.0)
    changes = dict(rewards_B=reward_B, rewards_BT=rewards_BT)
    found = call_by_name(advantage, dict(rows) | changes)
    return found if found.ndim == 2 else found[:, None] * mask_BT

  nothing_BT = of(jnp.zeros_like(rows["rewards_B"]))
  terms = {name: of(x_B) - nothing_BT for name, x_B in added.items()}
  terms = {k: x_BT - masked_mean(x_BT, mask_BT) for k, x_BT in terms.items()}
  metrics = shares(terms, mask_BT)
  metrics |= spread("outcome", added["outcome"], rows["valid_B"])
  return call_by_name(advantage, rows), metrics


def _added(
    rewards_B: Array, parts: Mapping[str, tuple[Array, Array]]
) -> dict[str, Array]:
  """The weighted parts of a reward, [B]; `outcome` is the rest of it."""
  added = {
      name: weight * jnp.nan_to_num(part_B)  # a part without a score adds 0
      for name, (part_B, weight) in parts.items()
      if name != "outcome"
  }
  added["outcome"] = rewards_B - sum(added.values())
  return added
