"""Health checks: whether a run learns, and what to change if it does not.

`HealthMonitor` checks the rules of `alerts.py` at every step of RL, says on the
screen when an alert begins and ends, and ends a run after too many consecutive
steps with an alert that has a limit. `check_run` refuses a run that learned
nothing or ended with a broken policy. `SkippedUpdates` does the same for SFT,
reward models and value pretraining.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base.errors import RunError
from rl_reason.base.json_files import number
from rl_reason.monitoring import alerts, bands, updates
from rl_reason.monitoring.alerts import BROKEN_POLICY, HEALTH, NO_UPDATE, Alert

FIRST = 3  # steps with a summary on the screen
RESOLVED = 5  # steps without an alert after which it is resolved
LIMITS = {  # field -> what RL did in the steps that the field limits
    "rl.max_steps_without_update": "made no useful update",
    "rl.max_steps_uncertified": "learned from another policy",
}


class StepLimit:
  """Ends a stage after too many consecutive steps that fail a check.

  Args:
    stage: as the user knows it.
    limit: number of consecutive steps that ends the stage; 0: never.
    field: of the config, which has the limit.
    did: what the stage did in these steps.

  Attributes:
    count: consecutive steps that failed so far.
  """

  def __init__(
      self,
      stage: str,
      limit: int,
      field: str = "rl.max_steps_without_update",
      did: str = LIMITS["rl.max_steps_without_update"],
  ):
    self.count = 0
    self._stage, self._limit = stage, limit
    self._field, self._did = field, did
    self._last = ""

  def add(self, passed: bool, last: str) -> None:
    """Counts a step, and whether it passed the check.

    `last` is the step with its batch and the cause, for the error.
    """
    self.count, self._last = (0 if passed else self.count + 1), last

  def enforce(self, flush: Callable[[], None]) -> None:
    """Ends the stage if the limit is reached; called between two steps.

    `flush` adds the step whose metrics are still on the device. It is called
    only if that step could reach the limit.

    Raises:
      RunError: the limit is reached.
    """
    if self._limit and self.count + 1 >= self._limit:
      flush()
    if self._limit and self.count >= self._limit:
      raise RunError(
          f"{self._field} = {self._limit}: {self._stage} {self._did} in"
          f" {self.count} consecutive steps. {self._last}. The state is saved:"
          " the same command resumes the run, another config needs another"
          " --workdir"
      )


# --- RL ----------------------------------------------------------------------


class HealthMonitor:
  """Checks the health of each RL step, and ends a run that is not healthy.

  Args:
    fields: the flat config.
    say: writes a line to the screen.
    before: the lines of metrics.jsonl of the steps before a resumed one.

  Attributes:
    limits: the limits of consecutive steps, by their fields.
  """

  def __init__(
      self,
      fields: dict[str, Any],
      say: Callable[[str], None],
      before: Callable[[], list[dict]] = list,
  ):
    self.limits = {
        field: StepLimit("RL", fields[field], field, did)
        for field, did in LIMITS.items()
    }
    self._fields, self._say, self._before = fields, say, before
    self._band = bands.Watch(fields, say)
    self._steps: deque[dict] = deque(maxlen=alerts.WINDOW)
    self._active: dict[str, int] = {}  # alert -> the last step that had it
    self._checked = 0
    self._entropies: deque[float] = deque(maxlen=alerts.START)
    self._means: list[float] = []  # first and highest mean entropy so far

  def check(self, step: int, metrics: dict[str, Any]) -> dict[str, int]:
    """Checks a step, and says which alerts begin and end.

    Args:
      step: RL steps that are done.
      metrics: of the step, including the metrics under `HEALTH`.

    Returns:
      the alerts of the step as metrics; {} of a healthy step.
    """
    if not self._steps and step > 1:  # of a resumed run
      for line in self._before():
        if line["stage"] == "rl":
          self._steps.append(self._with_start(line))
          self._count([x for x in alerts.RULES if x.metric in line], "")
    values = {
        k: x if isinstance(x, str) else number(x) for k, x in metrics.items()
    }
    self._steps.append(self._with_start(values))
    found = alerts.of_step(list(self._steps), self._fields)
    if self._band.band:
      self._band.check(self._steps[-1] | dict(stage="rl", step=step))
    self._checked += 1
    if self._checked <= FIRST:
      self._say(f"step {step}: {step_summary(self._steps[-1], self._fields)}")
    for rule, message in found:
      if rule.name not in self._active:
        self._say(f"warning: step {step}: {message}")
      self._active[rule.name] = step
    for name, last in list(self._active.items()):
      if step - last >= RESOLVED:
        self._say(f"step {step}: resolved since step {last + 1}: {name}")
        del self._active[name]
    ids = [metrics.get(f"{HEALTH}{name}_prompt") for name in ("first", "last")]
    self._count(
        [rule for rule, _ in found],
        f"Step {step}, prompts {ids[0]} to {ids[1]}: {causes(found)}",
    )
    return {rule.metric: 1 for rule, _ in found}

  def _with_start(self, line: dict[str, Any]) -> dict[str, Any]:
    """A line with the entropy from which a collapse counts, if it is known.

    It is the highest mean of the run so far, unless the entropy has exploded.
    """
    entropy = line.get("actor/entropy")
    if entropy is not None and line.get("actor/updates"):
      self._entropies.append(entropy)
      if len(self._entropies) == alerts.START:
        mean = sum(self._entropies) / alerts.START
        self._means = [*self._means[:1], max([mean, *self._means])]
    if not self._means:
      return line
    highest = min(self._means[-1], self._means[0] + alerts.EXPLODED)
    return line | {alerts.ENTROPY_START: highest}

  def _count(self, found: list[alerts.Rule], last: str) -> None:
    failed = {rule.limit for rule in found}
    for field, limit in self.limits.items():
      limit.add(field not in failed, last)

  def enforce(self, flush: Callable[[], None]) -> None:
    """`StepLimit.enforce` of all limits."""
    for limit in self.limits.values():
      limit.enforce(flush)


def causes(found: list[Alert]) -> str:
  """The alerts that explain why a step made no useful update, in one line."""
  texts = [message for rule, message in found if rule.name != NO_UPDATE]
  return "; ".join(texts[:3])  # the rules have causes before effects


def step_summary(x: dict[str, Any], fields: dict[str, Any]) -> str:
  """The health of a step in one line, whether or not there is an alert."""
  wanted = updates.per_step(fields)
  if fields["rollout.group_size"] == 1:
    groups = "groups of one response"
    if "train/all_correct" in x:
      groups += f", {x['train/all_correct']:.0%} correct"
  elif "train/no_signal" in x:
    groups = f"{1 - x['train/no_signal']:.0%} of the groups have signal"
  elif "train/all_correct" not in x:
    groups = "no group has a verdict"
  else:
    incorrect, correct = x["train/all_incorrect"], x["train/all_correct"]
    groups = (
        f"{1 - incorrect - correct:.0%} of the groups have signal"
        f" ({incorrect:.0%} all incorrect, {correct:.0%} all correct)"
    )
  return (
      f"{groups}{alerts.perhaps_right(x)};"
      f" {x[HEALTH + 'truncated']:.0%} of the responses truncated,"
      f" {x[HEALTH + 'no_answer']:.0%} without an answer; verifier and rewards"
      f" failed {x['train/verifier_failures']} times;"
      f" {updates.count(x, wanted).made} of {wanted} updates made"
  )


def summary(lines: list[dict], fields: dict[str, Any]) -> list[str]:
  """The updates of a whole run in one line; [] if it has no RL steps.

  `fields` are the flat config; {} if it is not known.
  """
  done = updates.of_run(lines, fields)
  if not done:
    return []
  made, skipped, empty, constant = map(sum, zip(*done, strict=True))
  idle = sum(not x.made for x in done)
  reasons = {"gradient not finite": skipped, "no token to learn from": empty}
  why = ", ".join(f"{n:,} {text}" for text, n in reasons.items() if n)
  zero = f", {constant:,} with a gradient of 0" if constant else ""
  return [
      f"updates of the policy: {made:,} made, {skipped + empty:,} skipped"
      f"{f' ({why})' if why else ''}{zero}; {idle:,} of {len(done):,} steps"
      " without an update"
  ]


def check_run(lines: list[dict], fields: dict[str, Any]) -> None:
  """Refuses a run whose RL learned nothing, or broke its policy.

  Raises:
    RunError: RL made no update at all, or its policy is broken at the end.
  """
  done = updates.of_run(lines, fields)
  if not done:
    return
  steps = [x for x in lines if x["stage"] == "rl"][-alerts.WINDOW :]
  found, at = alerts.of_step(steps, fields), f"Step {steps[-1]['step']}: "
  if not any(x.made for x in done):
    raise RunError(
        f"RL made no update in {len(done)} steps: the policy is the one that it"
        f" began with. {at}{causes(found)}"
    )
  held_out = [x for x in lines if x["stage"] == "evaluate"][-1:]
  broken = [at + text for rule, text in found if rule.name == BROKEN_POLICY]
  for metrics in held_out:
    broken += [text for _, text in alerts.of_evaluation(metrics, fields)]
  if broken:
    raise RunError(f"RL ended with a broken policy. {broken[0]}")


# --- SFT, reward models, value pretraining -----------------------------------


class SkippedUpdates:
  """Ends a stage other than RL whose updates are skipped.

  Args:
    stage: as the user knows it.
    fields: the flat config.
    rate: the field of its learning rate.
    limit: number of consecutive steps without an update that ends the stage; 0:
      never.
  """

  def __init__(self, stage: str, fields: dict, rate: str, limit: int):
    self._stage, self._fields, self._rate = stage, fields, rate
    self._limit, self._why = StepLimit(stage, limit), ""
    self.enforce = self._limit.enforce

  def add(self, step: int, made: bool, grad_norm: float) -> None:
    """Counts a step, by whether it made an update, and its gradient."""
    self._why = (
        "no token counts in any response: see loss.mask_truncated, and whether"
        " the rewards are finite"
        if np.isfinite(grad_norm)
        else "gradients are not finite: "
        + why_not_finite(self._fields, self._rate)
    )
    self._limit.add(made, f"Step {step}: {self._why}")

  def require_any(self, skipped: int, total: int) -> None:
    """Refuses a stage that ended without an update.

    Raises:
      RunError: all updates were skipped.
    """
    if total and skipped >= total:
      why = self._why or why_not_finite(self._fields, self._rate)
      raise RunError(
          f"{self._stage}: all {total:,} updates were skipped, nothing was"
          f" learned: {why}; then choose another --workdir"
      )


def why_not_finite(fields: dict[str, Any], rate: str) -> str:
  """The likely cause of a gradient that is not finite, and the remedy.

  `rate` is the field of the learning rate.
  """
  lr = f"{rate} (now {fields[rate]:g})"
  if fields["model.dtype"] == "float16":
    return (
        "float16 overflows beyond 65,504: set model.dtype = 'bfloat16' or"
        f" 'float32', and if that is not the cause lower {lr}"
    )
  return f"lower {lr}, set optimizer.clip_norm = 1.0"
