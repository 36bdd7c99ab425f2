"""Metrics of an RL step on the host: its responses, its batch, its credit."""

import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_reason.base.structs import NO_SCORE, Array, Batch, Experience, Rollouts
from rl_reason.monitoring.alerts import BROKEN, HEALTH
from rl_reason.monitoring.resources import Counter, totals

# Metrics that mean nothing without a verifier.
OF_VERIFIER = (
    *("train/accuracy", "train/all_correct", "train/all_incorrect"),
    "critic/score/mean",
)
SEARCHED = 64  # responses of a round that are searched, about
ENOUGH = 32  # tokens that can show that all tokens are equally probable


class ResponseStats:
  """Statistics of all responses that an RL step samples, even discarded ones.

  Args:
    answer: (text, row) -> the final answer of a response; '' if it has none.
    behaviours: regular expressions of the task, by name.
  """

  def __init__(
      self,
      answer: Callable[[str, Any], str],
      behaviours: Mapping[str, str] = types.MappingProxyType({}),
  ):
    self._answer = answer
    self._behaviours = {k: re.compile(x) for k, x in behaviours.items()}
    self.clear()

  def clear(self) -> None:
    """Begins the next step."""
    self._ids: list[int] = []
    self._total = self._finished = self._incorrect = 0
    self._asked = self._no_answer = self._broken = self._read = 0
    self._shown = dict.fromkeys(self._behaviours, 0)

  def add(self, rows: Experience, texts: list[str], rows_B: list) -> None:
    """Adds a round of graded responses, their texts, and rows of the task."""
    rollouts = rows.rollouts
    finished_B = ~rollouts.truncated_B
    incorrect = np.flatnonzero(finished_B & (rows.correct_B == 0))
    self._ids += [int(rollouts.ids_B[i]) for i in (0, -1)]
    self._broken += broken_responses(rollouts)
    self._total += len(texts)
    self._finished += int(finished_B.sum())
    self._incorrect += len(incorrect)
    # Evenly spaced responses stand for all, since extraction takes time.
    asked = incorrect[:: max(len(incorrect) // SEARCHED, 1)]
    self._asked += len(asked)
    self._no_answer += sum(not self._answer(texts[b], rows_B[b]) for b in asked)
    for text in texts[:: max(len(texts) // SEARCHED, 1)] if self._shown else ():
      self._read += 1
      for name, pattern in self._behaviours.items():
        self._shown[name] += sum(1 for _ in pattern.finditer(text))

  def metrics(self) -> dict[str, float]:
    """The statistics of the step; broken responses only if there are any."""
    share = self._no_answer / max(self._asked, 1)
    out: dict[str, float] = {
        HEALTH + "truncated": 1 - self._finished / max(self._total, 1),
        HEALTH + "no_answer": share * self._incorrect / max(self._finished, 1),
        HEALTH + "first_prompt": min(self._ids, default=-1),
        HEALTH + "last_prompt": max(self._ids, default=-1),
    }
    if self._broken:
      out[BROKEN] = self._broken / self._total
    for name, count in self._shown.items() if self._read else ():
      out[f"behaviour/{name}"] = count / self._read
    return out


def broken_responses(rollouts: Rollouts) -> int:
  """The number of responses that only a broken policy samples.

  A response is broken if a log-prob is not finite. All responses are broken if
  all their tokens have the same log-prob below 0: finite but huge parameters
  make all tokens equally probable. (If all log-probs are 0, the policy may have
  learned a task with one correct response.)
  """
  bad_BT = ~np.isfinite(rollouts.logps_BT) & rollouts.mask_BT
  logps = rollouts.logps_BT[rollouts.mask_BT & ~bad_BT]
  if logps.size >= ENOUGH and logps.max() < -0.1 and np.ptp(logps) < 1e-4:
    return len(bad_BT)
  return int(bad_BT.any(1).sum())


def step_metrics(
    state: Any,
    metrics: dict[str, Any],
    counts: dict[str, Any],
    rows: Experience,
    credit: dict[str, Any],
    batch: Batch,
    plan: Any,
    *,
    counter: Counter,
    terms: tuple[str, ...],
    on_policy: bool,
    gamma: float = 1.0,
    verified: bool = True,
    stale: bool = False,
    own: Callable[..., dict[str, float]] = lambda *_: {},
) -> tuple[dict[str, float], dict[str, Any]]:
  """The counters after a step, and its metrics on the host.

  Args:
    state: `rl_state.RLState` before the step.
    metrics: of `dynamic_sampling.fill_batch`.
    counts: of `RolloutCollector.counts`.
    rows: of the batch.
    credit: of `credit.assign`.
    batch: what the update reads.
    plan: its PackingPlan.
    counter: of tokens and FLOPs.
    terms: names of the functions and models of the reward.
    on_policy: the update itself reports the gap between sampler and trainer.
    gamma: discount per token, of returns.
    verified: whether there is a verifier.
    stale: whether batches are sampled ahead, see `rollout_metrics`.
    own: `own_metrics.OwnMetrics`; by default there are none.
  """
  generated = int(metrics["tokens/generated"])
  rounds = int(metrics["train/generation_rounds"])
  counters = counter.add(
      state.counters, rows, generated, rounds * state.collector.num_responses
  )
  filled_MARL = plan.packed_M.segments_RL > 0
  used_ARL = filled_MARL[filled_MARL.any((-2, -1))]
  metrics = (
      metrics
      | rollout_metrics(
          rows,
          credit["rewards_B"],
          batch,
          terms=terms,
          on_policy=on_policy,
          stale=stale,
      )
      | credit_quality(rows, credit["rewards_B"], batch, state.critic, gamma)
      | credit["metrics"]
      | totals(counters)
      | {f"coef/{name}": value for name, value in state.coefs.items()}
      | counts["functions"]
      | {
          "tokens/step": generated,
          "tokens/trained": int(filled_MARL.sum()),
          "perf/pack_fill": float(used_ARL.mean()) if used_ARL.size else 0.0,
      }
      | counts["failures"]
      | counts["responses"]
      | own(rows, credit, batch, state.step + 1)
  )
  if not verified:
    metrics = {k: x for k, x in metrics.items() if k not in OF_VERIFIER}
  return counters, metrics


def rollout_metrics(
    rows: Experience,
    rewards_B: Array,
    batch: Batch,
    *,
    terms: tuple[str, ...],
    on_policy: bool,
    stale: bool = False,
) -> dict[str, Any]:
  """Statistics of the rows of a training batch; padding is left out.

  Args:
    rows: of the batch.
    rewards_B: of each response.
    batch: with the advantages.
    terms: names of the functions and models of the reward.
    on_policy: the update itself reports the gap between sampler and trainer.
    stale: whether the gap includes the rows of older policies; else it is
      measured on the rows that this step sampled.
  """
  rollouts = rows.rollouts
  real_B = rows.age_B >= 0
  out = {
      "train/rows_kept": (rows.age_B > 0).sum(),
      "train/age_max": max(rows.age_B.max(), 0),
  }
  if not real_B.any():
    return out
  finite_B = real_B & np.isfinite(rewards_B)
  if not finite_B[real_B].all():
    out["train/rewards_not_finite"] = (real_B & ~finite_B).sum()
  advantages = batch.advantages_BT[batch.mask_BT]
  verified = rows.correct_B[real_B & (rows.correct_B >= 0)]
  scores = zip(terms, rows.scores_EB, strict=True)
  out |= {
      **statistics("critic/score", verified, "mean"),
      **statistics(
          "critic/rewards", rewards_B[finite_B], "mean", "max", "min", "std"
      ),
      **{
          name: value
          for term, x_B in scores
          for name, value in statistics(
              f"reward/{term}", _given(x_B[real_B]), "mean", "std"
          ).items()
      },
      "critic/advantages/mean": advantages.mean() if advantages.size else 0,
      **statistics("critic/advantages", advantages, "std"),
      "rollout/token_prob/mean": np.exp(
          rollouts.logps_BT[rollouts.mask_BT & real_B[:, None]]
      ).mean(),
      **statistics("response_length", rollouts.policy_lengths_B[real_B]),
      "response_length/clip_ratio": rollouts.truncated_B[real_B].mean(),
  }
  if rows.steps is not None:
    steps_B = rows.steps.ends_BT.sum(1)[real_B]
    out |= statistics("process/steps", steps_B, "mean", "min", "max")
  if not on_policy:
    measured_B = real_B if stale else rows.age_B == 0
    gap_BT = rollouts.logps_BT - rows.old_logps_BT
    gap = gap_BT[rollouts.mask_BT & measured_B[:, None]]
    out["rollout/logp_gap_max"] = np.abs(gap).max(initial=0)
    out["rollout/sampler_trainer_kl"] = gap.mean() if gap.size else 0
  return out


def _given(scores: np.ndarray) -> np.ndarray:
  """The scores that a function gave."""
  return scores[np.isfinite(scores) & (scores != NO_SCORE)]


def credit_quality(
    rows: Experience, rewards_B: Array, batch: Batch, critic: Any, gamma: float
) -> dict[str, float]:
  """How well advantages and values predict the rewards.

  The return of a token is the reward of its response, discounted by the number
  of policy tokens that follow; tokens that it did not choose do not count.

  Args:
    rows: of the batch.
    rewards_B: of each response.
    batch: with the advantages and values; its mask has the tokens that count.
    critic: None: there are no values.
    gamma: discount per token.

  Returns:
    the correlation of advantage and return over tokens, unless one is constant;
    with a critic also the mean of value minus return in each quarter of the
    responses, where `q1` is the first quarter.
  """
  row, slot = np.nonzero(batch.mask_BT)  # of each token
  at = rows.rollouts.mask_BT.cumsum(1)[row, slot] - 1  # policy tokens before
  length = rows.rollouts.policy_lengths_B[row]
  returns = np.asarray(rewards_B)[row]
  if gamma != 1:
    returns = returns * gamma ** (length - 1 - at)
  pair = np.stack([batch.advantages_BT[row, slot], returns], dtype=np.float64)
  out = {}
  if row.size and (np.ptp(pair, axis=1) > 0).all():
    out["critic/advantage_return_corr"] = np.asarray(np.corrcoef(pair))[0, 1]
  if critic is not None:
    bias, quarter = batch.values_BT[row, slot] - returns, 4 * at // length
    for q in np.unique(quarter):
      out[f"critic/value_bias/q{q + 1}"] = bias[quarter == q].mean()
  return out


def statistics(name: str, x: np.ndarray, *which: str) -> dict[str, Any]:
  """Mean, maximum and minimum, or `which` of them; {} of an empty array."""
  which = (which or ("mean", "max", "min")) if x.size else ()
  return {f"{name}/{part}": getattr(x, part)() for part in which}
