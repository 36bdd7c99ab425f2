"""Figures of results: descriptions in plain data, drawn by matplotlib.

A description holds everything that a figure shows, and no matplotlib is needed
to make or compare one. The PNG carries the digest of its description and of
this module, so a test tells whether a committed picture is what its data give.
For a paper, a figure is drawn as SVG or PDF.

A figure is {"width", "note", "legend", "blocks"}; a block, {"columns", "height"
(inches of a row), "panels"}, is a grid of panels below the block before it. A
panel is made by `lines` or `forest`.
"""

import hashlib
import json
import pathlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from rl_reason.report.rendering import PALETTE

DPI = 130
REFERENCE = "reference"  # a color: what other curves are compared with
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
MARKERS = ("o", "s", "^", "D")
GREY, INK = "#8a93a0", "#1c2128"
KEY = "rl_reason figure"  # of the digest, in the PNG
SIGNATURE = b"\x89PNG\r\n\x1a\n"


# --- descriptions ------------------------------------------------------------


def series(
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    color: int | str = 0,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    bars: bool = False,
    marker: bool = False,
    runs: Sequence[Sequence[float]] = (),
) -> dict[str, Any]:
  """One curve.

  Args:
    label: its name; '' for none.
    x: positions; a single one makes a level over the whole panel.
    y: values.
    color: index of the palette, which also decides the dashes; or REFERENCE.
    low: the lower end of the band at each x.
    high: the upper end of the band at each x.
    bars: error bars in place of a band.
    marker: whether points are marked.
    runs: values of single runs at each x, as thin lines.
  """
  found = dict(label=label, x=_short(x), y=_short(y), color=color)
  if low is not None and high is not None:
    found |= dict(low=_short(low), high=_short(high), bars=bars)
  return found | dict(marker=marker, runs=[_short(run) for run in runs])


def lines(
    series: list[dict[str, Any]],
    *,
    x: str,
    y: str = "",
    title: str = "",
    percent: bool = False,
    labels: bool = False,
    from_zero: bool = False,
    ticks: Sequence[float] = (),
    top: float | None = None,
    whole: bool = False,
) -> dict[str, Any]:
  """A panel of curves.

  Args:
    series: of `series`.
    x: label of the axis; '' is none.
    y: label of the axis; '' is none.
    title: of the panel.
    percent: whether values are shares, from 0 to 100%.
    labels: whether curves are labelled at their right end.
    from_zero: whether both axes begin at 0.
    ticks: positions on a logarithmic horizontal axis; () for a linear axis.
    top: upper end of an axis of shares; None is 100%.
    whole: whether the ticks of the horizontal axis are whole numbers.
  """
  out = dict(
      kind="lines",
      series=series,
      x=x,
      y=y,
      title=title,
      percent=percent,
      labels=labels,
      from_zero=from_zero,
      ticks=list(ticks),
      top=top,
  )
  return out | dict(whole=True) if whole else out


def forest(
    rows: Sequence[tuple[str, Sequence[float], float | None, float | None]],
    *,
    x: str,
    names: bool = True,
) -> dict[str, Any]:
  """A panel of differences, one row each: points, and their mean and interval.

  Args:
    rows: name, a number for each seed, mean, and half of the width of the
      interval; None without one.
    x: label of the axis.
    names: whether the names of the rows are shown.
  """
  shown = []
  for name, points, *interval in rows:
    mean, half = _short(interval)
    shown.append(dict(name=name, points=_short(points), mean=mean, half=half))
  return dict(kind="forest", rows=shown, x=x, names=names)


def block(
    panels: list[dict[str, Any]], *, columns: int, height: float
) -> dict[str, Any]:
  """A grid of panels: its columns, and the height of a row in inches."""
  return dict(panels=panels, columns=columns, height=height)


def figure(
    *blocks: dict[str, Any],
    width: float = 9.0,
    legend: bool = False,
    note: str = "",
) -> dict[str, Any]:
  """A figure of blocks, one below another.

  Args:
    *blocks: of `block`.
    width: in inches.
    legend: whether a legend of all panels is above the figure.
    note: a line above the figure.
  """
  return dict(width=width, note=note, legend=legend, blocks=list(blocks))


def _short(values: Sequence[float | None]) -> list[float | None]:
  """Numbers of a few digits: the same on every machine."""
  return [None if x is None else float(f"{x:.4g}") for x in values]


# --- digests -----------------------------------------------------------------


def digest(figure: dict[str, Any]) -> str:
  """What the PNG of a figure carries: a hash of the figure and this module."""
  text = json.dumps(figure, sort_keys=True) + repr(PALETTE)
  code = pathlib.Path(__file__).read_bytes()
  return hashlib.sha256(text.encode() + code).hexdigest()


