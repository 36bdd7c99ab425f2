"""Curves and responses of a run for notebooks.

    from rl_reason.report import notebook

    rl_reason.train("dapo", workdir="runs/a", logger=notebook.Live("runs/a"))
    notebook.curves("runs/a", "Entropy", "Response length")
    notebook.responses("runs/a")

Each function returns an object that a notebook shows when it is the last line
of a cell. The charts are the charts of the report, by title.
"""

import html
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from rl_reason.base import json_files
from rl_reason.base.errors import ConfigError, did_you_mean
from rl_reason.monitoring import run_log
from rl_reason.report import charts
from rl_reason.report.rendering import PALETTE

WIDTH, HEIGHT = 360, 200  # pixels of a chart
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 44, 24  # around the curves


class Picture:
  """An SVG, which notebooks and GitHub show."""

  def __init__(self, svg: str):
    self.svg = svg

  def __repr__(self) -> str:
    return "curves of a run, as SVG"

  def _repr_svg_(self) -> str:
    return self.svg


class Page:
  """HTML, which notebooks show."""

  def __init__(self, text: str):
    self.text = text

  def __repr__(self) -> str:
    return "responses of a run, as HTML"

  def _repr_html_(self) -> str:
    return self.text


def curves(
    workdir: str | pathlib.Path, *titles: str, status: str = ""
) -> Picture:
  """Charts of a run, side by side.

  Args:
    workdir: of the run, which may still train.
    *titles: of the charts, as the report has them; 'Accuracy' by default.
    status: a line above the charts.

  Raises:
    ConfigError: the report has no chart of that title.
  """
  lines = run_log.read_metrics(pathlib.Path(workdir))
  axes, found = charts.charts_of(lines)
  known = [x["title"] for x in charts.CHARTS]
  parts = []
  for index, title in enumerate(titles or ("Accuracy",)):
    if title not in known:
      raise ConfigError(
          f"{title!r}: the report has no such chart{did_you_mean(title, known)}"
      )
    chart = next((x for x in found if x["title"] == title), None)
    place = f'<g transform="translate({index * WIDTH} {20 * bool(status)})">'
    parts.append(f"{place}{_chart(title, chart, axes)}</g>")
  width = WIDTH * max(len(titles), 1)
  height = HEIGHT + 20 * bool(status)
  if status:
    parts.insert(0, _text(8, 15, status))
  return Picture(
      f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
      f' height="{height}" viewBox="0 0 {width} {height}"'
      ' font-family="sans-serif" font-size="11">'
      f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
  )


def _chart(title: str, chart: dict | None, axes: dict[str, Any]) -> str:
  """One chart: its title, its curves, and their names above them."""
  parts = [_text(LEFT, 14, title, weight="bold")]
  curves = [
      (x["label"], PALETTE[x["color"] % len(PALETTE)], _points(x, axes))
      for x in (chart or {}).get("series", ())
  ]
  if not any(points for *_, points in curves):
    return "".join([*parts, _text(LEFT, 34, "no numbers yet", "#7b8491")])
  percent = bool(chart and chart["percent"])
  xs, ys = zip(
      *itertools.chain(*(points for *_, points in curves)), strict=True
  )
  low, high = (0.0, 1.0) if percent else (min(*ys, 0.0), max(*ys, 1e-9))
  last = max(*xs, 1)

  def at(x: float, y: float) -> tuple[float, float]:
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    share = (y - low) / (high - low)
    return LEFT + wide * x / last, TOP + tall * (1 - share)

  for y in (low, (low + high) / 2, high):
    (left, down), (right, _) = at(0, y), at(last, y)
    parts.append(
        f'<path d="M{left:.1f} {down:.1f}H{right:.1f}" stroke="#ddd"/>'
    )
    shown = f"{y:.0%}" if percent else f"{y:.3g}"
    parts.append(_text(left - 6, down + 4, shown, "#59616b", anchor="end"))
  bottom = HEIGHT - 8
  parts.append(_text(LEFT, bottom, "0", "#59616b"))
  words = f"step {last}"
  parts.append(_text(WIDTH - RIGHT, bottom, words, "#59616b", anchor="end"))
  offset = float(LEFT)
  for label, color, points in curves:
    if not points:
      continue
    places = [at(x, y) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(
        f'<polyline points="{path}" fill="none" stroke="{color}"'
        ' stroke-width="2"/>'
    )
    parts += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>'
        for x, y in (places if len(places) < 20 else places[-1:])
    ]
    parts.append(_text(offset, 31, label, color))
    offset += 14 + 6 * len(label)
  return "".join(parts)


