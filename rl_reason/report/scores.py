"""Held-out scores of a run, read from its metrics.jsonl."""

import pathlib
from typing import NamedTuple

from rl_reason.monitoring import alerts, run_log

VALIDATION = "validation"  # as `tasks.VALIDATION`: no score of a run


class Score(NamedTuple):
  """A number of an evaluation."""

  value: float
  half: float | None = None  # half-width of its 95% interval
  share: bool = True  # a fraction of 1; otherwise a number of `unit`
  unit: str = "tokens"

  def text(self, plus_minus: str = " +- ") -> str:
    """For instance '83.5% +- 1.7'."""
    if self.unit == "reward":
      half = "" if self.half is None else f"{plus_minus}{self.half:.2g}"
      return f"{self.value:.4g}{half}"
    if not self.share:
      return f"{self.value:.1f}"
    if self.half is None:
      return f"{self.value:.1%}"
    return f"{self.value:.1%}{plus_minus}{self.half * 100:.1f}"


def of_stage(lines: list[dict], stage: str) -> list[dict]:
  """The lines of one stage, in order."""
  return [line for line in lines if line["stage"] == stage]


def scores(line: dict) -> dict[str, Score]:
  """The scores of an evaluation: 'mean@4', 'greedy', 'difficulty 2'.

  These are the names for the first data set. Names for other data sets have a
  prefix, as in 'aime25 mean@4' and 'validation mean@4'.
  """
  out = {}
  sets = [x.split("/")[1] for x in line if x.startswith("val-core/")]
  held_out = [x for x in sets if not x.startswith(VALIDATION)]
  others = {x for x in sets if x not in held_out[:1]}
  for name, value in line.items():
    parts = name.split("/")
    # An interval is read together with its mean.
    if value is None or parts[-1] == "ci95":
      continue
    prefix = f"{parts[1]} " if others & {*parts[1:2]} else ""
    if parts[0] == "val-core":
      half, measure = line.get(f"{name}/ci95"), parts[2]
      out[prefix + parts[-1]] = _score(measure, value, half)
    # Difficulties of games are also measured in turns.
    elif "/difficulty_" in name:
      level = parts[-3].replace("_", " ")
      if parts[-2] == "turns":
        out[f"{prefix}{level}, turns"] = Score(value, None, False, "turns")
      else:
        out[prefix + level] = _score(parts[-2], value)
    elif name == "val-aux/turns/mean":
      out["turns"] = Score(value, None, False, "turns")
    elif name == "val-aux/returns/mean":
      out["sum of rewards"] = Score(value, share=False, unit="reward")
    elif name == "val-aux/response_length/mean":
      out["response length"] = Score(value, share=False)
    elif name == "val-aux/response_length/clip_ratio":
      out["truncated"] = Score(value)
  return out


def _score(measure: str, value: float, half: float | None = None) -> Score:
  """A score of accuracy, or of the reward without a verifier."""
  if measure == "reward":
    return Score(value, half, share=False, unit="reward")
  return Score(value, half)


def headline(names) -> tuple[str, str]:
  """The mean@k, and the pass@k of the largest k, among names of scores."""
  mean = [name for name in names if name.startswith("mean@")]
  best = [name for name in names if name.startswith("pass@")]
  best.sort(key=lambda name: int(name[5:]))
  return "".join(mean[:1]), "".join(best[-1:]) or "pass@k"


def before_after(lines: list[dict]) -> tuple[dict | None, dict | None]:
  """The first and the last evaluation; None if there is none."""
  found = [x for x in of_stage(lines, "evaluate") if headline(scores(x))[0]]
  return found[0] if found else None, found[-1] if found[1:] else None


def difference(old: Score, new: Score) -> str:
  """For instance '+75.7 points' or '+3.0 tokens'."""
  change = new.value - old.value
  if old.share:
    return f"{change * 100:+.1f} points"
  if old.unit == "reward":
    return f"{change:+.4g}"
  return f"{change:+.1f} {old.unit}"


def exploration(old: Score | None, new: Score | None) -> str:
  """What pass@k before and after RL shows about exploration."""
  if old is None or new is None:
    return "exploration: unknown"
  change = new.value - old.value
  found = "exploration shrank" if change < 0 else "exploration did not shrink"
  if abs(change) <= ((old.half or 0) ** 2 + (new.half or 0) ** 2) ** 0.5:
    found = "no clear change of exploration"
  return f"{difference(old, new)}: {found}"


def warnings(lines: list[dict]) -> list[str]:
  """The alerts of a run, one line each."""
  return [f"warning: {line}" for line in alerts.of_run(lines)]


def summary(workdir: pathlib.Path) -> list[str]:
  """The result of a run in a few lines of plain text."""
  lines = run_log.read_metrics(workdir)
  before, after = before_after(lines)
  if before is None:
    return ["held-out accuracy: no evaluation yet, nothing to report"]
  old, new = scores(before), scores(after or {})
  mean, best = headline(old)

  def change(name):
    sides = [old, new] if after else [old]
    return " -> ".join(
        x[name].text() if name in x else "unknown" for x in sides
    )

  verified = old[mean].unit != "reward"
  out = [
      f"held-out {'accuracy' if verified else 'reward'} ({mean}, 95%"
      f" intervals): {change(mean)}",
      f"greedy: {change('greedy')}",
      *([f"{best}: {change(best)}"] if verified else []),
      f"response length in tokens: {change('response length')}",
      *([f"turns: {change('turns')}"] if "turns" in old else []),
  ]
  if after is None:
    out[0] += f" at step {before['step']}"
    return [*out, "evaluated only once: there is no comparison"]
  out[0] += f" after {after['step']} steps"
  if verified:
    out[2] += f" ({exploration(old.get(best), new.get(best))})"
  return out + warnings(lines)
