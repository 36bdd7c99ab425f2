"""Updates of a stage: counted, and required.

A step without an update leaves the parameters as they were. `Streak` ends a
stage with too many such steps in a row; a stage, and a run, that made no update
at all is an error. Why there was none is what `doctor.py` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rl_reason.structs import RunError


class Updates(NamedTuple):
  """The optimizer steps of one RL step.

  Attributes:
    made: with a gradient that is finite and not 0.
    not_finite: skipped, because a gradient was not finite.
    empty: skipped, because no token counted.
    constant: with a gradient of exactly 0: there was nothing to learn.
  """

  made: int
  not_finite: int
  empty: int
  constant: int


def count(x: dict, per_step: int) -> Updates:
  """Counts the optimizer steps of the policy in a line of metrics.

  Args:
    x: a line of metrics.jsonl: None stands for a number that is not finite.
    per_step: minibatches of all epochs; 0 if that is not known.
  """
  with_tokens = int(x["actor/updates"] or 0)
  skipped = int(x["actor/update_skipped"] or 0)
  not_finite = constant = 0
  norm = x["actor/grad_norm"]  # the mean over minibatches
  if norm is None:
    without = max(per_step - with_tokens, 0)
    not_finite = min(max(skipped - without, 1), max(with_tokens, 1))
  elif not norm:
    constant = with_tokens
  made = max(with_tokens - not_finite - constant, 0)
  return Updates(made, not_finite, max(skipped - not_finite, 0), constant)


def of_run(lines: list[dict], fields: dict[str, Any]) -> list[Updates]:
  """The updates of each RL step; arguments as of `summary`."""
  steps = [x for x in lines if x["stage"] == "rl" and "actor/updates" in x]
  wanted = per_step(fields) if fields else 0
  return [count(x, wanted) for x in steps]


def per_step(fields: dict[str, Any]) -> int:
  """Optimizer steps of an RL step."""
  return fields["updates.minibatches"] * fields["updates.epochs"]


def summary(lines: list[dict], fields: dict[str, Any]) -> list[str]:
  """The updates of a whole run in one line; [] if it has no RL steps.

  Args:
    lines: of metrics.jsonl.
    fields: the flat config; {} if it is not known.
  """
  done = of_run(lines, fields)
  if not done:
    return []
  made, skipped, empty, constant = map(sum, zip(*done, strict=True))
  idle = sum(not x.made for x in done)
  reasons = {
      "gradient not finite": skipped,
      "no token to learn from": empty,
  }
  why = ", ".join(f"{n:,} {text}" for text, n in reasons.items() if n)
  zero = f", {constant:,} with a gradient of 0" if constant else ""
  return [
      f"updates of the policy: {made:,} made, {skipped + empty:,} skipped"
      f"{f' ({why})' if why else ''}{zero}; {idle:,} of {len(done):,} steps"
      " without an update"
  ]


def why_not_finite(fields: dict[str, Any], rate: str) -> str:
  """The likely cause of a gradient that is not finite, and the remedy.

  Args:
    fields: the flat config.
    rate: the field of the learning rate.
  """
  lr = f"{rate} (now {fields[rate]:g})"
  if fields["model.dtype"] == "float16":
    return (
        "float16 overflows beyond 65,504: set model.dtype = 'bfloat16' or"
        f" 'float32', and if that is not the cause lower {lr}"
    )
  return f"lower {lr}, set optimizer.clip_norm = 1.0"


class Streak:
  """Counts steps in a row without an update; ends a stage that has too many.

  Args:
    stage: as the user knows it.
    limit: steps in a row that are too many; 0: never.
  """

  def __init__(self, stage: str, limit: int):
    self.count = 0
    self._stage, self._limit = stage, limit
    self._last = ""

  def add(self, made: bool, last: str) -> None:
    """Counts a step.

    Args:
      made: whether it made an update, and one that leaves a policy of use.
      last: the step with its batch, and the cause, should it be the last.
    """
    self.count, self._last = (0 if made else self.count + 1), last

  def check(self, flush: Callable[[], None]) -> None:
    """Call it between two steps.

    Args:
      flush: adds the step whose metrics are still on the device; it is called
        only if that step could be one too many.

    Raises:
      RunError: there were too many.
    """
    if self._limit and self.count + 1 >= self._limit:
      flush()
    if self._limit and self.count >= self._limit:
      raise RunError(
          f"rl.max_steps_without_update = {self._limit}: {self._stage} made no"
          f" update of worth in {self.count} steps in a row. {self._last}. The"
          " state is saved: the same command resumes the run, another config"
          " needs another --workdir"
      )


class Skips:
  """Ends a supervised stage, or that of a critic, whose updates are skipped.

  Args:
    stage: as the user knows it.
    fields: the flat config.
    rate: the field of its learning rate.
    limit: steps in a row without an update that are too many; 0: never.
  """

  def __init__(self, stage: str, fields: dict, rate: str, limit: int):
    self._stage, self._fields, self._rate = stage, fields, rate
    self._streak, self._why = Streak(stage, limit), ""
    self.check = self._streak.check

  def add(self, step: int, made: bool, grad_norm: float) -> None:
    """Counts a step, by whether it made an update, and its gradient."""
    self._why = (
        "no token counts in any response: see loss.mask_truncated, and whether"
        " the rewards are finite"
        if np.isfinite(grad_norm)
        else "gradients are not finite: "
        + why_not_finite(self._fields, self._rate)
    )
    self._streak.add(made, f"Step {step}: {self._why}")

  def require_any(self, skipped: int, updates: int) -> None:
    """Refuses a stage that ended without an update.

    Args:
      skipped: how many updates were skipped.
      updates: of the stage so far.

    Raises:
      RunError: all of them.
    """
    if updates and skipped >= updates:
      why = self._why or why_not_finite(self._fields, self._rate)
      raise RunError(
          f"{self._stage}: all {updates:,} updates were skipped, nothing was"
          f" learned: {why}; then choose another --workdir"
      )
