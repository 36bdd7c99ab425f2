"""The verdict on a run at its end: updates made and skipped, worth or not."""

from typing import Any

from rl_reason.base.errors import RunError
from rl_reason.monitoring import doctor, signs, updates
from rl_reason.monitoring.doctor import BROKEN_POLICY
from rl_reason.monitoring.signs import BROKEN_HELD_OUT


def summary(lines: list[dict], fields: dict[str, Any]) -> list[str]:
  """The updates of a whole run in one line; [] if it has no RL steps.

  Args:
    lines: of metrics.jsonl.
    fields: the flat config; {} if it is not known.
  """
  done = updates.of_run(lines, fields)
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


def of_run(lines: list[dict], fields: dict[str, Any]) -> None:
  """Refuses a run whose RL is worth nothing.

  Args:
    lines: of metrics.jsonl.
    fields: the flat config.

  Raises:
    RunError: it made no update at all, or its policy is broken at the end.
  """
  done = updates.of_run(lines, fields)
  if not done:
    return
  steps = [x for x in lines if x["stage"] == "rl"][-signs.WINDOW :]
  found, at = signs.found(steps, fields), f"Step {steps[-1]['step']}: "
  if not any(x.made for x in done):
    raise RunError(
        f"RL made no update in {len(done)} steps: the policy is the one that it"
        f" began with. {at}{doctor.causes(found)}"
    )
  held_out = [x for x in lines if x["stage"] == "evaluate"][-1:]
  broken_now = [at + text for x, text in found if x.name == BROKEN_POLICY]
  said = [y for x in held_out for y in of_evaluation(x, fields)]
  for text in [*broken_now, *said]:
    raise RunError(f"RL ended with a broken policy. {text}")


def of_evaluation(values: dict, fields: dict[str, Any]) -> list[str]:
  """What an evaluation says of a broken policy; [] of a sound one."""
  if BROKEN_HELD_OUT not in values:
    return []
  return [
      x.text(seen, fields)
      for x in signs.TABLE
      if x.name == BROKEN_POLICY and (seen := x.seen([values], fields))
  ]
