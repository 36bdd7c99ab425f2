"""Held-out scores and costs of a run, read from its metrics.jsonl."""

import pathlib
from typing import NamedTuple

from rl_reason.base import json_files
from rl_reason.monitoring import alerts, run_log

VALIDATION = "validation"  # as `tasks.VALIDATION`: no score of a run
COSTS = {"tokens": "tokens/generated", "flops": "flops/total"}


class Score(NamedTuple):
  """A number of an evaluation."""

  value: float
  half: float | None = None  # half-width of its 95% interval
  share: bool = True  # a fraction of 1; otherwise a number of `unit`
  unit: str = "tokens"

  def text(self, plus_minus: str = " +- ") -> str:
    """Returns '83.5% +- 1.7'."""
    if self.unit == "reward":
      half = "" if self.half is None else f"{plus_minus}{self.half:.2g}"
      return f"{self.value:.4g}{half}"
    if not self.share:
      return f"{self.value:.1f}"
    if self.half is None:
      return f"{self.value:.1%}"
    return f"{self.value:.1%}{plus_minus}{self.half * 100:.1f}"


def of_stage(lines: list[dict], stage: str) -> list[dict]:
  """Returns the lines of one stage, in order."""
  return [line for line in lines if line["stage"] == stage]


def scores(line: dict) -> dict[str, Score]:
  """Returns an evaluation by short names: 'mean@4', 'greedy', 'difficulty 2'.

  The first of several data sets has these; 'aime25 mean@4' is of another one,
  and so is 'validation mean@4'.
  """
  out = {}
  sets = [x.split("/")[1] for x in line if x.startswith("val-core/")]
  held_out = [x for x in sets if not x.startswith(VALIDATION)]
  others = {x for x in sets if x not in held_out[:1]}
  for name, value in line.items():
    parts = name.split("/")
    # Intervals are read together with their mean.
    if value is None or parts[-1] == "ci95":
      continue
    prefix = f"{parts[1]} " if others & {*parts[1:2]} else ""
    if parts[0] == "val-core":
      half, measure = line.get(f"{name}/ci95"), parts[2]
      out[prefix + parts[-1]] = _score(measure, value, half)
    # Difficulties of games are measured in turns, too.
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
  """A score of accuracy, or of the reward where nothing verifies."""
  if measure == "reward":
    return Score(value, half, share=False, unit="reward")
  return Score(value, half)


def points(lines: list[dict], stage: str) -> list[dict]:
  """Returns the lines of a stage with the numbers that follow from them.

  Evaluations get their scores as 'mean@4' and 'mean@4/ci95'; RL steps get
  'train/mixed', the fraction of prompts with correct and incorrect responses.
  """
  out = []
  for line in of_stage(lines, stage):
    line = dict(line)
    for name, score in scores(line).items() if stage == "evaluate" else ():
      line |= {name: score.value, f"{name}/ci95": score.half}
    correct, incorrect = (
        line.get(f"train/all_{x}") for x in ("correct", "incorrect")
    )
    if stage == "rl" and correct is not None and incorrect is not None:
      line["train/mixed"] = json_files.number(1 - correct - incorrect)
    out.append(line)
  return out


def bands(
    points: list[dict], names: list[str], count: int
) -> tuple[list[dict], dict[str, list], dict[str, list]]:
  """At most `count` points: means over adjacent ones, and their ranges.

  Args:
    points: lines with numbers by name.
    names: of the numbers.
    count: of points that remain.

  Returns:
    the points, each with the step of its last line; the least and the greatest
    value of each name and point; {} where no point was merged.
  """
  if len(points) <= count:
    return points, {}, {}
  ends = [round(i * len(points) / count) for i in range(count + 1)]
  parts = [points[a:b] for a, b in zip(ends, ends[1:], strict=False)]
  out = [dict(step=part[-1]["step"]) for part in parts]
  low: dict[str, list] = {}
  high: dict[str, list] = {}
  for name in names:
    values = [
        [x[name] for x in part if x.get(name) is not None] for part in parts
    ]
    for line, found in zip(out, values, strict=True):
      mean = sum(found) / len(found) if found else None
      line[name] = None if mean is None else json_files.number(mean, 6)
    low[name], high[name] = (
        [json_files.number(f(found), 6) if found else None for found in values]
        for f in (min, max)
    )
  return out, low, high


def thin(items: list, count: int) -> list:
  """Returns at most `count` items, evenly spaced, both ends included."""
  last = len(items) - 1
  if last < count:
    return items
  return [items[round(i * last / (count - 1))] for i in range(count)]


def spent(lines: list[dict], kind: str) -> dict[int, float]:
  """Returns the cost of a run up to each RL step; {} if it was not logged.

  Step 0 may have a cost: value pretraining.

  Args:
    lines: lines of all stages.
    kind: key of COSTS.
  """
  rl = of_stage(lines, "rl")
  known = {
      x["step"]: x[COSTS[kind]]
      for x in [*rl, *of_stage(lines, "evaluate")]
      if x.get(COSTS[kind]) is not None
  }
  return {0: 0} | known if known or not rl else {}


def hours(lines: list[dict]) -> dict[tuple[str, int], float | None]:
  """Hours of RL steps and evaluations up to each of them, by stage and step."""
  total, out = 0.0, {}
  for x in lines:
    total += x.get("timing_s/step") or x.get("timing_s/testing") or 0
    out[x["stage"], x["step"]] = json_files.number(total / 3600, 6)
  return out


def headline(names) -> tuple[str, str]:
  """Returns, of names of scores, the mean@k and the pass@k of the largest k."""
  mean = [name for name in names if name.startswith("mean@")]
  best = [name for name in names if name.startswith("pass@")]
  best.sort(key=lambda name: int(name[5:]))
  return "".join(mean[:1]), "".join(best[-1:]) or "pass@k"


def before_after(lines: list[dict]) -> tuple[dict | None, dict | None]:
  """Returns the first and the last evaluation; None for one that is missing."""
  found = [x for x in of_stage(lines, "evaluate") if headline(scores(x))[0]]
  return found[0] if found else None, found[-1] if found[1:] else None


def difference(old: Score, new: Score) -> str:
  """Returns '+75.7 points' or '+3.0 tokens'."""
  change = new.value - old.value
  if old.share:
    return f"{change * 100:+.1f} points"
  if old.unit == "reward":
    return f"{change:+.4g}"
  return f"{change:+.1f} {old.unit}"


def exploration(old: Score | None, new: Score | None) -> str:
  """Returns what pass@k before and after RL says about exploration."""
  if old is None or new is None:
    return "exploration: unknown"
  change = new.value - old.value
  verdict = "exploration shrank" if change < 0 else "exploration did not shrink"
  if abs(change) <= ((old.half or 0) ** 2 + (new.half or 0) ** 2) ** 0.5:
    verdict = "no clear change of exploration"
  return f"{difference(old, new)}: {verdict}"


def warnings(lines: list[dict]) -> list[str]:
  """Returns the alerts of a run as lines."""
  return [f"warning: {line}" for line in alerts.of_run(lines)]


def summary(workdir: pathlib.Path) -> list[str]:
  """Returns the result of a run in a few lines of plain text."""
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
    return [*out, "evaluated once, hence no before and after"]
  out[0] += f" after {after['step']} steps"
  if verified:
    out[2] += f" ({exploration(old.get(best), new.get(best))})"
  return out + warnings(lines)
