"""How well do the first 25% of a run tell its end?

  python -m studies.forecast.run            # seconds: reads all data
  python -m studies.forecast.run --table    # only the page, from JSON

Every committed run with a curve of held-out accuracy is used. A hash of study
and seed decides whether a run calibrates the forecasts or tests them, so that
the rows of a seed, which share their first policy, stay together. Writes
forecast.{json,md}.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bench import results
from rl_reason.lab import comparison

NAME = "forecast"
SHARE = 0.25  # of the steps, that a forecast may see
RESAMPLES = 2000
CLEAR = 0.02  # difference of two ends that is worth to be foreseen
COVERAGE = 0.9  # of the calibrated interval around a forecast


class Run(NamedTuple):
  """A run: what its first quarter shows, and its end.

  Attributes:
    study: name of the data.
    row: of the study.
    seed: of the run.
    first: held-out accuracy before RL.
    early: accuracy of the last evaluation in the first quarter.
    end: accuracy at the end.
  """

  study: str
  row: str
  seed: int
  first: float
  early: float
  end: float

  @property
  def cluster(self) -> tuple[str, int]:
    """Runs that share a seed of a study."""
    return self.study, self.seed

  @property
  def calibrates(self) -> bool:
    """Whether the run belongs to the half that calibrates."""
    digest = hashlib.sha256(f"{self.study} {self.seed}".encode()).digest()
    return digest[0] % 2 == 0


def curve(run: dict, data: dict) -> tuple[list[int], list[float]] | None:
  """Steps and accuracies of the evaluations of a run; None without a curve.

  A study whose runs have the same evaluations keeps their steps in `data`.
  """
  columns = run.get("evaluate", run)
  if not isinstance(columns, dict):
    return None
  steps = columns.get("step", columns.get("steps", data.get("steps")))
  accuracy = columns.get("accuracy", columns.get("mean@4"))
  if not (isinstance(steps, list) and isinstance(accuracy, list)):
    return None
  return (steps, accuracy) if len(steps) == len(accuracy) else None


def runs() -> Iterator[Run]:
  """The committed runs with an evaluation in their first quarter."""
  for path in results.files():
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or not isinstance(data.get("runs"), list):
      continue
    for x in data["runs"]:
      known = isinstance(x, dict) and "seed" in x
      found = curve(x, data) if known else None
      if found is None:
        continue
      steps, accuracy = found
      seen = [y for t, y in zip(*found, strict=True) if t <= SHARE * steps[-1]]
      if len(seen) < 2 or None in (*seen, accuracy[-1]):
        continue  # without RL, or evaluated too late
      row = x.get("row", x.get("name", str(x.get("cell"))))
      study = f"{path.stem} {x['task']}" if "task" in x else path.stem
      yield Run(study, row, x["seed"], seen[0], seen[-1], accuracy[-1])


# --- forecasts: (calibrating runs) -> (run -> its end) ------------------------

Forecast = Callable[[Run], float]


def constant(known: list[Run]) -> Forecast:
  """The mean end of all calibrating runs: a forecast that sees nothing."""
  mean = float(np.mean([x.end for x in known]))
  return lambda run: mean


def same_as_now(known: list[Run]) -> Forecast:
  """The end is what the first quarter has reached."""
  del known
  return lambda run: run.early


def _features(run: Run) -> list[float]:
  return [1.0, run.first, run.early, run.early**2]


def early_curve(known: list[Run]) -> Forecast:
  """Least squares on the first quarter of the curve."""
  inputs = np.array([_features(x) for x in known])
  weights = np.linalg.lstsq(inputs, np.array([x.end for x in known]))[0]
  return lambda run: float(np.clip(np.dot(_features(run), weights), 0, 1))


def same_row(known: list[Run]) -> Forecast:
  """The mean end of the other seeds of the row; without any, of all runs."""
  ends: dict[tuple[str, str], list[float]] = {}
  for x in known:
    ends.setdefault((x.study, x.row), []).append(x.end)
  rest = constant(known)
  means = {k: float(np.mean(x)) for k, x in ends.items()}
  return lambda run: means.get((run.study, run.row), rest(run))


def same_row_and_curve(known: list[Run]) -> Forecast:
  """The mean of the row, corrected by how this seed differs so far."""
  base = same_row(known)
  means: dict[tuple[str, str], list[tuple[float, float]]] = {}
  for x in known:
    means.setdefault((x.study, x.row), []).append((x.first, x.early))
  usual = {k: np.mean(x, 0) for k, x in means.items()}

  def differs(run: Run) -> np.ndarray:
    so_far = np.array([run.first, run.early])
    return so_far - usual.get((run.study, run.row), so_far)

  inputs = np.array([differs(x) for x in known])
  rest = np.array([x.end - base(x) for x in known])
  weights = np.linalg.lstsq(inputs, rest)[0]
  return lambda run: float(np.clip(base(run) + differs(run) @ weights, 0, 1))


FORECASTS: dict[str, Callable[[list[Run]], Forecast]] = {
    "nothing: the mean of all runs": constant,
    "the first 25%: no change from there": same_as_now,
    "the first 25%: least squares": early_curve,
    "other seeds of the row": same_row,
    "other seeds of the row, and the first 25%": same_row_and_curve,
}


# --- how good they are -------------------------------------------------------


def _by_cluster(runs: list[Run], values: np.ndarray) -> list[np.ndarray]:
  """Values of runs, gathered by study and seed."""
  out: dict[tuple[str, int], list[float]] = {}
  for run, value in zip(runs, values, strict=True):
    out.setdefault(run.cluster, []).append(value)
  return [np.array(x) for x in out.values()]


def _interval(clusters: list, statistic: Callable) -> list[float]:
  """95% interval of a statistic, by a bootstrap over study and seed."""
  rng, found = np.random.default_rng(0), []
  for _ in range(RESAMPLES):
    at = rng.integers(len(clusters), size=len(clusters))
    found.append(statistic(np.concatenate([clusters[i] for i in at])))
  return [round(float(x), 4) for x in np.quantile(found, [0.025, 0.975])]


def _rms(x: np.ndarray) -> float:
  return float(np.sqrt(np.mean(x**2)))


def _within(tested: list[Run]) -> float:
  """The standard deviation of the ends around the means of their studies."""
  of_study: dict[str, list[float]] = {}
  for x in tested:
    of_study.setdefault(x.study, []).append(100 * x.end)
  return _rms(
      np.concatenate([np.array(x) - np.mean(x) for x in of_study.values()])
  )


def judge(known: list[Run], tested: list[Run], make) -> dict[str, Any]:
  """Errors of a forecast on the tested runs, in points."""
  forecast = make(known)
  errors = np.array([100 * (forecast(x) - x.end) for x in tested])
  before = [abs(100 * (forecast(x) - x.end)) for x in known]
  half = float(np.quantile(before, COVERAGE))
  spread = float(np.std([100 * x.end for x in tested]))
  return dict(
      error=round(_rms(errors), 2),
      error_interval=_interval(_by_cluster(tested, errors), _rms),
      median=round(float(np.median(np.abs(errors))), 2),
      explained=round(1 - (_rms(errors) / spread) ** 2, 3),
      within=round(1 - (_rms(errors) / _within(tested)) ** 2, 3),
      half=round(half, 2),
      covered=round(float(np.mean(np.abs(errors) <= half)), 3),
  )


def ahead(tested: list[Run]) -> dict[str, Any]:
  """How often the row that is ahead after the first quarter ends ahead.

  Pairs are rows of one study with one seed whose ends differ by `CLEAR`.
  """
  clusters, ties = [], 0
  for _, group in itertools.groupby(
      sorted(tested, key=lambda x: x.cluster), key=lambda x: x.cluster
  ):
    right = []
    for a, b in itertools.combinations(group, 2):
      if abs(a.end - b.end) < CLEAR:
        continue
      if a.early == b.early:
        ties += 1
        continue
      right.append(float((a.early > b.early) == (a.end > b.end)))
    if right:
      clusters.append(np.array(right))
  every = np.concatenate(clusters)
  return dict(
      pairs=len(every),
      ties=ties,
      right=round(float(every.mean()), 4),
      interval=_interval(clusters, np.mean),
  )


def across_studies(found: list[Run]) -> dict[str, Any]:
  """`early_curve` of each study, calibrated on all other studies."""
  tested, errors = [], []
  for study in sorted({x.study for x in found}):
    forecast = early_curve([x for x in found if x.study != study])
    for x in found:
      if x.study == study:
        tested.append(x)
        errors.append(100 * (forecast(x) - x.end))
  values = np.array(errors)
  return dict(
      error=round(_rms(values), 2),
      error_interval=_interval(_by_cluster(tested, values), _rms),
  )


def measure(_) -> dict:
  """Calibrates on one half of the runs, and tests on the other."""
  found = list(runs())
  known = [x for x in found if x.calibrates]
  tested = [x for x in found if not x.calibrates]
  studies = {
      study: [sum(x.study == study for x in half) for half in (known, tested)]
      for study in sorted({x.study for x in found})
  }
  return dict(
      command="python -m studies.forecast.run",
      studies=studies,
      spread=round(float(np.std([100 * x.end for x in tested])), 2),
      within=round(_within(tested), 2),
      forecasts={
          name: judge(known, tested, make) for name, make in FORECASTS.items()
      },
      ahead=ahead(tested),
      across=across_studies(found),
  )


def page(result: dict) -> list[str]:
  """Returns the page in Markdown."""
  known, tested = (
      sum(x[i] for x in result["studies"].values()) for i in (0, 1)
  )
  seen = result["forecasts"]["the first 25%: least squares"]
  row = result["forecasts"]["other seeds of the row"]
  both = result["forecasts"]["other seeds of the row, and the first 25%"]
  pairs = result["ahead"]

  def points(x, key="error"):
    low, high = x[f"{key}_interval"]
    return f"{x[key]:.1f} ({low:.1f} to {high:.1f})"

  about = (
      "Can a run be ended early? Data in `forecast.json`. All committed"
      f" runs with an evaluation in the first quarter of their RL steps:"
      f" {known} calibrate the forecasts, {tested} test them; a hash of study"
      " and seed chooses. A forecast sees held-out accuracy before RL and at"
      " the last evaluation within the first 25% of the steps. Error: root mean"
      " square of the tested runs, in points of accuracy, with a 95% interval"
      " (bootstrap over study and seed). Explained: share of the variance of"
      f" the ends, whose standard deviation is {result['spread']:.1f} points."
      " Within studies: of the variance around the mean end of the study"
      f" ({result['within']:.1f} points), which the first three forecasts do"
      " not know; a share below 0 is worse than this mean. In most studies the"
      " evaluations during a run have fewer prompts than the last one."
  )
  finding = (
      f"The first 25% of a run tell its end to {points(seen)} points, which"
      f" explains {seen['explained']:.0%} of the variance over all studies"
      f"{_within_studies(seen['within'])}. The row of a study"
      f" tells it to {points(row)} points from its other seeds alone, and to"
      f" {points(both)} with the first 25% of the run. Of two runs of a study"
      f" with the same seed whose ends differ by {100 * CLEAR:g} points or"
      " more, the run that is ahead after 25% ends ahead in"
      f" {pairs['right']:.0%}"
      f" ({pairs['interval'][0]:.0%} to {pairs['interval'][1]:.0%}) of"
      f" {comparison.amount(pairs['pairs'])} pairs."
  )
  out = [
      "| the forecast knows | error, points | median error | explained | within"
      f" studies | {COVERAGE:.0%} interval, ± points | runs within it |",
      "|---|---|---|---|---|---|---|",
  ]
  for name, x in result["forecasts"].items():
    explained, within = (
        f"{round(100 * x[k]):d}%" for k in ("explained", "within")
    )
    cells = [points(x), x["median"], explained, within, x["half"]]
    out.append(results.row(name, *cells, f"{x['covered']:.0%}"))
  out += [
      "",
      "The interval is calibrated on the first half of the runs; the last"
      " column is the share of the tested runs within it. Least squares on all"
      " other studies, tested on the runs of a study that the fit has never"
      f" seen: {points(result['across'])} points.",
      "",
      "| study | runs that calibrate | tested |",
      "|---|---|---|",
  ]
  for study, counts in result["studies"].items():
    out.append(results.row(study, *counts))
  return results.document(
      "The end of a run, forecast from its first 25%",
      finding,
      about,
      out,
      made=f"Made by `{result['command']}`.",
      versions=["Versions: those of the studies whose runs these are."],
  )


def _within_studies(explained: float) -> str:
  if explained < 0:
    return "; within a study the mean of its runs is the better forecast"
  return f", and {explained:.0%} within studies"


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page)
