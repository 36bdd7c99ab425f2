"""How many seeds a difference needs: the power of the paired t-test.

The interval of N paired differences with standard deviation s excludes 0 if
|mean| > t(0.975, N - 1) s / sqrt(N). For a true difference d, mean sqrt(N) / s
has a noncentral t-distribution with N - 1 degrees of freedom and noncentrality
d sqrt(N) / s (Cohen, "Statistical Power Analysis for the Behavioral Sciences",
2nd edition, 1988, chapter 2; for RL: Colas, Sigaud and Oudeyer,
arXiv:1806.08295). The standard deviations are of the ablations in results/.
"""

import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rl_reason.base import config as config_lib, errors
from rl_reason.checks import config_files
from rl_reason.lab import comparison

LEVEL = 0.05  # of the two-sided test
POWER = 0.8
POINTS = 2.0  # the difference that a run's first lines are about
LEAST = 3  # seeds of a standard deviation
MOST = 9999
SHOWN = (0.1, 0.5, 0.9)  # quantiles over rows; most rows are between them


def power(points: float, deviation: float, seeds: int) -> float:
  """The probability that the interval of a difference excludes 0.

  Args:
    points: true difference.
    deviation: standard deviation of the paired differences, in the same unit.
    seeds: N.
  """
  if seeds < 2:
    return 0.0
  if not deviation:
    return 1.0
  freedom, shift = seeds - 1, points * math.sqrt(seeds) / deviation
  bound = stats.t.ppf(1 - LEVEL / 2, freedom)
  found = stats.nct.sf(bound, freedom, shift)
  return float(found + stats.nct.cdf(-bound, freedom, shift))


def seeds_needed(points: float, deviation: float, wanted: float = POWER) -> int:
  """The smallest number of seeds that finds a difference; `MOST` at most."""
  low, high = 1, 2
  while power(points, deviation, high) < wanted:
    if high >= MOST:
      return MOST
    low, high = high, min(2 * high, MOST)
  while high - low > 1:
    middle = (low + high) // 2
    enough = power(points, deviation, middle) >= wanted
    low, high = (low, middle) if enough else (middle, high)
  return high


def detectable(deviation: float, seeds: int, wanted: float = POWER) -> float:
  """The smallest difference that a number of seeds finds, by bisection."""
  if seeds < 2:
    return math.inf
  low, high = 0.0, max(deviation, 1e-12)
  while power(high, deviation, seeds) < wanted:
    low, high = high, 2 * high
  while high - low > 1e-3 * high:
    middle = (low + high) / 2
    enough = power(middle, deviation, seeds) >= wanted
    low, high = (low, middle) if enough else (middle, high)
  return high


def interval(deviation: float, seeds: int) -> tuple[float, float]:
  """The 95% interval of a standard deviation (chi-square)."""
  quantiles = stats.chi2.ppf([1 - LEVEL / 2, LEVEL / 2], seeds - 1)
  low, high = deviation * np.sqrt((seeds - 1) / quantiles)
  return float(low), float(high)


