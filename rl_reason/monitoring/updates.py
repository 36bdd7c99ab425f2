"""Updates of RL: counted, and required.

A step without an update leaves the parameters as they were. `Streak` ends a
stage with too many such steps in a row. Why there was no update is what
`doctor.py` says; those of other stages are in `skips.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rl_reason.base.errors import RunError


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
  """The updates of each RL step; {} if the fields are not known."""
  steps = [x for x in lines if x["stage"] == "rl" and "actor/updates" in x]
  wanted = per_step(fields) if fields else 0
  return [count(x, wanted) for x in steps]


def per_step(fields: dict[str, Any]) -> int:
  """Optimizer steps of an RL step."""
  return fields["updates.minibatches"] * fields["updates.epochs"]


class Streak:
  """Counts steps in a row without an update; ends a stage that has too many.

  Args:
    stage: as the user knows it.
    limit: steps in a row that are too many; 0: never.
    field: of the config, which has the limit.
    did: what the stage did in these steps.
  """

  def __init__(
      self,
      stage: str,
      limit: int,
      field: str = "rl.max_steps_without_update",
      did: str = "made no update of worth",
  ):
    self.count = 0
    self._stage, self._limit = stage, limit
    self._field, self._did = field, did
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
          f"{self._field} = {self._limit}: {self._stage} {self._did} in"
          f" {self.count} steps in a row. {self._last}. The state is saved: the"
          " same command resumes the run, another config needs another"
          " --workdir"
      )
