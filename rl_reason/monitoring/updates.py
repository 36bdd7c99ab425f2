"""Optimizer steps of RL, counted in the lines of metrics.jsonl.

A step without an update leaves the parameters as they were. `alerts.py` names
the reason, and `health.py` ends a run with too many such steps.
"""

from typing import Any, NamedTuple


class Updates(NamedTuple):
  """The optimizer steps of one RL step.

  Attributes:
    made: with a gradient that is finite and not 0.
    not_finite: skipped, because a gradient was not finite.
    empty: skipped, because no token had weight in the loss.
    constant: with a gradient of exactly 0, since there was nothing to learn.
  """

  made: int
  not_finite: int
  empty: int
  constant: int


def count(x: dict, per_step: int) -> Updates:
  """Counts the optimizer steps of the policy in a line of metrics.

  Args:
    x: a line of metrics.jsonl; None stands for a number that is not finite.
    per_step: minibatches of all epochs; 0 if unknown.
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
  """The updates of each RL step; `fields` is {} if the config is unknown."""
  steps = [x for x in lines if x["stage"] == "rl" and "actor/updates" in x]
  wanted = per_step(fields) if fields else 0
  return [count(x, wanted) for x in steps]


def per_step(fields: dict[str, Any]) -> int:
  """Optimizer steps of an RL step."""
  return fields["updates.minibatches"] * fields["updates.epochs"]
