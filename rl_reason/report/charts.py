"""The charts of a run: the curves of charts.toml, read from metrics.jsonl."""

import pathlib
import tomllib
from typing import Any

from rl_reason import features
from rl_reason.base import feature, json_files
from rl_reason.report.scores import (
    VALIDATION,
    by_set,
    headline,
    of_stage,
    scores,
)

# Those of the core, and of each feature that has some.
CHARTS: list[dict[str, Any]] = [
    chart
    for path in (
        pathlib.Path(__file__).with_suffix(".toml"),
        *features.files("charts.toml"),
    )
    for chart in tomllib.loads(path.read_text("utf-8"))["chart"]
]
BEHAVIOUR = "behaviour/"  # prefix of metrics
BEHAVIOURS: dict[str, Any] = dict(
    title="Behaviours",
    about="Matches of the task's patterns in sampled responses.",
    unit="per response",
)
# Prefixes of metrics of functions of the user -> about their charts.
OWN = {
    "loss/": "A term of the loss of your own, before its coefficient.",
    "own/": "A metric of your own.",
}
MAX_POINTS = 400  # of a curve
COSTS = {"tokens": "tokens/generated", "flops": "flops/total"}


def charts_of(
    lines: list[dict], count: int = MAX_POINTS
) -> tuple[dict[str, Any], list[dict]]:
  """The curves of a run as columns.

  Args:
    lines: of metrics.jsonl.
    count: points of a curve.

  Returns:
    axes {name: {'step': [...], 'tokens': [...], 'flops': [...], 'hours':
    [...]}}, and the charts that have numbers. Each series has a label, a name,
    an axis (its name), y, and optionally half, low and high.
  """
  by_stage = {
      stage: points(lines, stage) for stage in ("rl", "evaluate", "value")
  }
  for stage in ("sft", "habits", *feature.stages()):
    loss = f"{stage if stage != 'habits' else 'sft'}/loss"
    by_stage[stage] = [x for x in of_stage(lines, stage) if loss in x]
  words, known_charts, sources = _sources(lines, by_stage)

  # Long curves become means over adjacent steps, with bands.
  low: dict[str, dict] = {}
  high: dict[str, dict] = {}
  for stage, rows in by_stage.items():
    wanted = [
        name
        for source in sum(sources, [])
        for axis, _, name in [source.partition(" ")]
        if axis == stage
    ]
    wanted += [f"{name}/ci95" for name in wanted] if stage == "evaluate" else []
    by_stage[stage], low[stage], high[stage] = bands(rows, wanted, count)

  out = []
  for chart, named in zip(known_charts, sources, strict=True):
    # A curve that was not logged is left out and keeps its color: pages of two
    # runs stay comparable.
    series = []
    for color, (label, source) in enumerate(
        zip(chart["series"], named, strict=True)
    ):
      axis, _, name = source.partition(" ")
      y = [x.get(name) for x in by_stage[axis]]
      half = [x.get(f"{name}/ci95") for x in by_stage[axis]]
      label = label.format(**words)
      one = dict(label=label, name=name, axis=axis, color=color, y=y)
      if any(x is not None for x in half):
        one["half"] = half
      if low[axis].get(name) and not chart.get("stack"):
        one |= dict(low=low[axis][name], high=high[axis][name])
      if any(x is not None for x in y):
        series.append(one)
    if series:
      about = chart["about"].format(**words)
      percent = chart["unit"].startswith("%")
      out.append(chart | dict(about=about, percent=percent, series=series))
  return _axes(lines, by_stage), out


def _sources(
    lines: list[dict], by_stage: dict[str, list[dict]]
) -> tuple[dict[str, str], list[dict[str, Any]], list[list[str]]]:
  """The words of a run, its charts, and the sources of the series of each.

  A source is "stage metric". The task defines the behaviours.
  """
  shown = {k for x in by_stage["rl"] for k in x if k.startswith(BEHAVIOUR)}
  patterns = {k.removeprefix(BEHAVIOUR): f"rl {k}" for k in sorted(shown)}
  known = [*CHARTS, *([BEHAVIOURS | dict(series=patterns)] if shown else [])]
  for prefix, about in OWN.items():
    for name in sorted({k for x in by_stage["rl"] for k in x}):
      if name.startswith(prefix):
        plain = name.replace("{", "{{").replace("}", "}}")
        title = name.removeprefix(prefix).removesuffix("/mean")
        one = dict(title=title, about=about, unit="per step")
        known.append(one | dict(series={"training": f"rl {plain}"}))
  names = dict.fromkeys(k for x in by_stage["evaluate"] for k in scores(x))
  mean, best = headline(names)
  maj = "".join([name for name in names if name.startswith("maj@")][:1])
  words = dict(mean=mean, best=best, maj=maj, totals=_time_totals(lines))
  chosen = any(f"{VALIDATION} {mean}" in x for x in by_stage["evaluate"])
  words["of"] = f"{VALIDATION} " * chosen
  sources = [
      [source.format(**words) for source in chart["series"].values()]
      for chart in known
  ]
  return words, known, sources


