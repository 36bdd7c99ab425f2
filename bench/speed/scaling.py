"""Scaling of an update with tokens, length and depth, and of compile time.

  python -m bench.speed.scaling            # about 4 minutes on 2 cores
  python -m bench.speed.scaling --table    # only table and figure, from JSON

Writes results/bench_scaling.json, .md and .png (the figure needs matplotlib).
"""

import statistics
import time

from bench import harness, ours, results, tables
from rl_reason.report import figures

BASE = dict(layers=4, rows=16, length=160, micro=16)
# Changes of BASE along each axis.
AXES = {
    "tokens": [dict(rows=n, micro=16) for n in (16, 32, 64, 128)],
    "length": [
        dict(length=n, rows=4096 // n, micro=4096 // n)
        for n in (64, 128, 256, 512, 1024)
    ],
    "depth": [dict(layers=n) for n in (1, 2, 4, 8, 16, 32)],
}
LABELS = {
    "tokens": "tokens of a step (length 160)",
    "length": "length of a row (4,096 tokens)",
    "depth": "layers (2,560 tokens)",
}


def value(axis: str, point: dict) -> int:
  """Returns the position of a point on its axis."""
  by = dict(tokens=point["rows"] * point["length"], depth=point["layers"])
  return by.get(axis, point["length"])


def measure(dims: str, point: dict, repeats: int) -> dict:
  """Returns the seconds of updates at one point, and of compilation."""
  size = harness.Size(
      point["rows"], 32, point["length"] - 32, tail=False, group=1
  )
  dims, options = f"{dims}:{point['layers']}", dict(micro=point["micro"])
  step = ours.update(harness.job("update", size, dims, "float32", options))
  seconds = []
  for _ in range(repeats + 2):
    start = time.perf_counter()
    step()
    seconds.append(time.perf_counter() - start)
  median = statistics.median(seconds[2:])
  return point | dict(seconds=seconds[2:], compile=seconds[0] - median)


def run(dims: str = "4m", repeats: int = 3, axes: dict | None = None) -> dict:
  """Measures all points of all axes."""
  result: dict = dict(
      command="python -m bench.speed.scaling",
      dims=dims,
      environment=results.environment(results.load()),
      axes={},
  )
  for axis, points in (axes or AXES).items():
    result["axes"][axis] = []
    for change in points:
      found = measure(dims, BASE | change, repeats)
      result["axes"][axis].append(found)
      print(axis, value(axis, found), found["seconds"], flush=True)
  return result


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  lines = [
      "| axis | at | median s | minimum to maximum | compile s |",
      "|---|---|---|---|---|",
  ]
  for axis, points in result["axes"].items():
    for x in points:
      lines.append(
          f"| {axis} | {value(axis, x)} | {statistics.median(x['seconds']):.3f}"
          f" | {tables.extremes(x)} | {x['compile']:.1f} |"
      )
  words = []
  for axis, points in result["axes"].items():
    first, last = points[0], points[-1]
    least, most = (statistics.median(x["seconds"]) for x in (first, last))
    words.append(
        f"{most / least:.1f} times for {LABELS[axis]} from"
        f" {value(axis, first):,} to {value(axis, last):,}"
    )
  compiles = [x["compile"] for x in result["axes"].get("depth", ())]
  of_depth = (
      f"; compilation takes {min(compiles):.1f} to {max(compiles):.1f} s at"
      " all depths"
      if compiles
      else ""
  )
  return results.document(
      "Scaling of an update",
      f"The time of an update grows {results.joined(words)}{of_depth}.",
      results.busy(result["environment"]),
      "How does the time of an update grow with the tokens, their number in a"
      f" row, and the layers? One GRPO update with the widths of"
      f" `{result['dims']}`, in fp32. Compile: the first call minus the"
      " median.",
      "![seconds](bench_scaling.png)",
      lines,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def figure(result: dict) -> dict:
  """One panel per axis, and one of compile time."""
  panels = []
  for axis, points in result["axes"].items():
    curve = figures.series(
        "",
        [value(axis, p) for p in points],
        [statistics.median(p["seconds"]) for p in points],
        low=[min(p["seconds"]) for p in points],
        high=[max(p["seconds"]) for p in points],
        **dict(bars=True, marker=True),
    )
    title = "seconds per update"
    panels.append(
        figures.lines([curve], x=LABELS[axis], title=title, from_zero=True)
    )
  deep = result["axes"]["depth"]
  curve = figures.series(
      "",
      [p["layers"] for p in deep],
      [p["compile"] for p in deep],
      **dict(color=1, marker=True),
  )
  title = "seconds of compilation"
  panels.append(figures.lines([curve], x="layers", title=title, from_zero=True))
  return figures.figure(
      figures.block(panels, columns=2, height=2.4),
      note="Medians; bars: minimum to maximum",
  )


if __name__ == "__main__":
  results.main(__doc__, "bench_scaling", lambda _: run(), page, figure=figure)