def read_digest(path: pathlib.Path) -> str:
  """The digest in a PNG; '' if it has none."""
  for name, content in _chunks(path.read_bytes()):
    if name == b"tEXt" and content.startswith(KEY.encode() + b"\0"):
      return content.partition(b"\0")[2].decode("latin-1")
  return ""


def write_digest(path: pathlib.Path, digest: str) -> None:
  """Adds a digest to the PNG of another program."""
  header, *rest = _chunks(path.read_bytes())
  own = b"tEXt", KEY.encode() + b"\0" + digest.encode()
  out = [SIGNATURE]
  for name, content in (header, own, *rest):
    check = zlib.crc32(name + content)
    out += [struct.pack(">I", len(content)), name, content]
    out.append(struct.pack(">I", check))
  path.write_bytes(b"".join(out))


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
  """The chunks of a PNG: name and content; [] of another file."""
  out, at = [], len(SIGNATURE)
  while data.startswith(SIGNATURE) and at < len(data):
    (size,) = struct.unpack(">I", data[at : at + 4])
    out.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
    at += size + 12
  return out


# --- drawing -----------------------------------------------------------------


def draw(figure: dict[str, Any], path: pathlib.Path) -> None:
  """Writes a figure as PNG with its digest, or as SVG or PDF for a paper.

  Args:
    figure: the description.
    path: of the file; its suffix, .png, .svg or .pdf, is the format.

  Raises:
    ModuleNotFoundError: matplotlib is not installed.
    ValueError: the suffix is another one.
  """
  # Neither has the time at which it was drawn: equal data make equal files.
  kinds = {
      ".png": {KEY: digest(figure), "Software": None},
      ".svg": {"Date": None},
      ".pdf": {"CreationDate": None},
  }
  if path.suffix not in kinds:
    raise ValueError(f"{path}: its suffix is none of {', '.join(kinds)}")
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  style = {
      "font.size": 9,
      "axes.titlesize": 9,
      "axes.edgecolor": GREY,
      "axes.labelcolor": INK,
      "axes.spines.top": False,
      "axes.spines.right": False,
      "axes.grid": True,
      "grid.color": "#e3e6ea",
      "axes.axisbelow": True,
      "text.color": INK,
      "xtick.color": INK,
      "ytick.color": INK,
      "text.parse_math": False,  # names of rows are text
      "svg.hashsalt": KEY,  # or the identifiers in an SVG are random
  }
  with plt.rc_context(style):
    heights = [
        x["height"] * -(-len(x["panels"]) // x["columns"])
        for x in figure["blocks"]
    ]
    above = 0.25 * (bool(figure["note"]) + bool(figure["legend"]))
    size = figure["width"], sum(heights) + above
    fig = plt.figure(figsize=size, layout="constrained")
    parts = fig.subfigures(
        len(heights), 1, height_ratios=heights, squeeze=False
    )
    for part, one in zip(parts[:, 0], figure["blocks"], strict=True):
      _draw_block(part, one)
    if figure["legend"]:
      shown: dict[str, Any] = {}
      for axes in fig.axes:
        for handle, label in zip(
            *axes.get_legend_handles_labels(), strict=True
        ):
          shown.setdefault(label, handle)
      fig.legend(
          [*shown.values()],
          [*shown],
          loc="outside upper center",
          ncol=4,
          frameon=False,
          handlelength=3,
      )
    if figure["note"]:
      fig.suptitle(figure["note"], fontsize=9, x=0.01, ha="left")
    fig.canvas.draw()  # the places of the panels
    panels = [x for one in figure["blocks"] for x in one["panels"]]
    for axes, panel in zip(fig.axes, panels, strict=True):
      if panel["kind"] == "lines" and panel["labels"]:
        _label_ends(axes, panel)
    fig.savefig(path, dpi=DPI, metadata=kinds[path.suffix])
    plt.close(fig)


def _draw_block(part: Any, one: dict[str, Any]) -> None:
  """Draws the panels of a block into a subfigure."""
  rows = -(-len(one["panels"]) // one["columns"])
  grid = part.subplots(rows, one["columns"], squeeze=False)
  for i, axes in enumerate(grid.flat):
    if i >= len(one["panels"]):
      axes.remove()
      continue
    panel = one["panels"][i]
    {"lines": _draw_lines, "forest": _draw_forest}[panel["kind"]](axes, panel)


def _look(color: int | str) -> dict[str, Any]:
  """Color and dashes of a curve."""
  if color == REFERENCE:
    return dict(color=GREY, ls="-", lw=1.6)
  assert isinstance(color, int)
  return dict(color=PALETTE[color % len(PALETTE)], ls=DASHES[color % 4], lw=1.8)


def _draw_lines(axes: Any, panel: dict[str, Any]) -> None:
  """Draws curves."""
  from matplotlib.ticker import EngFormatter, PercentFormatter

  for one in panel["series"]:
    look, x, y = _look(one["color"]), one["x"], one["y"]
    for run in one["runs"]:
      axes.plot(x, run, color=look["color"], lw=0.7, alpha=0.4)
    mark = dict(label=one["label"])
    if one["marker"]:
      mark |= dict(marker=MARKERS[_index(one) % 4], ms=4.5)
    band = dict(color=look["color"], alpha=0.15, lw=0)
    if len(x) == 1:  # a level, not a curve
      axes.axhline(y[0], **look, label=one["label"])
      if "low" in one:
        axes.axhspan(one["low"][0], one["high"][0], **band)
      continue
    axes.plot(x, y, **look, **mark)
    if "low" in one and one["bars"]:
      axes.vlines(x, one["low"], one["high"], color=look["color"], lw=1)
    elif "low" in one:
      axes.fill_between(x, one["low"], one["high"], **band)
  axes.set(xlabel=panel["x"], ylabel=panel["y"])
  axes.set_title(panel["title"], loc="left")
  if panel["from_zero"]:
    axes.set_xlim(0)
    axes.set_ylim(0)
  if panel["ticks"]:
    axes.set_xscale("log")
    axes.set_xticks(panel["ticks"], [f"{x:g}" for x in panel["ticks"]])
    axes.minorticks_off()
  else:
    if max((x for one in panel["series"] for x in one["x"]), default=0) > 1e3:
      axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    integer = dict(integer=True) if panel.get("whole") else {}
    axes.locator_params(axis="x", nbins=5, **integer)
  if panel["percent"]:
    top = panel["top"] or 1
    decimals = 0 if top >= 0.05 else 1
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))
    axes.set_ylim(0, top)
    axes.locator_params(axis="y", nbins=5)


