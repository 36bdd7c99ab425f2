"""Output files of an ablation: Markdown, figure and interactive page.

Shapes here: N seeds; S evaluations of a run.
"""

import itertools
import math
import pathlib
import textwrap
from typing import Any

import numpy as np

from rl_reason.base import json_files
from rl_reason.lab import comparison
from rl_reason.report import figures, rendering

COLUMNS = {0: 1, 1: 1, 2: 2, 3: 3, 5: 3, 6: 3, 9: 3}  # by small panels; else 4
MOST = 6  # rows beside the reference whose measures are drawn, too
LETTERS = 108  # of a title over the whole width of the figure
UPRIGHT = 12  # letters of a measure beside its panel; more make two lines
TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of axes of shares


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
      summary(data),
      data["question"],
      f"![curves]({name}.png)",
      markdown_table(data),
      f"Accuracy is {data['accuracy']} on held-out prompts, averaged over seeds"
      f" {', '.join(map(str, data['seeds']))}; README.md explains the"
      " columns.",
      *(f"- {x}" for x in comparison.notes(data)),
      f"Made by `{data['command']}`, which also writes the interactive page"
      f" `{name}.html`; with `--table` it only rewrites the files from the data"
      f" in `{name}.json`.",
      f"Versions: {', '.join(versions)}.\n",
  ]
  return "\n\n".join(parts)


def summary(data: dict[str, Any]) -> str:
  """Which rows differ from the reference, and from the row before.

  Differences are those after the last step that all runs reach. A row is
  compared with the row before if it begins with '+' and adds fields to it.
  """
  at, reference = comparison.ends(data)["step"], data["reference"]
  by_row = comparison.differences(data, at=at)
  scores = [
      comparison.value_at(run, "accuracy", at, "step", "evaluate")
      for run in data["runs"]
      if run["row"] == reference
  ]
  name = reference
  if scores:
    name += f" ({np.mean(np.array(scores, float)):.1%} {data['accuracy']})"
  gaps = {k: [*x.values()] for k, x in by_row.items() if x and k != reference}
  where = f"After {at:g} RL steps"
  if not gaps:
    return f"{where} there is no row to compare with {name}."
  clear, found = _clear(gaps), _differences(gaps)
  if all(len(x) < 2 for x in gaps.values()):
    return f"{where}, of one seed, the difference from {name} is {found}."
  if clear:
    out = (
        f"{where} {len(clear)} of {len(gaps)} rows differ significantly from"
        f" {name}: {_differences(clear)}."
    )
  else:
    out = f"{where} no row differs significantly from {name}: {found}."
  added = _added(data, by_row)
  if len(added) > 1:
    known = _clear(added)
    words = _differences(known) if known else "none"
    out += (
        f" Of {len(added)} rows that add to the row before, these differ"
        f" significantly from it: {words}."
    )
  return out


def _added(data: dict[str, Any], by_row: dict[str, Any]) -> dict[str, Any]:
  """Differences from the row before, of rows that change further fields."""
  fields = {row: own for row, _, own in data["rows"]}
  first = fields[data["reference"]]
  changed = {
      row: {k for k, x in own.items() if x != first.get(k)}
      for row, own in fields.items()
  }
  out = {}
  for before, row in itertools.pairwise(fields):
    if row.startswith("+") and changed[before] < changed[row]:
      seeds = by_row[row].keys() & by_row[before].keys()
      values = [by_row[row][x] - by_row[before][x] for x in sorted(seeds)]
      out |= {row: values} if len(values) > 1 else {}
  return out


def _clear(gaps: dict[str, list[float]]) -> dict[str, list[float]]:
  """The rows whose interval excludes 0."""
  out = {}
  for row, values in gaps.items():
    mean, half = comparison.interval(values)
    if half is not None and abs(mean) > half:
      out[row] = values
  return out


