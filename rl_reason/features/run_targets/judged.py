"""Whether a run met its targets, by the lines of its metrics.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LAST = 10  # steps at the end of a run that decide


class _Target(NamedTuple):
  """A number that a run should keep to: a metric and the side of its bound."""

  words: str
  metric: str
  least: bool = False  # the bound is the least value, not the largest


_TARGETS = {
    "log.targets.kl": _Target(
        "KL from the old policy to the new one", "actor/kl_old_new"
    ),
    "log.targets.entropy": _Target("entropy", "actor/entropy", least=True),
    "log.targets.grad_norm": _Target("norm of the gradient", "actor/grad_norm"),
}


def sentences(
    lines: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]
) -> list[str]:
  """A sentence for each target that is set.

  A target is met if the mean of its metric over the last `LAST` RL steps keeps
  to the bound. A value that is not finite (null in the log) is in no mean, and
  its step has not kept to the bound.

  Args:
    lines: of metrics.jsonl.
    fields: flat config; a run of an earlier version has no targets.
  """
  return [
      _sentence(target, bound, [x for x in lines if x.get("stage") == "rl"])
      for field, target in _TARGETS.items()
      if (bound := fields.get(field))
  ]


def _sentence(
    target: _Target, bound: float, steps: Sequence[Mapping[str, Any]]
) -> str:
  values = [x[target.metric] for x in steps if target.metric in x]
  side = "least" if target.least else "most"
  what = f"{target.words} ({target.metric}) at {side} {bound:g}"
  known = [x for x in values[-LAST:] if x is not None]
  if not known:
    return f"Target not measured: {what}."
  mean = sum(known) / len(known)

  def kept(value: float | None) -> bool:
    if value is None:
      return False
    return value >= bound if target.least else value <= bound

  return (
      f"Target {'met' if kept(mean) else 'missed'}: {what}. It is {mean:.3g} in"
      f" the mean of the last {len(values[-LAST:])} steps, and kept to the"
      f" target in {sum(map(kept, values))} of {len(values)} steps."
  )
