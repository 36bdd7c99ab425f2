"""From verdicts to advantages: rewards, values, credit, corrections.

One pure function of arrays, jit-ed by the loop over all rows of a step. An
advantage function is called with the arrays that its positional arguments name;
this is what there is:

| name             | what                                                      |
|------------------|-----------------------------------------------------------|
| rewards_B        | reward of each response, KL in the reward included        |
| rewards_BT       | the same per token: the outcome on the last one           |
| groups_B         | ids of what is compared: prompts, types, or the batch     |
| valid_B          | bool, rows that are not padding                           |
| types_B          | problem type (the task's difficulty)                      |
| problems_B       | equal for equal prompts, in whatever step                 |
| lengths_B        | response tokens                                           |
| mask_BT          | bool, response tokens                                     |
| logps_BT         | log-probs of the policy that sampled, by the trainer      |
| entropy_BT       | its entropy                                               |
| values_BT        | V of the prefix before each token: asks for a critic      |
| progress         | share of the training that is done, in [0, 1]             |
| past_rewards_H   | rewards of recent responses: asks for a history           |
| past_problems_H  | their problems                                            |
| past_weights_H   | their importance ratios, capped                           |
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rl_reason.algorithms import (
    advantages,
    corrections,
    losses,
    rewards,
    values,
)
from rl_reason.algorithms.groups import token_mean, whiten
from rl_reason.structs import Array


def outcome(
    correct_B: Array,
    lengths_B: Array,
    truncated_B: Array,
    groups_B: Array,
    extra_B: Array | float = 0.0,
    *,
    right: float = 1.0,
    wrong: float = -1.0,
    cosine: bool = False,
    right_long: float = 1.0,
    wrong_long: float = -1.0,
    max_tokens: int,
    overlong_buffer: int = 0,
    overlong_coef: float = 1.0,
    length_coef: float = 0.0,
    length_decay: float = 1.0,
    length_threshold: float = 0.0,
    truncated: str = "terminal",
) -> Array:
  """The reward of each response: verdict, scorers and length.

  Args:
    correct_B: [B] float in {0, 1}.
    lengths_B: [B] int, response tokens.
    truncated_B: [B] bool.
    groups_B: [B] int, prompts.
    extra_B: [B] float, what scorers add.
    right: see `rewards.correctness`.
    wrong: see `rewards.correctness`.
    cosine: verdict and length as in `rewards.cosine`.
    right_long: see there.
    wrong_long: see there.
    max_tokens: the longest response that is allowed.
    overlong_buffer: see `rewards.soft_overlong`.
    overlong_coef: factor of that punishment.
    length_coef: see `rewards.logquad`.
    length_decay: see `rewards.logquad`.
    length_threshold: see `rewards.logquad`.
    truncated: 'terminal', or 'bootstrap': see `rewards.bootstrap_truncated`.

  Returns:
    [B] float.
  """
  if cosine:
    reward_B = rewards.cosine(
        correct_B,
        lengths_B,
        max_tokens=max_tokens,
        right=right,
        right_long=right_long,
        wrong=wrong,
        wrong_long=wrong_long,
    )
  else:
    reward_B = rewards.correctness(correct_B, right=right, wrong=wrong)
  reward_B += extra_B
  length_B = overlong_coef * rewards.soft_overlong(
      lengths_B, max_tokens=max_tokens, buffer=overlong_buffer
  )
  if length_coef:
    length_B += rewards.logquad(
        reward_B,
        correct_B,
        lengths_B,
        max_tokens=max_tokens,
        length_coef=length_coef,
        length_decay=length_decay,
        length_threshold=length_threshold,
    )
  reward_B = (reward_B + length_B).astype(correct_B.dtype)
  if truncated == "bootstrap":
    reward_B = rewards.bootstrap_truncated(reward_B, truncated_B, groups_B)
  return reward_B


def targets(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    *,
    gamma: float,
    lam: float,
) -> tuple[Array, dict[str, Array]]:
  """What the critic shall learn, and how good it is so far.

  Args:
    rewards_BT: [B, T] float.
    values_BT: [B, T] float, V of the prefix before each token.
    mask_BT: [B, T] bool, response tokens.
    gamma: discount.
    lam: lambda of the targets; 1 is Monte Carlo.

  Returns:
    [B, T] returns, and metrics: the explained variance of the Monte-Carlo
    returns, and the mean value.
  """
  actual_BT = advantages.returns_to_go(rewards_BT, mask_BT, gamma=gamma)
  advantage_BT = advantages.gae(
      rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam
  )
  explained = values.explained_variance(values_BT, actual_BT, mask_BT)
  return values_BT + advantage_BT, {
      "critic/vf_explained_var": explained,
      "critic/values/mean": token_mean(values_BT, mask_BT),
  }


def assign(
    rows: dict[str, Array],
    *,
    advantage: Callable[..., Array],
    needs: tuple[str, ...],
    groups: str = "prompt",
    whitened: bool = False,
    gamma: float = 1.0,
    critic_lam: float = 1.0,
    fallback: bool = False,
    mixture: dict[str, float] | None = None,
    kl: str = "none",
    kl_in_reward: bool = False,
    top_entropy: float = 1.0,
    correction: Callable[..., Array] | None = None,
) -> dict[str, Any]:
  """Advantages, and the critic's targets, of all rows of a step.

  Args:
    rows: arrays by the names above, and rewards_B (of `outcome`), age_B (-1 for
      padding), ref_logps_BT, sampler_logps_BT, pretrained_BT, kl_coef.
    advantage: a function of `advantages`, its keywords bound.
    needs: names of its positional arguments.
    groups: 'prompt', 'type' or 'batch'.
    whitened: advantages get mean 0 and variance 1 over the tokens.
    gamma: discount.
    critic_lam: lambda of the critic's targets; 1 is Monte Carlo.
    fallback: EVPO (arXiv:2604.19485): where the critic explains nothing
      (explained variance <= 0), the batch mean is the baseline.
    mixture: keywords of `values.mixture`, or None.
    kl: estimator of the KL to the reference, or 'none'.
    kl_in_reward: it is subtracted from the rewards, times kl_coef.
    top_entropy: share of tokens that learn, the most undecided ones.
    correction: a function of `corrections`, its keywords bound, or None.

  Returns:
    a dict: rewards_B, advantages_BT, returns_BT (targets; zeros without a
    critic), and metrics: scalars by name.
  """
  mask_BT, valid_B = rows["mask_BT"], rows["age_B"] >= 0
  metrics = {}
  kl_BT = jnp.zeros_like(rows["logps_BT"])
  if kl != "none":
    kl_BT = losses.kl(rows["logps_BT"], rows["ref_logps_BT"], kind=kl)
    metrics["kl/reference"] = token_mean(kl_BT, mask_BT)
  coef = rows["kl_coef"] if kl_in_reward else 0.0
  rewards_BT = rewards.per_token(rows["rewards_B"], mask_BT, kl_BT, coef)
  rewards_B = rewards_BT.sum(1) if kl_in_reward else rows["rewards_B"]
  ids_B = {
      "prompt": rows["groups_B"],
      "type": jnp.where(valid_B, rows["types_B"], -1),
      "batch": jnp.where(valid_B, 0, -1),
  }[groups]
  rows = rows | dict(
      rewards_B=rewards_B,
      rewards_BT=rewards_BT,
      groups_B=ids_B,
      problems_B=jnp.where(valid_B, rows["problems_B"], -1),
      valid_B=valid_B,
  )

  returns_BT = jnp.zeros_like(rewards_BT)
  explained = None
  if "values_BT" in needs:
    values_BT = rows["values_BT"]
    # The critic learns towards targets of its own values; only the policy
    # sees the mixture.
    returns_BT, more = targets(
        rewards_BT, values_BT, mask_BT, gamma=gamma, lam=critic_lam
    )
    metrics |= more
    explained = more["critic/vf_explained_var"]
    if mixture is not None:
      values_BT = values.mixture(
          rows["pretrained_BT"],
          values_BT,
          rows["progress"],
          explained,
          **mixture,
      )
    rows |= dict(values_BT=values_BT)

  out = advantage(*(rows[name] for name in needs))
  out_BT = jnp.broadcast_to(out if out.ndim == 2 else out[:, None], kl_BT.shape)
  if fallback and explained is not None:
    mean_B = advantages.group_mean(rewards_B, jnp.where(valid_B, 0, -1))
    out_BT = jnp.where(explained > 0, out_BT, mean_B[:, None])
    metrics["critic/fallback"] = explained <= 0
  here_BT = mask_BT & valid_B[:, None]
  out_BT = jnp.where(here_BT, out_BT, 0)
  if whitened:
    out_BT = whiten(out_BT, here_BT)
  if top_entropy < 1:
    learns = corrections.top_share(rows["entropy_BT"], here_BT, top_entropy)
    out_BT = jnp.where(learns, out_BT, 0)
  if correction is not None:
    factor_BT = correction(rows["logps_BT"], rows["sampler_logps_BT"], here_BT)
    out_BT *= factor_BT
    metrics["rollout/correction_mean"] = token_mean(factor_BT, here_BT)
  return dict(
      rewards_B=rewards_B,
      advantages_BT=out_BT,
      returns_BT=returns_BT,
      metrics=metrics,
  )


def reward_and_assign(
    rows: dict[str, Any],
    *,
    reward: Callable[..., Array],
    score_weights: tuple[tuple[float, float], ...],
    advantage: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
  """Rewards of all rows of a step, then their advantages: one jit-ed program.

  Args:
    rows: the arrays that `assign` and `outcome` read; scores_NB, progress.
    reward: `outcome`, its keywords bound.
    score_weights: of each scorer, at the start and at the end of the run.
    advantage: `assign`, its keywords bound; or `monte_carlo`.
  """
  names = ("correct_B", "lengths_B", "truncated_B", "groups_B")
  rewards_B = reward(
      **{name: rows[name] for name in names},
      extra_B=rewards.weighted(
          rows["scores_NB"], score_weights, rows["progress"]
      ),
  )
  return advantage(rows | dict(rewards_B=rewards_B))


def monte_carlo(rows: dict[str, Any], *, gamma: float) -> dict[str, Any]:
  """Monte-Carlo returns for a critic; no advantages.

  Args:
    rows: rewards_B, mask_BT, values_BT.
    gamma: discount.

  Returns:
    as `assign`.
  """
  zeros_BT = jnp.zeros_like(rows["values_BT"])
  returns_BT, metrics = targets(
      rewards.per_token(rows["rewards_B"], rows["mask_BT"], zeros_BT, 0.0),
      rows["values_BT"],
      rows["mask_BT"],
      gamma=gamma,
      lam=1.0,
  )
  return dict(
      rewards_B=rows["rewards_B"],
      returns_BT=returns_BT,
      advantages_BT=zeros_BT,
      metrics=metrics,
  )
