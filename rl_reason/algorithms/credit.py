"""Credit assignment: from verdicts to rewards, advantages and critic targets.

Pure functions of arrays, jit-ed over all rows of a step. An advantage function
is called with those of these arrays that its positional parameters name:

| name             | array                                                     |
|------------------|-----------------------------------------------------------|
| rewards_B        | reward of each response, minus a KL in the reward         |
| rewards_BT       | the same per token: the outcome on the last token         |
| turn_rewards_BT  | the part of rewards_B that stands at the ends of turns    |
| turns_BT         | the turn of each token, from 1 on; or its step            |
| step_rewards_BT  | process rewards, which are in rewards_BT, not rewards_B   |
| step_ends_BT     | bool, the last token of each step                         |
| groups_B         | ids of the groups: prompts, problem types, or the batch   |
| valid_B          | bool, False for padding rows                              |
| types_B          | problem type: difficulty, subject or pass rate            |
| problems_B       | id of the prompt's text, the same in every step           |
| lengths_B        | response tokens                                           |
| mask_BT          | bool, response tokens                                     |
| logps_BT         | log-probs of the policy that sampled, by the trainer      |
| entropy_BT       | its entropy                                               |
| squares_BT       | sum of p^2 over the vocabulary, p its probabilities       |
| values_BT        | V of the prefix before each token; requires a critic      |
| progress         | fraction of the training that is done, in [0, 1]          |
| parts            | each part of the reward, and its weight (`reward_parts`)  |

A feature may supply further arrays: see rl_reason/features/README.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from rl_reason.algorithms import (
    advantages,
    kl as kl_lib,
    reductions,
    rewards,
    values,
    variants,
)
from rl_reason.base.structs import Array, call_by_name


def outcome(
    rows: dict[str, Array],
    *,
    max_tokens: int,
    outcome: Callable[..., Array] = rewards.correctness,
    correct: float = 1.0,
    incorrect: float = -1.0,
    term_weights: tuple[tuple[float, float], ...] = (),
    overlong_buffer: int = 0,
    overlong_coef: float = 1.0,
    length_penalty: Callable[..., Array] | None = None,
    bootstrap: bool = False,
) -> Array:
  """The reward of each response, [B]: correctness, scores and length.

  rows has correct_B in {0, 1}, or -1 where the verifier failed: the reward is
  NaN then; lengths_B, truncated_B and groups_B (prompts), and with terms
  scores_EB and progress. outcome is `rewards.correctness` or one's own,
  length_penalty None or `variants.logquad`, keywords bound.
  term_weights are the weights of `rewards.weighted`, overlong_buffer the
  buffer of `rewards.soft_overlong` and overlong_coef its coefficient. With
  bootstrap, `variants.bootstrap_truncated` estimates the reward of a truncated
  response; otherwise its reward is terminal.
  """
  limits = dict(max_tokens=max_tokens, correct=correct, incorrect=incorrect)
  inputs = rows | limits
  reward_B = call_by_name(outcome, inputs)
  if term_weights:
    scores = rows["scores_EB"], term_weights, rows["progress"]
    reward_B += rewards.weighted(*scores)
  penalty_B = overlong_coef * rewards.soft_overlong(
      rows["lengths_B"], max_tokens=max_tokens, buffer=overlong_buffer
  )
  if length_penalty is not None:
    penalty_B += call_by_name(length_penalty, inputs | dict(rewards_B=reward_B))
  # Lengths are integers, and dividing them may widen the dtype.
  reward_B = (reward_B + penalty_B).astype(rows["correct_B"].dtype)
  failed_B = rows["correct_B"] < 0
  reward_B = jnp.where(failed_B, jnp.nan, reward_B)
  if bootstrap:
    # Where the judge of a response failed, it counts as truncated, too.
    truncated_B = rows["truncated_B"] & ~failed_B
    reward_B = variants.bootstrap_truncated(
        reward_B, truncated_B, rows["groups_B"]
    )
  return reward_B


def targets(
    rewards_BT: Array, values_BT: Array, mask_BT: Array, *, gamma, lam
) -> tuple[Array, dict[str, Array]]:
  """Regression targets of the critic, [B, T]: R_t = A_t(lam) + V_t.

  With lam = 1 these are Monte-Carlo returns. Arguments as in `advantages.gae`:
  lam may be an array, too. Also returns metrics: explained variance and mean of
  the values.
  """
  # The critic is measured against what happened, whatever its targets are.
  actual_BT = advantages.returns_to_go(rewards_BT, mask_BT, gamma=gamma)
  explained = values.explained_variance(values_BT, actual_BT, mask_BT)
  arrays = rewards_BT, values_BT, mask_BT
  advantage_BT = advantages.gae(*arrays, gamma=gamma, lam=lam)
  return values_BT + advantage_BT, {
      "critic/vf_explained_var": explained,
      "critic/values/mean": reductions.masked_mean(values_BT, mask_BT),
  }


def monte_carlo(rows: dict[str, Array], *, gamma: float) -> dict[str, Any]:
  """As `assign`, for value pretraining: Monte-Carlo targets, no advantages."""
  mask_BT, values_BT = rows["mask_BT"], rows["values_BT"]
  zeros_BT = jnp.zeros_like(values_BT)
  rewards_BT = rewards.per_token(
      rows["rewards_B"], mask_BT, zeros_BT, 0.0, rows.get("turn_rewards_BT")
  )
  rewards_BT += rows.get("step_rewards_BT", 0)
  arrays = rewards_BT, values_BT, mask_BT
  returns_BT, metrics = targets(*arrays, gamma=gamma, lam=1.0)
  out = dict(advantages_BT=zeros_BT, returns_BT=returns_BT)
  return out | dict(rewards_B=rows["rewards_B"], metrics=metrics)


def assign(
    rows: dict[str, Array],
    *,
    advantage: Callable[..., Array],
    groups: str = "prompt",
    whiten: bool = False,
    gamma: float = 1.0,
    critic_lam: float = 1.0,
    kl: str = "none",
    kl_in_reward: bool = False,
    adjustments: Sequence[Callable[..., Any]] = (),
) -> dict[str, Any]:
  """Advantages and the critic's targets of all rows of a step.

  Args:
    rows: rewards_B (`outcome`), age_B (-1 for padding), the arrays above that
      are used, ref_logps_BT, sampler_logps_BT and kl_coef.
    advantage: a function of `advantages`, keywords bound.
    groups: 'prompt', 'type' or 'batch': which rows share a baseline.
    whiten: whiten the advantages over all tokens.
    gamma: discount per token, of the critic's targets.
    critic_lam: lambda of the critic's targets, decoupled from the policy's.
    kl: estimator of the KL to the reference, one of `kl.ESTIMATORS`, or 'none'.
    kl_in_reward: subtract kl_coef * KL from the rewards.
    adjustments: functions of these arrays and of advantages_BT, which they
      change in turn; each may return metrics, too.

  Returns:
    rewards_B, advantages_BT, returns_BT (0 without a critic), scalar metrics.
  """
  mask_BT, valid_B = rows["mask_BT"], rows["age_B"] >= 0
  metrics = {}

  # Rewards per token, with the KL penalty where it is part of the reward.
  kl_BT = jnp.zeros_like(rows["logps_BT"])
  if kl != "none":
    kl_BT = kl_lib.estimate(kl, rows["logps_BT"], rows["ref_logps_BT"])
    metrics["kl/reference"] = reductions.masked_mean(kl_BT, mask_BT)
  coef = rows["kl_coef"] if kl_in_reward else 0.0
  outcome = rows["rewards_B"], mask_BT, kl_BT, coef
  rewards_BT = rewards.per_token(*outcome, rows.get("turn_rewards_BT"))
  rewards_B = rewards_BT.sum(1) if kl_in_reward else rows["rewards_B"]
  rewards_BT += rows.get("step_rewards_BT", 0)  # no part of the outcome

  # Padding rows form groups of their own, so that no statistic includes them;
  # the prompt id of a padding row is negative already.
  groups_B = {
      "prompt": rows["groups_B"],
      "type": jnp.where(valid_B, rows["types_B"], -1),
      "batch": jnp.where(valid_B, 0, -1),
  }[groups]
  rows = rows | dict(
      rewards_B=rewards_B,
      rewards_BT=rewards_BT,
      groups_B=groups_B,
      problems_B=jnp.where(valid_B, rows["problems_B"], -1),
      valid_B=valid_B,
  )

  # Targets of the critic.
  returns_BT = jnp.zeros_like(rewards_BT)
  if "values_BT" in rows:
    returns_BT, critic_metrics = targets(
        rewards_BT, rows["values_BT"], mask_BT, gamma=gamma, lam=critic_lam
    )
    metrics |= critic_metrics

  # Advantages: one number of a response goes to all of its tokens.
  found, more = _with_metrics(call_by_name(advantage, rows | dict(rows=rows)))
  metrics |= more
  advantages_BT = jnp.broadcast_to(
      found if found.ndim == 2 else found[:, None], kl_BT.shape
  )
  mask_BT = mask_BT & valid_B[:, None]
  advantages_BT = jnp.where(mask_BT, advantages_BT, 0)

  # Whitening comes first: masks and factors are not part of its statistics.
  if whiten:
    advantages_BT = reductions.whiten(advantages_BT, mask_BT)
  for adjust in adjustments:
    inputs = rows | dict(advantages_BT=advantages_BT, mask_BT=mask_BT)
    advantages_BT, more = _with_metrics(call_by_name(adjust, inputs))
    metrics |= more
  out = dict(advantages_BT=advantages_BT, returns_BT=returns_BT)
  return out | dict(rewards_B=rewards_B, metrics=metrics)


def _with_metrics(found: Any) -> tuple[Array, dict[str, Array]]:
  """Advantages, and the metrics of a function that has some."""
  return found if isinstance(found, tuple) else (found, {})


def rewards_and_advantages(
    rows: dict[str, Array],
    *,
    reward: Callable[[dict[str, Array]], Array],
    assign: Callable[[dict[str, Array]], dict[str, Any]],
    parts: Callable[[dict[str, Array]], dict[str, Any]] | None = None,
    counts: Callable[[dict[str, Array]], Array] | None = None,
) -> dict[str, Any]:
  """The whole of credit: `outcome`, then `assign` (or `monte_carlo`).

  A row whose reward is not finite is no part of any baseline, as padding is
  none; its rewards_B is NaN, and `step.train_batch` leaves it out of the loss.

  Args:
    rows: the arrays that both read.
    reward: `outcome`, keywords bound.
    assign: `assign` or `monte_carlo`, keywords bound.
    parts: `variants.reward_parts` for an advantage that takes them, or None.
    counts: rows -> whether a row is part of the statistics, too; None: all are.
      A row that is not has no advantage, and keeps its reward.
  """
  rewards_B = reward(rows)
  given_B = finite_B = jnp.isfinite(rewards_B)
  if counts is not None:
    finite_B &= counts(rows)
  if parts is not None:
    rows = rows | dict(parts=parts(rows))
  out = assign(
      rows
      | dict(
          rewards_B=jnp.where(finite_B, rewards_B, 0),
          groups_B=jnp.where(finite_B, rows["groups_B"], -1),
          age_B=jnp.where(finite_B, rows["age_B"], -1),
          mask_BT=rows["mask_BT"] & finite_B[:, None],
      )
  )
  rewards_B = jnp.where(finite_B, out["rewards_B"], rewards_B)
  return out | dict(rewards_B=jnp.where(given_B, rewards_B, jnp.nan))
