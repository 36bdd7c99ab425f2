"""Metrics of an RL step: what is counted, logged and shown."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason.algorithms import schedules
from rl_reason.base.structs import Array, Batch, Experience
from rl_reason.monitoring import (
    doctor as doctor_lib,
    machine,
    metrics as metrics_lib,
)
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.signs import SIGN

# Metrics that mean nothing where nothing verifies responses.
OF_VERIFIER = (
    *("train/accuracy", "train/all_correct", "train/all_incorrect"),
    "critic/score/mean",
)


class StepLogger:
  """Logs an RL step while the device works on it.

  Metrics of the update are read when the next rollout is already on the device,
  so that the host never waits for an update.

  Args:
    log: where metrics go.
    display: the screen.
    clock: laps of the training loop.
    doctor: says what is wrong with a step.
    workdir: of the run.
  """

  def __init__(
      self,
      log: metrics_lib.Log,
      display: Display,
      clock: metrics_lib.Clock,
      doctor: doctor_lib.Doctor,
      workdir: pathlib.Path,
  ):
    self._log, self._display, self._clock = log, display, clock
    self._doctor = doctor
    self._goodput, self._energy = machine.Goodput(workdir), machine.Energy()
    self._pending: tuple | None = None
    self._flops: float | None = None  # total at the step before

  def dispatched(
      self, step: int, metrics: dict, actor: dict, critic: dict
  ) -> None:
    """Notes the metrics of a step whose update was dispatched.

    Args:
      step: RL steps that are done, this one included.
      metrics: on the host.
      actor: metrics of the policy's update, on the device.
      critic: metrics of the critic's update, on the device; {} without one.
    """
    self.flush()  # a step is never overwritten, whoever forgot to flush it
    self._pending = step, metrics, dict(actor=actor, critic=critic)

  def flush(self) -> None:
    """Waits for the pending step, and logs it."""
    if self._pending is None:
      return
    (step, metrics, device_metrics), self._pending = self._pending, None
    for prefix, values in jax.device_get(device_metrics).items():
      metrics |= {
          name if "/" in name else f"{prefix}/{name}": value
          for name, value in values.items()
      }
    self._clock.lap("update_actor")
    metrics |= times(self._clock.take())
    seconds = metrics["timing_s/step"]
    metrics["perf/throughput"] = metrics["tokens/step"] / seconds
    metrics["perf/memory_gib"] = machine.memory_gib()
    metrics["perf/goodput"] = self._goodput.add(seconds)
    flops, self._flops = self._flops, metrics["flops/total"]
    known = {
        "perf/host_memory_gib": machine.host_memory_gib(),
        "perf/energy_j": self._energy.joules(),
        "perf/mfu": None
        if flops is None
        else machine.utilization(metrics["flops/total"] - flops, seconds),
    }
    metrics |= {name: x for name, x in known.items() if x is not None}
    alarms = self._doctor.examine(step, metrics)
    logged = {
        name: value
        for name, value in metrics.items()
        if not name.startswith(SIGN)
    }
    self._log.metrics("rl", step, logged | alarms)
    shown = {}
    if "response_length/max" in metrics:  # there is a row to learn from
      shown["length"] = float(metrics["response_length/mean"])
    self._display.step(
        step,
        **_headline(metrics),
        **shown,
        tokens_s=f"{metrics['perf/throughput']:.0f}",
    )


def _headline(metrics: dict[str, Any]) -> dict[str, Any]:
  """What the screen shows first: accuracy, or the reward without a verifier."""
  if "train/accuracy" in metrics:
    return dict(accuracy=f"{metrics['train/accuracy']:.1%}")
  return dict(reward=float(metrics.get("critic/rewards/mean", np.nan)))


def times(seconds: dict[str, float]) -> dict[str, float]:
  """The laps of a step, their sum, and how long the device was idle."""
  out = {f"timing_s/{name}": value for name, value in seconds.items()}
  idle = seconds.get("score", 0) + seconds.get("host", 0)
  return out | {
      "timing_s/idle": idle,
      "timing_s/step": sum(seconds.values()),
  }


# --- counters ----------------------------------------------------------------


def no_counters() -> dict[str, float]:
  """The counters of a run that has not begun."""
  return dict(tokens=0, flops=0.0)


def totals(counters: dict[str, float]) -> dict[str, float]:
  """The counters under their names as metrics."""
  return {
      "tokens/generated": counters["tokens"],
      "flops/total": counters["flops"],
  }


class Counter(NamedTuple):
  """Counts generated tokens and analytic FLOPs; padding is left out.

  Attributes:
    flops_per_token: of one forward pass.
    passes: forward passes over a training batch; a backward pass counts as two.
    max_prompt: slots of a prompt.
    group_size: responses to a prompt.
  """

  flops_per_token: float
  passes: int
  max_prompt: int
  group_size: int

  def add(
      self,
      counters: dict[str, float],
      rows: Experience,
      generated: int,
      responses: int,
  ) -> dict[str, float]:
    """The counters after one more step.

    Args:
      counters: before the step.
      rows: of the training batch.
      generated: sampled tokens, those of discarded groups included.
      responses: sampled, those of discarded groups included.
    """
    length_B = self.max_prompt - rows.rollouts.start_B + rows.rollouts.lengths_B
    trained = int(length_B[rows.age_B >= 0].sum())
    prompts = responses * self.max_prompt // self.group_size
    tokens = generated + prompts + self.passes * trained
    flops = self.flops_per_token * tokens
    return dict(
        tokens=counters["tokens"] + generated, flops=counters["flops"] + flops
    )


def with_rate(
    update: Callable, *, lr: float, schedule: str, warmup: int, total: int
) -> Callable:
  """An update with the learning rate of its last step among its metrics.

  The rate is that of the updates that the optimizer has counted, which skipped
  ones are not; it stays on the device, as all metrics of an update. Keywords
  are those of the optimizer.
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)
  last = jax.jit(lambda made: rate(jnp.maximum(made - 1, 0)))

  def call(state, *args):
    state, metrics = update(state, *args)
    counts = optax.tree.get_all_with_path(state.opt_state, "count")
    return state, metrics | dict(lr=last(counts[-1][1]))

  call.lower = lambda *args: update.lower(*args)  # for --stage=size
  return call


