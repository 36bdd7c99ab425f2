"""Output files of an ablation: Markdown, figure and interactive page."""

import itertools
import pathlib
from typing import Any

import numpy as np

from rl_reason.ablate import compare
from rl_reason.ablate.compare import AXES
from rl_reason.monitoring import metrics
from rl_reason.report import page

COLORS = (  # --c0 and so on in head.html.in
    "#0b66b8",
    "#d2570a",
    "#12805c",
    "#a3418a",
    "#8a6d00",
    "#7b8491",
)
DASHES = ("none", "7 3", "2 2")

READING = """
Accuracy is {accuracy} on held-out prompts, averaged over seeds {seeds}.
Differences to '{reference}' are paired by seed, in percentage points, ± half
the width of a 95% interval (Student's t over seeds). 'No significant
difference' means that the interval contains 0; of twenty rows without a
difference, one is 'higher' or 'lower' by chance. Accuracy at equal tokens and
FLOPs is interpolated linearly between evaluations; during value pretraining a
row keeps the accuracy of its SFT model. Measures of training are means over the
last quarter of the steps, with the difference to the reference in brackets.
Seconds are those of a row's own command: rows of a seed share their SFT model,
and the first row that needs a program compiles it.
"""


def reading(data: dict[str, Any]) -> str:
  """Explains how to read the table."""
  seeds = ", ".join(map(str, data["seeds"]))
  text = READING.format(**data | dict(seeds=seeds))
  return " ".join(text.split())


def markdown_table(data: dict[str, Any]) -> str:
  """Returns the table in Markdown."""
  table = compare.table(data)
  rows = [["", "changes", *table["head"][1:]]] + [
      [row["name"], row["about"], *(text for text, _ in row["cells"])]
      for row in table["rows"]
  ]
  lines = [
      "| " + " | ".join(x.replace("|", "/") for x in row) + " |" for row in rows
  ]
  return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def markdown(data: dict[str, Any], name: str) -> str:
  """Returns the text of NAME.md."""
  versions = [f"{k} {v}" for k, v in data["environment"].items() if v]
  parts = [f"# {data['title']}", data["question"], markdown_table(data)]
  parts += [reading(data), *(f"- {x}" for x in compare.notes(data))]
  parts += [
      f"![curves]({name}.png)",
      f"Made by `{data['command']}`, which also writes the interactive page"
      f" `{name}.html`; with `--table` it only rewrites both from the data in"
      f" `{name}.json`.",
      f"Versions: {', '.join(versions)}.\n",
  ]
  return "\n\n".join(parts)


def styles(data: dict[str, Any]) -> dict[str, tuple[str, str]]:
  """Returns the color ('0', ... or 'ref') and the dashes of each row."""
  colors = [str(i) for i in range(len(COLORS))]
  looks = itertools.cycle((color, dash) for dash in DASHES for color in colors)
  rows = [row for row, *_ in data["rows"] if row != data["reference"]]
  styles = dict(zip(rows, looks, strict=False))
  return styles | {data["reference"]: ("ref", "none")}


def curve(runs: list[dict[str, Any]], axis: str) -> np.ndarray:
  """Returns x, mean, minimum and maximum of the accuracy over seeds, [4, S].

  Args:
    runs: of one row; only steps that all of them have count.
    axis: 'step', 'tokens' or 'flops'.
  """
  names = ("step", axis, "accuracy")
  points = [
      {row[0]: row[1:] for row in zip(*columns, strict=True)}
      for columns in ([x["evaluate"][name] for name in names] for x in runs)
  ]
  steps = sorted(set.intersection(*map(set, points)))
  x_SN, y_SN = np.array([[p[s] for s in steps] for p in points], float).T
  return np.stack([x_SN.mean(1), y_SN.mean(1), y_SN.min(1), y_SN.max(1)])


def figure(data: dict[str, Any], path: pathlib.Path) -> None:
  """Draws NAME.png: accuracy against each cost, and the differences."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt
  from matplotlib.ticker import EngFormatter

  rows, where = [row for row, *_ in data["rows"]], compare.ends(data)

  def read(run):
    return compare.value_at(run, "accuracy", where["step"])

  by_row = compare.differences(data, read)
  size = 4 * len(where) + 5, 3.2 + 0.14 * len(rows)
  fig, (*curves, forest) = plt.subplots(
      1, len(where) + 1, figsize=size, layout="constrained"
  )
  for i, row in enumerate(rows):
    color, dash = styles(data)[row]
    style: dict[str, Any] = dict(
        color="black" if color == "ref" else COLORS[int(color)],
        lw=2 if color == "ref" else 1.3,
        ls="-" if dash == "none" else (0, [float(x) for x in dash.split()]),
    )
    runs = [x for x in data["runs"] if x["row"] == row]
    for panel, axis in zip(curves, where, strict=True) if runs else ():
      x_S, mean_S, low_S, high_S = curve(runs, axis)
      if len(x_S) == 1:  # a row without RL is a level
        panel.axhline(mean_S[0], **style)
        continue
      panel.plot(x_S, mean_S, **style)
      panel.fill_between(x_S, low_S, high_S, color=style["color"], alpha=0.1)
    forest.axhline(-i, **style | dict(lw=0.8), alpha=0.4)
    points = [100 * x for x in by_row[row].values()]
    if points:
      mean, half = compare.interval(points)
      dots = dict(color=style["color"], zorder=3)
      forest.plot(points, [-i] * len(points), ".", alpha=0.4, **dots)
      forest.errorbar(mean, -i, xerr=half, fmt="o", capsize=3, **dots)
  for panel, axis in zip(curves, where, strict=True):
    panel.set(xlabel=AXES[axis], ylabel=f"accuracy ({data['accuracy']})")
    if axis != "step":
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
  """Returns what ablation.html.in shows."""
  looks = styles(data)
  accuracy = dict(stage="evaluate", unit="% of responses", share=True)
  return dict(
      title=data["title"],
      question=data["question"],
      notes=compare.notes(data),
      reading=reading(data),
      x=list(compare.ends(data)),
      rows=[
          dict(label=k, color=looks[k][0], dash=looks[k][1])
          for k, *_ in data["rows"]
      ],
      measures=dict(accuracy=accuracy) | data["measures"],
      runs=data["runs"],
      scores=compare.table(data),
      config=page.as_text(dict(command=data["command"]) | data["common"]),
      environment=page.as_text(data["environment"]),
  )


def write(data: dict[str, Any], path: pathlib.Path) -> list[pathlib.Path]:
  """Writes .md, .html and, if matplotlib is installed, .png beside the data."""
  out = [path.with_suffix(x) for x in (".md", ".html", ".png")]
  metrics.write_text(out[0], markdown(data, path.stem))
  metrics.write_text(out[1], page.render("ablation", page_data(data)))
  try:
    figure(data, out[2])
  except ModuleNotFoundError as e:
    return [*out[:2], pathlib.Path(f"no {out[2]}: {e.name} is not installed")]
  return out