def _differences(gaps: dict[str, list[float]]) -> str:
  """'name (+3.2 ± 1.1 points), ...', the highest first."""
  rows = sorted(gaps, key=lambda x: -float(np.mean(gaps[x])))
  words = (f"{x} ({comparison.signed(gaps[x], True)} points)" for x in rows)
  return ", ".join(words)


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
            title=_wrapped(row, columns),
            percent=True,
            top=min(1, math.ceil(10 * highest) / 10),
        )
    )
  height, about = 1 + 2.2 / columns, ""
  blocks = [figures.block(panels, columns=columns, height=height)]
  if others and len(others) <= MOST and (small := _measures(data, others)):
    blocks.append(figures.block(small, columns=len(others), height=1.25))
    about = "\nSmall: measures in training, mean over seeds."
  forests = []
  for axis, end in where.items():
    by_row = comparison.differences(data, at=end, axis=axis)
    shown: list[tuple] = []
    for row in rows:
      points = [100 * x for x in by_row[row].values()]
      begun = comparison.started(data, row, axis, end)
      if not points or not begun or comparison.waits(data, row, axis, end):
        shown.append((row, [], None, None))
      elif row == data["reference"]:
        shown.append((row, [], 0.0, None))
      else:
        shown.append((row, points, *comparison.interval(points)))
    x = f"points, at {comparison.amount(end)} {comparison.AXES[axis]}"
    forests.append(figures.forest(shown, x=x, names=not forests))
  drawn = [x for panel in forests for x in panel["rows"]]
  idle = ""
  if any(x["mean"] is None for x in drawn if x["name"] in others):
    idle = "; no interval: the row has not begun RL"
  note = (
      f"{data['accuracy']} on held-out prompts, mean over seeds, with minimum"
      f" and maximum; grey: {data['reference']}.{about}\nBelow: difference from"
      f" {data['reference']}, 95% interval; filled where it excludes 0; dots:"
      f" seeds{idle}."
  )
  height = 1 + 0.2 * len(rows)
  blocks.append(figures.block(forests, columns=len(forests), height=height))
  return figures.figure(*blocks, note=note)


def _measures(data: dict[str, Any], others: list[str]) -> list[dict[str, Any]]:
  """A panel for each measure of RL and each row, with the reference in grey."""
  found = [k for k, x in data["measures"].items() if x["stage"] == "rl"]
  panels = []
  for name in found:
    share = data["measures"][name]["share"]
    top = _top(data, name, others) if share else None
    grey = _means(data, data["reference"], name) | dict(color=figures.REFERENCE)
    for i, row in enumerate(others):
      curves = [x for x in (grey, _means(data, row, name)) if x["x"]]
      panels.append(
          figures.lines(
              curves,
              x="RL step" if name == found[-1] else "",
              y="" if i else "\n".join(textwrap.wrap(name, UPRIGHT)),
              title=_wrapped(row, len(others)) if name == found[0] else "",
              percent=share,
              top=top,
              whole=True,
          )
      )
  return panels


def _wrapped(row: str, columns: int) -> str:
  """The name of a row as the title of a panel, in lines; none is cut."""
  # Beside more panels, the labels of the vertical axis take more of the width.
  letters = LETTERS // columns if columns < 5 else 17
  return "\n".join(textwrap.wrap(row, letters)) or row


def _top(data: dict[str, Any], name: str, others: list[str]) -> float:
  """The end of an axis of shares: of the highest mean of all its panels."""
  rows = (data["reference"], *others)
  found = [y for row in rows for y in _means(data, row, name)["y"]]
  return next((x for x in TOPS if x >= max(found, default=1)), 1.0)


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


def write(
    data: dict[str, Any], path: pathlib.Path, form: str = "png"
) -> list[pathlib.Path]:
  """Writes .md, .html and, with matplotlib, the figure next to the data.

  `form` of the figure is "png", "svg" or "pdf".
  """
  out = [path.with_suffix(x) for x in (".md", ".html", f".{form}")]
  json_files.write_text(out[0], markdown(data, path.stem))
  json_files.write_text(out[1], rendering.render("ablation", page_data(data)))
  try:
    figures.draw(figure(data), out[2])
  except ModuleNotFoundError as e:
    return [*out[:2], pathlib.Path(f"no {out[2]}: {e.name} is not installed")]
  return out
