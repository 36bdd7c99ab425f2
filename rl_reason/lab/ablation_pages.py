"""Output files of an ablation: Markdown, figure and interactive page.

Shapes here: N seeds; S evaluations of a run.
"""

import math
import pathlib
import textwrap
from typing import Any

import numpy as np

from rl_reason.base import json_files
from rl_reason.lab import comparison
from rl_reason.report import figures, rendering

COLUMNS = {0: 1, 1: 1, 2: 2, 3: 3, 5: 3, 6: 3}  # by small panels; else 4
MOST = 6  # rows beside the reference whose measures are drawn, too


def markdown_table(data: dict[str, Any]) -> str:
  """Returns the table in Markdown."""
  table = comparison.table(data)
  rows = [["", "changes", *table["head"][1:]]] + [
      [row["name"], row["about"], *(text for text, _ in row["cells"])]
      for row in table["rows"]
  ]
  lines = [" | ".join(x.replace("|", "/") for x in row) for row in rows]
  first, *lines = [f"| {line} |" for line in lines]
  return "\n".join([first, "|---" * len(rows[0]) + "|", *lines])


def markdown(data: dict[str, Any], name: str) -> str:
  """Returns the text of NAME.md."""
  versions = [f"{k} {v}" for k, v in data["environment"].items() if v]
  parts = [
      f"# {data['title']}",
      data["question"],
      markdown_table(data),
      f"Accuracy is {data['accuracy']} on held-out prompts, averaged over seeds"
      f" {', '.join(map(str, data['seeds']))}; README.md explains the"
      " columns.",
      *(f"- {x}" for x in comparison.notes(data)),
      f"![curves]({name}.png)",
      f"Made by `{data['command']}`, which also writes the interactive page"
      f" `{name}.html`; with `--table` it only rewrites the files from the data"
      f" in `{name}.json`.",
      f"Versions: {', '.join(versions)}.\n",
  ]
  return "\n\n".join(parts)


def figure(data: dict[str, Any]) -> dict[str, Any]:
  """What NAME.png shows: the curve of each row, and the differences.

  Each row has a panel with the reference in grey; with at most `MOST` rows also
  for each measure of RL. Below are the differences from the reference, paired
  by seed, at the end of each axis.
  """
  where, rows = comparison.ends(data), [row for row, *_ in data["rows"]]
  reference = _curve(data, data["reference"]) | dict(color=figures.REFERENCE)
  others = [row for row in rows if row != data["reference"]]
  columns = COLUMNS.get(len(others), 4)
  of_rows = [_curve(data, row) for row in others]
  highest = max(
      (y for x in (reference, *of_rows) for y in x["high"]), default=1
  )
  panels = []
  for i, row in enumerate(others or rows):
    curves = [reference, of_rows[i]] if others else [reference]
    panels.append(
        figures.lines(
            [x for x in curves if x["x"]],
            x="RL step" if i >= len(others) - columns else "",
            title=row,
            percent=True,
            top=min(1, math.ceil(10 * highest) / 10),
        )
    )
  height, about = 1 + 2.2 / columns, ""
  blocks = [figures.block(panels, columns=columns, height=height)]
  if others and len(others) <= MOST and (small := _measures(data, others)):
    blocks.append(figures.block(small, columns=len(others), height=1.25))
    about = "\nSmall: measures in training, mean over seeds"
  forests = []
  for axis, end in where.items():
    by_row = comparison.differences(data, at=end, axis=axis)
    shown: list[tuple] = []
    for row in rows:
      points = [100 * x for x in by_row[row].values()]
      if not points or not comparison.started(data, row, axis, end):
        shown.append((row, [], None, None))
      elif row == data["reference"]:
        shown.append((row, [], 0.0, None))
      else:
        shown.append((row, points, *comparison.interval(points)))
    x = f"points, at {comparison.amount(end)} {comparison.AXES[axis]}"
    forests.append(figures.forest(shown, x=x, names=not forests))
  note = (
      f"{data['accuracy']} on held-out prompts, mean over seeds, with minimum"
      f" and maximum; grey: {data['reference']}.{about}\nBelow: difference from"
      f" {data['reference']}, 95% interval; filled where it excludes 0; dots:"
      " seeds."
  )
  height = 1 + 0.2 * len(rows)
  blocks.append(figures.block(forests, columns=len(forests), height=height))
  return figures.figure(*blocks, note=note)


def _measures(data: dict[str, Any], others: list[str]) -> list[dict[str, Any]]:
  """A panel for each measure of RL and each row, with the reference in grey."""
  found = [k for k, x in data["measures"].items() if x["stage"] == "rl"]
  panels = []
  for name in found:
    grey = _means(data, data["reference"], name) | dict(color=figures.REFERENCE)
    for i, row in enumerate(others):
      curves = [x for x in (grey, _means(data, row, name)) if x["x"]]
      panels.append(
          figures.lines(
              curves,
              x="RL step" if name == found[-1] else "",
              y="" if i else name,
              title=textwrap.shorten(row, 18, placeholder=" ...")
              if name == found[0]
              else "",
              percent=data["measures"][name]["share"],
          )
      )
  return panels


def _means(data: dict[str, Any], row: str, name: str) -> dict[str, Any]:
  """A measure of a row by RL step: mean over the seeds that have it."""
  values: dict[int, list[float]] = {}
  for run in data["runs"]:
    if run["row"] == row and run["rl"].get(name):
      column = comparison.column(run["rl"], name)
      for step, y in zip(run["rl"]["step"], column, strict=True):
        if y is not None:
          values.setdefault(step, []).append(y)
  steps = sorted(values)
  return figures.series(row, steps, [float(np.mean(values[x])) for x in steps])


def _curve(data: dict[str, Any], row: str) -> dict[str, Any]:
  """Accuracy of a row by RL step: mean over seeds, minimum and maximum."""
  columns = [x["evaluate"] for x in data["runs"] if x["row"] == row]
  if not columns:
    return figures.series(row, [], [], low=[], high=[])
  y_NS = np.array([x["accuracy"] for x in columns], float)
  low_S, high_S = y_NS.min(0), y_NS.max(0)
  steps = columns[0]["step"]
  return figures.series(row, steps, y_NS.mean(0), low=low_S, high=high_S)


def page_data(data: dict[str, Any]) -> dict[str, Any]:
  """Returns the data of ablation.html.in."""
  accuracy = dict(stage="evaluate", unit="% of responses", share=True)
  return data | dict(
      notes=comparison.notes(data),
      x=list(comparison.ends(data)),
      measures=dict(accuracy=accuracy) | data["measures"],
      scores=comparison.table(data),
      config=rendering.as_text(dict(command=data["command"]) | data["common"]),
      environment=rendering.as_text(data["environment"]),
  )


def write(data: dict[str, Any], path: pathlib.Path) -> list[pathlib.Path]:
  """Writes .md, .html and, with matplotlib, .png next to the data."""
  out = [path.with_suffix(x) for x in (".md", ".html", ".png")]
  json_files.write_text(out[0], markdown(data, path.stem))
  json_files.write_text(out[1], rendering.render("ablation", page_data(data)))
  try:
    figures.draw(figure(data), out[2])
  except ModuleNotFoundError as e:
    return [*out[:2], pathlib.Path(f"no {out[2]}: {e.name} is not installed")]
  return out