# --- metrics of a batch ------------------------------------------------------


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
    on_policy: the update reports the gap between sampler and trainer itself.
    gamma: discount per token, of returns.
    verified: whether there is a verifier; without one nothing is correct.
    stale: whether batches are sampled ahead, see `rollout_metrics`.
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
      | counts["signs"]
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
    on_policy: the update reports the gap between sampler and trainer itself.
    stale: the gap is that of all rows, the age of their policy included; or
      else of the rows that this step sampled.
  """
  rollouts = rows.rollouts
  real_B = rows.age_B >= 0
  out = {
      "train/rows_kept": (rows.age_B > 0).sum(),
      "train/age_max": max(rows.age_B.max(), 0),
  }
  if not real_B.any():
    return out | {"response_length/mean": 0.0}
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
              f"reward/{term}", x_B[real_B & np.isfinite(x_B)], "mean", "std"
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
  if rows.turns is not None:
    turns_B = rows.turns.numbers_BT.max(1)[real_B]
    out |= statistics("environment/turns", turns_B)
  if not on_policy:
    measured_B = real_B if stale else rows.age_B == 0
    gap_BT = rollouts.logps_BT - rows.old_logps_BT
    gap = gap_BT[rollouts.mask_BT & measured_B[:, None]]
    out["rollout/logp_gap_max"] = np.abs(gap).max(initial=0)
    out["rollout/sampler_trainer_kl"] = gap.mean() if gap.size else 0
  return out


def credit_quality(
    rows: Experience,
    rewards_B: Array,
    batch: Batch,
    critic: Any,
    gamma: float,
) -> dict[str, float]:
  """How well advantages and values say what the rewards then were.

  The return of a token is the reward of its response, discounted by the tokens
  of the policy that follow it: observations of an environment do not count.

  Args:
    rows: of the batch.
    rewards_B: of each response.
    batch: with the advantages and values; its mask has the tokens that count.
    critic: None: there are no values.
    gamma: discount per token.

  Returns:
    the correlation of advantage and return over tokens, where both differ; and
    with a critic the mean of value minus return in each quarter of a response:
    `q1` are its first tokens.
  """
  row, slot = np.nonzero(batch.mask_BT)  # of each token
  at = rows.rollouts.mask_BT.cumsum(1)[row, slot] - 1  # among the policy's
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
  """Mean, maximum and minimum, or others; {} of nothing."""
  which = (which or ("mean", "max", "min")) if x.size else ()
  return {f"{name}/{part}": getattr(x, part)() for part in which}
