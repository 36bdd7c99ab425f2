"""Output files of an ablation: Markdown, figure and interactive page.

Shapes here: N seeds; S evaluations of a run.
"""

import itertools
import pathlib
from typing import Any

import numpy as np

from rl_reason.base import json_files
from rl_reason.lab import comparison
from rl_reason.report import rendering


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


def figure(data: dict[str, Any], path: pathlib.Path) -> None:
  """Draws NAME.png: accuracy against each cost, and the differences."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt
  from matplotlib.ticker import EngFormatter

  rows, where = [row for row, *_ in data["rows"]], comparison.ends(data)
  by_row = comparison.differences(data, at=where["step"])
  fig, (*curves, forest) = plt.subplots(
      1,
      len(where) + 1,
      figsize=(4 * len(where) + 5, 3.2 + 0.14 * len(rows)),
      layout="constrained",
  )
  looks = itertools.product(
      ("-", "--", ":", "-."), map("C{}".format, range(10))
  )
  for i, (row, (line, color)) in enumerate(zip(rows, looks, strict=False)):
    style: dict[str, Any] = dict(ls=line, color=color, lw=1.3)
    if row == data["reference"]:
      style = dict(color="black", lw=2)
    columns = [x["evaluate"] for x in data["runs"] if x["row"] == row]
    y_NS = np.array([x["accuracy"] for x in columns], float)
    for panel, axis in zip(curves, where, strict=True) if columns else ():
      x_S = np.mean([x[axis] for x in columns], 0)
      if len(x_S) == 1:  # a row without RL is a level
        panel.axhline(y_NS.mean(), **style)
        continue
      panel.plot(x_S, y_NS.mean(0), **style)
      band = y_NS.min(0), y_NS.max(0)
      panel.fill_between(x_S, *band, color=style["color"], alpha=0.1)
    forest.axhline(-i, **style | dict(lw=0.8), alpha=0.4)
    points = [100 * x for x in by_row[row].values()]
    if points:
      mean, half = comparison.interval(points)
      dots = dict(color=style["color"], zorder=3)
      forest.plot(points, [-i] * len(points), ".", alpha=0.4, **dots)
      forest.errorbar(mean, -i, xerr=half, fmt="o", capsize=3, **dots)
  for panel, axis in zip(curves, where, strict=True):
    panel.set(xlabel=comparison.AXES[axis], ylabel=data["accuracy"])
    panel.xaxis.set_major_formatter(EngFormatter())
  forest.set(xlabel=f"difference at step {where['step']:g}, percentage points")
  forest.set_yticks([-i for i in range(len(rows))], rows)
  forest.axvline(0, color="black", lw=0.8)
  for panel in (*curves, forest):
    panel.grid(alpha=0.2)
    panel.spines[["top", "right"]].set_visible(False)
  fig.savefig(path, dpi=120)
  plt.close(fig)


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
    figure(data, out[2])
  except ModuleNotFoundError as e:
    return [*out[:2], pathlib.Path(f"no {out[2]}: {e.name} is not installed")]
  return out