def deviations(data: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
  """Standard deviation of the paired differences of each row, and its seeds.

  In points of accuracy, at the last step that all runs reach.
  """
  end = comparison.ends(dict(data)).get("step", 0)
  by_row = comparison.differences(dict(data), at=end)
  return {
      row: (100 * float(np.std([*x.values()], ddof=1)), len(x))
      for row, x in by_row.items()
      if row != data["reference"] and len(x) >= LEAST
  }


def known(
    folder: pathlib.Path, name: str, task: Any = None
) -> tuple[str, dict[str, tuple[float, int]]]:
  """The standard deviations of an ablation, or else of others.

  Args:
    folder: with the data of ablations; those of studies/ beside it count, too.
    name: of the ablation.
    task: see `task_of`; ablations of the same task count, if there are any.

  Returns:
    where they are from; and by row, for instance 'clip_sweep: 0.4'.
  """
  studies, files = {}, {}
  paths = {*folder.glob("*.json")}
  for place in (folder.parent, folder.parent.parent):
    paths |= {*place.glob("studies/*/*.json")}
  for path in sorted(paths, key=lambda x: x.stem):
    data = json.loads(path.read_text())
    if not (isinstance(data, dict) and {"reference", "runs"} <= data.keys()):
      continue
    of_path = _by_task(path.stem, data)
    studies |= of_path
    files |= dict.fromkeys(of_path, path)
  if name in studies and (own := deviations(studies[name])):
    return str(files[name]), own
  found = {k: rows for k, x in studies.items() if (rows := deviations(x))}
  same = {}
  if task is not None:
    same = {k: x for k, x in found.items() if task_of(studies[k]) == task}
  pooled = {
      f"{stem}: {row}": x
      for stem, rows in (same or found).items()
      for row, x in rows.items()
  }
  of_task = " of the same task" * bool(same)
  return f"other ablations{of_task} in {folder}", pooled


def _by_task(stem: str, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """Data by the name of its ablation: some files have several, by task."""
  if not any("task" in x for x in data["runs"]):
    return {stem: data}
  out = {}
  for task, fields in data["fields"].items():
    runs = [
        dict(
            row=x["row"],
            seed=x["seed"],
            evaluate=dict(
                step=x["steps"],
                tokens=x["tokens"],
                flops=[None] * len(x["steps"]),
                accuracy=x["accuracy"],
            ),
        )
        for x in data["runs"]
        if x["task"] == task and x["row"] in {row for row, *_ in fields["rows"]}
    ]
    name = f"{stem}-{task}" if out else stem
    out[name] = data | dict(common=fields, rows=fields["rows"], runs=runs)
  return out


def task_of(data: Mapping[str, Any]) -> Any:
  """Task and difficulties of the reference of an ablation; None: unknown.

  Args:
    data: `reference`, `rows` and `common`, as the ablation's config has them.
  """
  for row, path, own in data["rows"]:
    if row == data["reference"]:
      try:
        fields = config_lib.flat(config_files.read(path))
      except errors.ConfigError:
        return None
      fields |= {**data["common"], **own}
      return fields["task.name"], list(fields["task.difficulties"])
  return None


def lines(
    source: str,
    rows: Mapping[str, tuple[float, int]],
    seeds: int,
    points: float = POINTS,
) -> list[str]:
  """What the standard deviations say about an ablation, in two lines.

  Args:
    source: where the standard deviations are from.
    rows: of `known`.
    seeds: of the ablation.
    points: the difference.
  """
  if not rows:
    return [f"power: unknown, because {source} have no row with {LEAST} seeds"]
  quantiles = np.quantile([x for x, _ in rows.values()], SHOWN)
  needed = [seeds_needed(points, x) for x in quantiles]
  finds = [detectable(x, seeds) for x in quantiles]

  def spread(values, form):
    low, middle, high = (format(x, form) for x in values)
    return f"{middle} (most rows: {low} to {high})"

  return [
      f"power {POWER:.0%}: a difference of {points:g} points needs this many"
      f" seeds: {spread(needed, 'd')}",
      f"{seeds} seeds find a difference of this many points:"
      f" {spread(finds, '.1f')}; standard deviation of paired differences:"
      f" {spread(quantiles, '.1f')}, of {source}",
  ]


def table(
    rows: Mapping[str, tuple[float, int]], seeds: int, points: Sequence[float]
) -> list[str]:
  """A line for each row: its deviation, the seeds it needs, what seeds find."""
  wide = max(map(len, rows), default=0)
  heads = [f"{x:g} points" for x in points]
  out = [
      f"{'':{wide}}  {'deviation':>21}  "
      + "  ".join(f"{x:>10}" for x in heads)
      + f"  {seeds} seeds find"
  ]
  for name, (deviation, count) in rows.items():
    low, high = interval(deviation, count)
    spread = f"{deviation:.1f} ({low:.1f} to {high:.1f})"
    needed = [seeds_needed(x, deviation) for x in points]
    cells = [
        f"{'more' if n == MOST else n:>4} seeds".rjust(len("10 points") + 1)
        for n in needed
    ]
    finds = f"{detectable(deviation, seeds):.1f} points"
    out.append(f"{name:{wide}}  {spread:>21}  {'  '.join(cells)}  {finds}")
  return out


def report(
    source: str,
    rows: Mapping[str, tuple[float, int]],
    seeds: int,
    points: float,
) -> str:
  """What `ablate --power` prints; arguments are those of `lines`."""
  each = sorted({points / 2, points, 2 * points})
  return "\n".join(
      itertools.chain(
          lines(source, rows, seeds, points),
          ["", *table(rows, seeds, each)] if rows else [],
      )
  )