def _index(one: dict[str, Any]) -> int:
  return one["color"] if isinstance(one["color"], int) else 0


def _label_ends(axes: Any, panel: dict[str, Any]) -> None:
  """Writes the names of curves at their right ends, apart from each other."""
  low, high = axes.get_ylim()
  ends = sorted(
      ((one["y"][-1] - low) / (high - low), i)
      for i, one in enumerate(panel["series"])
      if one["label"]
  )
  names = [panel["series"][i]["label"] for _, i in ends]
  points = axes.get_window_extent().height / axes.figure.dpi * 72
  places: list[float] = []
  for (at, _), name in zip(ends, names, strict=True):
    gap = 11.5 * (1 + name.count("\n")) / points
    places.append(max(at, places[-1] + gap if places else 0.02))
  # What was pushed above the panel moves back down, and its neighbors with it.
  limit = 0.98
  for i in reversed(range(len(places))):
    places[i] = min(places[i], limit)
    limit = places[i] - 11.5 * (1 + names[i].count("\n")) / points
  for place, (_, i) in zip(places, ends, strict=True):
    one = panel["series"][i]
    axes.annotate(
        one["label"],
        xy=(1, (one["y"][-1] - low) / (high - low)),
        xytext=(1.04, place),
        xycoords="axes fraction",
        textcoords="axes fraction",
        va="center",
        color=_look(one["color"])["color"]
        if one["color"] != REFERENCE
        else INK,
        arrowprops=dict(arrowstyle="-", color=GREY, lw=0.6),
    )


def _draw_forest(axes: Any, panel: dict[str, Any]) -> None:
  """Draws differences; a mean is filled if its interval excludes 0."""
  rows, color = panel["rows"], PALETTE[0]
  axes.axvline(0, color=INK, lw=0.8)
  for i, row in enumerate(rows):
    above = [0.3 - i] * len(row["points"])
    axes.plot(row["points"], above, ".", color=GREY, ms=4)
    if row["mean"] is None:
      continue
    clear = row["half"] is not None and abs(row["mean"]) > row["half"]
    axes.errorbar(
        row["mean"],
        -i,
        xerr=row["half"],
        fmt="o",
        ms=5.5,
        capsize=2.5,
        color=color,
        mfc=color if clear else "white",
        zorder=3,
    )
  names = [row["name"] for row in rows] if panel["names"] else [""] * len(rows)
  axes.set_yticks([-i for i in range(len(rows))], names)
  axes.set_ylim(-len(rows) + 0.4, 0.6)
  axes.tick_params(axis="y", length=0)
  axes.set_xlabel(panel["x"])
  axes.locator_params(axis="x", nbins=5)
  axes.spines["left"].set_visible(False)