def _axes(
    lines: list[dict], by_stage: dict[str, list[dict]]
) -> dict[str, dict[str, list]]:
  """The steps of each stage, and the cost of the run up to each."""
  axes: dict[str, dict[str, list]] = {
      k: {"step": [x["step"] for x in v]} for k, v in by_stage.items()
  }
  for kind, key in COSTS.items():
    known = spent(lines, kind)
    for name in ("rl", "evaluate"):
      axes[name][kind] = [known.get(x) for x in axes[name]["step"]]
    axes["value"][kind] = [x.get(key) for x in by_stage["value"]]
  until = hours(lines)
  for name in ("rl", "evaluate", "value"):
    axes[name]["hours"] = [until.get((name, x)) for x in axes[name]["step"]]
  if axes["sft"]["step"]:  # the habits follow SFT
    last = axes["sft"]["step"][-1]
    axes["habits"]["step"] = [last + x for x in axes["habits"]["step"]]
  return axes


def _time_totals(lines: list[dict]) -> str:
  """One sentence about how the time of RL was spent."""
  (chart,) = (x for x in CHARTS if x.get("cap"))
  sums = {
      label: sum(x.get(name) or 0 for x in of_stage(lines, "rl"))
      for label, name in {
          **{k: v.removeprefix("rl ") for k, v in chart["series"].items()},
          **{"total": "timing_s/step", "idle": "timing_s/idle"},
      }.items()
  }
  total, idle = sums.pop("total"), sums.pop("idle")
  if not total:
    return ""
  shares = ", ".join(f"{label} {x / total:.0%}" for label, x in sums.items())
  return (
      f"In total {total:.0f} s: {shares}. The device was idle for"
      f" {idle / total:.0%}, waiting for verification and the host."
  )


def points(lines: list[dict], stage: str) -> list[dict]:
  """The lines of a stage with derived numbers.

  Evaluations get their scores as 'mean@4' and 'mean@4/ci95', and with several
  validation sets their mean as 'validation mean@4'; RL steps get 'train/mixed',
  the fraction of prompts with correct and incorrect responses.
  """
  out = []
  for line in of_stage(lines, stage):
    line = dict(line)
    for name, score in scores(line).items() if stage == "evaluate" else ():
      line |= {name: score.value, f"{name}/ci95": score.half}
    if stage == "evaluate":
      line = _mean_of_validation(line) | line
    correct, incorrect = (
        line.get(f"train/all_{x}") for x in ("correct", "incorrect")
    )
    if stage == "rl" and correct is not None and incorrect is not None:
      line["train/mixed"] = json_files.number(1 - correct - incorrect)
    out.append(line)
  return out


def _mean_of_validation(line: dict) -> dict[str, float]:
  """Scores of all validation sets as one, the mean over the sets."""
  sets = [x for k, x in by_set(line).items() if k.startswith(VALIDATION)]
  return {
      f"{VALIDATION} {name}": sum(x[name].value for x in sets) / len(sets)
      for name in (sets[0] if sets else ())
      if all(name in x for x in sets)
  }


def bands(
    points: list[dict], names: list[str], count: int
) -> tuple[list[dict], dict[str, list], dict[str, list]]:
  """At most `count` points, means over adjacent points, with their ranges.

  Returns:
    the points, each with the step of its last line; the minimum and the maximum
    of each name and point, {} if no points were merged.
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
  """At most `count` items, evenly spaced, both ends included."""
  last = len(items) - 1
  if last < count:
    return items
  return [items[round(i * last / (count - 1))] for i in range(count)]


def spent(lines: list[dict], kind: str) -> dict[int, float]:
  """The cost of a run up to each RL step; {} if it was not logged.

  Value pretraining is the cost of step 0.

  Args:
    lines: of all stages.
    kind: a key of COSTS.
  """
  rl = of_stage(lines, "rl")
  known = {
      x["step"]: x[COSTS[kind]]
      for x in [*rl, *of_stage(lines, "evaluate")]
      if x.get(COSTS[kind]) is not None
  }
  return {0: 0} | known if known or not rl else {}


def hours(lines: list[dict]) -> dict[tuple[str, int], float | None]:
  """Hours of RL steps and evaluations so far, by stage and step."""
  total, out = 0.0, {}
  for x in lines:
    total += x.get("timing_s/step") or x.get("timing_s/testing") or 0
    out[x["stage"], x["step"]] = json_files.number(total / 3600, 6)
  return out
