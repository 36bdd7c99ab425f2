"""Skipped updates of SFT, reward models and value pretraining.

A stage that made no update at all, or none in many steps in a row, is an error.
"""

from typing import Any

import numpy as np

from rl_reason.base.errors import RunError
from rl_reason.monitoring.updates import Streak


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
