"""One page that compares the scores, curves and configs of several runs."""

import os
import pathlib
from typing import Any

from rl_reason.base import json_files
from rl_reason.monitoring import run_log
from rl_reason.report import paired, rendering, scores as scores_lib
from rl_reason.report.charts import COSTS, charts_of, hours, spent
from rl_reason.report.scores import scores

POINTS = 1600  # of a curve, over all runs


def write(workdirs: list[pathlib.Path]) -> pathlib.Path:
  """Writes compare.html into the first of the work directories.

  Args:
    workdirs: of runs, finished or not.

  Returns:
    the path of the page.
  """
  path = workdirs[0] / "compare.html"
  json_files.write_text(path, rendering.render("compare", _data(workdirs)))
  return path


def _data(workdirs: list[pathlib.Path]) -> dict[str, Any]:
  """The data that compare.html.in shows."""
  names = _names(workdirs)
  lines = [run_log.read_metrics(x) for x in workdirs]
  configs = [json_files.read_object(x / "config.json") for x in workdirs]
  axes, charts = _charts(names, lines)
  known = [
      x
      for x in ("step", *COSTS, "hours")
      if any(any(v.get(x) or ()) for k, v in axes.items() if k[:2] == "rl")
  ]
  warnings = [scores_lib.warnings(x) for x in lines]
  pairs = paired.table(paired.of_runs(workdirs), " ± ")
  head = ["", "set", "score", "prompts", "first run", "this run", "difference"]
  return dict(
      title=", ".join(names),
      notes=[
          f"{name}: {line}"
          for name, found in zip(names, warnings, strict=True)
          for line in found
      ],
      runs=names,
      scores=_table(names, lines),
      paired=[head, *pairs] if pairs else [],
      x=known or ["step"],
      axes=axes,
      charts=charts,
      differ=_differences(names, configs),
      commands=[
          (name, *(x[-1][k] for k in ("command", "date") if x))
          for name, x in zip(names, map(run_log.starts, workdirs), strict=True)
      ],
  )


def _names(workdirs: list[pathlib.Path]) -> list[str]:
  """The paths without their common prefix."""
  paths = [x.resolve() for x in workdirs]
  root = os.path.commonpath([x.parent for x in paths])
  return [str(x.relative_to(root)) for x in paths]


def _table(names: list[str], lines: list[list[dict]]) -> dict[str, Any]:
  """The held-out scores before and after RL, and the costs."""
  sides = [scores_lib.before_after(x) for x in lines]
  before, after = ([scores(side[i] or {}) for side in sides] for i in (0, 1))
  rows = []
  for name in dict.fromkeys(k for x in (*after, *before) for k in x):
    cells = []
    for old, new in zip(before, after, strict=True):
      found = [x[name] for x in (old, new) if name in x]
      text = " → ".join(x.text(" ± ") for x in found) or "–"
      share = found[-1].value if found and found[-1].share else None
      cells.append((text, share))
    rows.append(dict(name=name, about="", cells=cells))
  costs = {"RL steps": [], "hours": [], **{kind: [] for kind in COSTS}}
  for run in lines:
    rl = scores_lib.of_stage(run, "rl")
    until = [x for x in hours(run).values() if x is not None]
    costs["RL steps"].append(str(rl[-1]["step"]) if rl else "0")
    costs["hours"].append(f"{max(until, default=0):.2f}")
    for kind in COSTS:
      cost = spent(run, kind)
      costs[kind].append(f"{max(cost.values()):.3g}" if cost else "–")
  for name, texts in costs.items():
    cells = [(text, None) for text in texts]
    rows.append(dict(name=name, about="", cells=cells))
  return dict(head=["", *names], rows=rows)


def _charts(
    names: list[str], lines: list[list[dict]]
) -> tuple[dict[str, Any], list[dict]]:
  """One chart for each curve of a report, with a line for each run."""
  axes: dict[str, Any] = {}
  found: dict[tuple[str, str], dict] = {}
  for i, (name, run) in enumerate(zip(names, lines, strict=True)):
    # The runs share the points of the page.
    of_run, charts = charts_of(run, POINTS // len(names))
    axes |= {f"{stage} {i}": columns for stage, columns in of_run.items()}
    for chart in charts:
      for one in chart["series"]:
        plain = {k: chart[k] for k in ("unit", "percent")}
        # One chart a curve, since configs differ in the curves of a chart.
        kind = "training" if one["axis"] == "rl" else one["axis"]
        title = f"{chart['title']}: {one['label']}"
        about = dict(title=title, about=f"{kind}: {one['name']}", series=[])
        place = found.setdefault((one["axis"], one["name"]), plain | about)
        place["series"].append(
            one
            | dict(label=name, axis=f"{one['axis']} {i}", color=i % 6)
            | dict(dash=("none", "7 3", "2 2")[i // 6 % 3])
        )
  return axes, list(found.values())


def _differences(
    names: list[str], configs: list[dict[str, Any]]
) -> list[tuple[str, ...]]:
  """The fields in which the runs differ, with their values."""
  fields = dict.fromkeys(k for x in configs for k in x)
  texts = [dict(rendering.as_text(x)) for x in configs]
  rows = [(k, *(x.get(k, "–") for x in texts)) for k in fields]
  differ = [row for row in rows if len(set(row[1:])) > 1]
  return [("", *names), *differ] if differ else []
