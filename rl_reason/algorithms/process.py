"""Process rewards: rewards of the steps of a response, beside its outcome.

A reward function judges steps (`tasks.reward_functions`), and a step is
rewarded at its last token. `reward.process` says what the numbers of the steps
are: rewards, or potentials, whose differences are rewards.

The steps of a response are its turns: `turns.returns_by_turn` and
`turns.gae_by_turn` give all tokens of a step one advantage, and the tokens
after the last step are a step of their own. `advantages.gae` and
`advantages.returns_to_go` read the rewards by token.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rl_reason.algorithms import advantages, rewards
from rl_reason.algorithms.reductions import group_max, group_sum
from rl_reason.base.structs import Array, NonNegative


def process_norm(
    rewards_B: Array,
    groups_B: Array,
    step_rewards_BT: Array,
    step_ends_BT: Array,
    *,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """GRPO with process supervision (arXiv:2402.03300, section 4.1.3).

  The reward of a step is normalised over all steps of the group, and a token
  has the sum of the normalised rewards of the steps that end at the token or
  later. The advantage of the outcome, `advantages.group_norm`, is added; it is
  0 where the outcome is not rewarded, as in the paper.

  Args:
    rewards_B: [B] float, rewards of the outcomes.
    groups_B: [B] int.
    step_rewards_BT: [B, T] float, reward of each step at its last token.
    step_ends_BT: [B, T] bool, the last token of each step.
    eps: added to the standard deviations.
    ddof: as in `advantages.group_norm`, of steps as of responses.

  Returns:
    [B, T] float. Steps of a group whose steps all have one reward add 0.
  """

  def over_steps(x_BT):
    return group_sum(jnp.where(step_ends_BT, x_BT, 0).sum(1), groups_B)

  count_B = over_steps(jnp.ones_like(step_rewards_BT))
  mean_B = over_steps(step_rewards_BT) / jnp.maximum(count_B, 1)
  less_BT = step_rewards_BT - mean_B[:, None]
  std_B = jnp.sqrt(over_steps(less_BT**2) / jnp.maximum(count_B - ddof, 1))
  # Compared with each other: the mean of equal rewards is rounded.
  ends = dict(where=step_ends_BT, initial=-jnp.inf)
  high_B = group_max(jnp.max(step_rewards_BT, 1, **ends), groups_B)
  low_B = -group_max(jnp.max(-step_rewards_BT, 1, **ends), groups_B)
  differ_BT = step_ends_BT & (high_B > low_B)[:, None]
  normal_BT = jnp.where(differ_BT, less_BT / (std_B + eps)[:, None], 0)
  to_come_BT = jnp.cumsum(normal_BT[:, ::-1], 1)[:, ::-1]
  outcome_B = advantages.group_norm(rewards_B, groups_B, eps=eps, ddof=ddof)
  return outcome_B[:, None] + to_come_BT


def vine(
    rewards_BT: Array,
    groups_B: Array,
    mask_BT: Array,
    step_ends_BT: Array,
    prefix_returns_BT: Array,
) -> Array:
  """Values of prefixes by rollouts: VinePPO (arXiv:2410.01679, section 4).

  The tokens of a step have the advantage r + V(prefix with the step) -
  V(prefix), where V is the mean return of continuations. Returns here are of
  whole responses, with the rewards of the prefix, so that r is part of the
  difference. The value of the prompt is the mean return of the other responses
  of the group, and after the last step stands the return of the response.

  Args:
    rewards_BT: [B, T] float.
    groups_B: [B] int.
    mask_BT: [B, T] bool, response tokens, without holes.
    step_ends_BT: [B, T] bool, the last token of each step.
    prefix_returns_BT: [B, T] float, mean return of the continuations of a
      prefix, at its last token.

  Returns:
    [B, T] float, 0 outside the mask, and in the first step where the group has
    no other response.
  """
  length = mask_BT.shape[1]
  places_T = jnp.arange(length)
  known_BT = step_ends_BT & mask_BT & ~_lasts(mask_BT)
  # The newest prefix before a token, and the next one from the token on.
  newest_BT = jax.lax.cummax(jnp.where(known_BT, places_T, -1), 1)
  newest_BT = jnp.pad(newest_BT[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  next_BT = jnp.where(known_BT, places_T, length)
  next_BT = jax.lax.cummin(next_BT, 1, reverse=True)

  def at(places_BT, otherwise_B):
    inside_BT = (places_BT >= 0) & (places_BT < length)
    places_BT = jnp.clip(places_BT, 0, length - 1)
    found_BT = jnp.take_along_axis(prefix_returns_BT, places_BT, 1)
    return jnp.where(inside_BT, found_BT, otherwise_B[:, None])

  return_B = rewards_BT.sum(1)
  others_B = group_sum(return_B, groups_B, exclude_self=True)
  count_B = group_sum(jnp.ones_like(return_B), groups_B, exclude_self=True)
  prompt_B = others_B / jnp.maximum(count_B, 1)
  gain_BT = at(next_BT, return_B) - at(newest_BT, prompt_B)
  # Without another response the value of the prompt is not known.
  valued_BT = (newest_BT >= 0) | (count_B > 0)[:, None]
  return jnp.where(mask_BT & valued_BT, gain_BT, 0)


def potential_shaping(
    potentials_BT: Array,
    ends_BT: Array,
    actions_BT: Array,
    mask_BT: Array,
    *,
    gamma: float,
) -> Array:
  """gamma phi(s') - phi(s): potential-based shaping (Ng et al., ICML 1999).

  phi is 0 before the first step, the potential of the last completed step after
  it, and 0 after the last token. The discounted sum over a response is then 0
  for any potentials, so that a policy is optimal with these rewards if and only
  if it is optimal without.

  Args:
    potentials_BT: [B, T] float, phi of each step at its last token.
    ends_BT: [B, T] bool, the last token of each step.
    actions_BT: [B, T] bool, the last token of each action, between which
      rewards are discounted: all tokens, or the ends of steps. The last token
      of a response is one.
    mask_BT: [B, T] bool, response tokens, without holes.
    gamma: discount per action.

  Returns:
    [B, T] float, 0 except at the ends of actions.
  """
  places_T = jnp.arange(mask_BT.shape[1])
  newest_BT = jax.lax.cummax(jnp.where(ends_BT, places_T, -1), 1)
  after_BT = jnp.take_along_axis(potentials_BT, jnp.maximum(newest_BT, 0), 1)
  after_BT = jnp.where(newest_BT >= 0, after_BT, 0)
  before_BT = jnp.pad(after_BT[:, :-1], ((0, 0), (1, 0)))
  after_BT = jnp.where(_lasts(mask_BT), 0, after_BT)
  shaped_BT = gamma * after_BT - before_BT
  return jnp.where(mask_BT & actions_BT, shaped_BT, 0)


def _lasts(mask_BT: Array) -> Array:
  """The last token of each response."""
  return mask_BT & ~jnp.pad(mask_BT[:, 1:], ((0, 0), (0, 1)))


def numbers(ends_BT: Array, mask_BT: Array) -> Array:
  """The step of each token, [B, T] int, from 1 on; 0 outside the mask."""
  return jnp.where(mask_BT, jnp.cumsum(ends_BT, 1) - ends_BT + 1, 0)


def outcome(
    rows: dict[str, Array], *, outcome: Callable[[dict[str, Array]], Array]
) -> Array:
  """`credit.outcome` without the scores of responses that are judged by step.

  Args:
    rows: its arrays, and judged_EB.
    outcome: `credit.outcome`, keywords bound.
  """
  scores = zip(rows["scores_EB"], rows["judged_EB"], strict=True)
  scores_EB = tuple(jnp.where(judged_B, 0, x_B) for x_B, judged_B in scores)
  return outcome(rows | dict(scores_EB=scores_EB))


def assign(
    rows: dict[str, Array],
    *,
    assign: Callable[[dict[str, Array]], dict[str, Any]],
    term_weights: tuple[tuple[float, float], ...],
    potentials: bool,
    by_step: bool,
    gamma: float,
) -> dict[str, Any]:
  """`credit.assign` or `credit.monte_carlo`, with process rewards.

  Args:
    rows: their arrays; rewards_B are of the outcomes. step_rewards_EBT and
      step_ends_BT of `structs.Steps`, and progress.
    assign: one of the two, keywords bound.
    term_weights: as in `credit.outcome`.
    potentials: the numbers of steps are potentials, else rewards.
    by_step: the advantage discounts by step, else by token.
    gamma: its discount.

  Returns:
    what `assign` returns; rewards_B are those of the outcomes and of the steps.
  """
  ends_BT, mask_BT = rows["step_ends_BT"], rows["mask_BT"]
  weighted = rows["step_rewards_EBT"], term_weights, rows["progress"]
  process_BT = jnp.where(mask_BT, rewards.weighted(*weighted), 0)
  if potentials:
    actions_BT = ends_BT | _lasts(mask_BT) if by_step else mask_BT
    process_BT = potential_shaping(
        process_BT, ends_BT, actions_BT, mask_BT, gamma=gamma
    )
  turns_BT = numbers(ends_BT, mask_BT)
  out = assign(rows | dict(step_rewards_BT=process_BT, turns_BT=turns_BT))
  return out | dict(rewards_B=out["rewards_B"] + process_BT.sum(1))