def _points(series: dict, axes: dict[str, Any]) -> list[tuple[float, float]]:
  """The (step, value) pairs of a curve that are numbers."""
  steps = axes[series["axis"]]["step"]
  return [
      (x, y)
      for x, y in zip(steps, series["y"], strict=True)
      if y is not None and math.isfinite(y)
  ]


def _text(
    x: float,
    y: float,
    words: str,
    fill: str = "#1c2128",
    anchor: str = "start",
    weight: str = "normal",
) -> str:
  return (
      f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"'
      f' font-weight="{weight}">{html.escape(words)}</text>'
  )


class Live:
  """A logger of `rl_reason.train` that redraws curves after every step.

  Args:
    workdir: of the run.
    *titles: as in `curves`.
  """

  def __init__(self, workdir: str | pathlib.Path, *titles: str):
    import IPython.display

    self._workdir, self._titles = workdir, titles
    self._shown = IPython.display.display(
        curves(workdir, *titles, status="starting"), display_id=True
    )

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Redraws the curves."""
    stage = next(iter(metrics), "").partition("/")[0]
    self._update(f"{stage}, step {step}")

  def close(self) -> None:
    """Draws the curves of the finished run."""
    self._update("")

  def _update(self, status: str) -> None:
    if self._shown is not None:  # outside of a notebook nothing is drawn
      self._shown.update(curves(self._workdir, *self._titles, status=status))


def responses(workdir: str | pathlib.Path) -> Page:
  """The newest group of responses, each token on the color of its advantage.

  Tokens in blue become more likely, tokens in orange less likely.
  """
  rows = json_files.read_jsonl(pathlib.Path(workdir) / "samples.jsonl")
  groups: dict[tuple, list[dict]] = {}
  for row in rows:
    if row["stage"] == "rl" and not row["discarded"]:
      groups.setdefault((row["step"], row["group"]), []).append(row)
  if not groups:
    return Page("<p>There is no group with signal yet.</p>")
  (step, _), group = max(groups.items())
  prompt = html.escape(group[0]["prompt"])
  shaded = "".join(map(_shaded, group))
  return Page(
      f"<p>Step {step}, prompt <code>{prompt}</code></p><table><tr><th>reward"
      f"</th><th style='text-align: left'>response</th></tr>{shaded}</table>"
  )


def _shaded(row: dict[str, Any]) -> str:
  """A row of a table: the reward, and the tokens of a response."""
  # Only the detailed responses of a step have tokens and advantages.
  tokens: Sequence[str] = row.get("tokens") or [row["response"]]
  found = row.get("advantage") or [None] * len(tokens)
  advantages = [x or 0.0 for x in found]
  top = 2 * max(map(abs, advantages), default=0) or 1
  spans = [
      f'<span style="background: rgb({"30 130 230" if a > 0 else "230 100 30"}'
      f' / {abs(a) / top:.0%})">{html.escape(token)}</span>'
      for token, a in zip(tokens, advantages, strict=True)
  ]
  cell = f"<td style='text-align: left'><code>{''.join(spans)}</code></td>"
  reward = "none" if row["reward"] is None else f"{row['reward']:+.2f}"
  return f"<tr><td>{reward}</td>{cell}</tr>"
