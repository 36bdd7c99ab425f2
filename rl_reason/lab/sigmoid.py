"""The scaling curve of a run: its score as a sigmoid of the compute of RL.

  python -m rl_reason.lab.sigmoid runs/dapo-0 runs/vapo-0
  python -m rl_reason.lab.sigmoid runs/dapo-0 --axis=tokens

Fits ScaleRL's curve (arXiv:2510.13786, equation 1) to the evaluations of a run:

  R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

R0 is the score before RL, A the asymptote, B the steepness, and C_mid the
compute at which half of the gain is reached. The score is the accuracy; of runs
that nothing verifies it is the mean reward, whose asymptote may lie beyond the
evaluations by as much as they differ. A second fit sees only the first
half of the compute and predicts the rest, as the paper tests its curves.
"""

import argparse
import itertools
import pathlib
import sys
from typing import NamedTuple

import numpy as np
from scipy import optimize

from rl_reason.base.errors import RunError
from rl_reason.monitoring import run_log
from rl_reason.report import charts, scores

LEAST = 4  # evaluations after step 0 that three parameters need
RESAMPLES = 200
# The logarithms of B and of C_mid / largest C.
LOW, HIGH = (np.log(0.1), np.log(1e-3)), (np.log(30.0), np.log(1e2))


class Curve(NamedTuple):
  """The evaluations of a run.

  Attributes:
    name: of the score.
    first: the score before RL, R0.
    cost_S: compute of RL up to each later evaluation.
    score_S: their scores.
    error_S: standard errors of the scores.
    low, high: bounds of the asymptote.
    share: whether the score is an accuracy.
  """

  name: str
  first: float
  cost_S: np.ndarray
  score_S: np.ndarray
  error_S: np.ndarray
  low: float = 0.0
  high: float = 1.0
  share: bool = True

  def until(self, cost: float) -> "Curve":
    """The evaluations up to a compute."""
    keep_S = self.cost_S <= cost
    return self._replace(
        cost_S=self.cost_S[keep_S],
        score_S=self.score_S[keep_S],
        error_S=self.error_S[keep_S],
    )


class Fit(NamedTuple):
  """Parameters of a curve."""

  first: float
  asymptote: float
  steepness: float
  middle: float

  def __call__(self, cost_S: np.ndarray) -> np.ndarray:
    """The score at a compute."""
    gain = self.asymptote - self.first
    return self.first + gain / (1 + (self.middle / cost_S) ** self.steepness)


def read(workdir: pathlib.Path, axis: str) -> Curve:
  """Reads the curve of a run: on validation prompts, if it has some.

  Args:
    workdir: of the run.
    axis: 'steps', 'tokens' or 'flops'.

  Raises:
    RunError: the run has too few evaluations, or no score.
  """
  if not (workdir / run_log.FILES[0]).exists():
    raise RunError(
        f"{workdir}: no {run_log.FILES[0]}; name the --workdir of a run"
    )
  lines = run_log.read_metrics(workdir)
  found = {
      x["step"]: scores.scores(x) for x in scores.of_stage(lines, "evaluate")
  }
  name, _ = scores.headline(found.get(0, ()))
  if not name:
    raise RunError(f"{workdir}: the run has no score before RL")
  chosen = f"{scores.VALIDATION} {name}"
  name = chosen if chosen in found[0] else name
  spent = (
      {x: x for x in found} if axis == "steps" else charts.spent(lines, axis)
  )
  known = [
      (spent[step] - spent[0], x[name].value, (x[name].half or 0) / 1.96)
      for step, x in sorted(found.items())
      if step and name in x and step in spent
  ]
  evaluated = [step for step, x in found.items() if step and name in x]
  if evaluated and not known:
    raise RunError(
        f"{workdir}: {len(evaluated)} evaluations after step 0, and none with"
        f" its {axis} in {run_log.FILES[0]}: use --axis=steps"
    )
  if len(known) < LEAST:
    raise RunError(
        f"{workdir}: {len(known)} evaluations after step 0; the fit needs"
        f" {LEAST}: smaller evaluate.every, or more rl.steps"
    )
  cost_S, score_S, error_S = np.array(known).T
  first, share = found[0][name].value, found[0][name].share
  low, high = 0.0, 1.0
  if not share:
    least, most = min(first, *score_S), max(first, *score_S)
    spread = (most - least) or 1.0
    low, high = least - spread, most + spread
  # A share of 0 or 1 has no spread, but is not exact.
  error_S = np.maximum(error_S, 1e-3 * (high - low))
  return Curve(name, first, cost_S, score_S, error_S, low, high, share)


def fit(curve: Curve, start: Fit | None = None) -> Fit:
  """Returns the parameters with the least squared error in standard errors.

  Args:
    curve: evaluations of a run.
    start: of the search; None: a grid of starts.
  """
  top = curve.cost_S[-1]

  def parameters(x):
    return Fit(curve.first, x[0], np.exp(x[1]), top * np.exp(x[2]))

  def residuals(x):
    return (parameters(x)(curve.cost_S) - curve.score_S) / curve.error_S

  best = max(*curve.score_S, curve.first)
  low, high = (curve.low, *LOW), (curve.high, *HIGH)
  grid: list[tuple[float, float, float]] = [
      *itertools.product((best, (curve.high + best) / 2), (1, 4), (0.1, 0.5, 2))
  ]
  if start:
    grid = [(start.asymptote, start.steepness, start.middle / top)]
  found = [
      optimize.least_squares(
          residuals,
          np.clip([a, np.log(b), np.log(c)], low, high),
          bounds=(low, high),
      )
      for a, b, c in grid
  ]
  return parameters(min(found, key=lambda x: x.cost).x)


def intervals(curve: Curve, best: Fit, count: int = RESAMPLES) -> np.ndarray:
  """95% intervals of asymptote, steepness and middle: [2, 3].

  Percentiles of fits to curves that are redrawn around the best fit with the
  standard errors of the evaluations (parametric bootstrap).
  """
  noise = np.random.default_rng(0)
  redrawn = (
      curve._replace(score_S=noise.normal(best(curve.cost_S), curve.error_S))
      for _ in range(count)
  )
  return np.percentile([fit(x, best)[1:] for x in redrawn], (2.5, 97.5), axis=0)


def report(workdir: pathlib.Path, axis: str) -> list[str]:
  """Returns the lines about a run.

  Raises:
    RunError: see `read`.
  """
  curve = read(workdir, axis)
  best = fit(curve)
  limits = intervals(curve, best)
  unit = "FLOPs" if axis == "flops" else axis
  form = ".1%" if curve.share else ".4g"
  a, b, c = (
      f"{value:{form}} ({low:{form}} to {high:{form}})"
      for value, low, high, form in zip(
          best[1:], *limits, (form, ".2g", ".3g"), strict=True
      )
  )
  out = [
      f"{workdir}: {curve.name} at {len(curve.cost_S)} evaluations, up to"
      f" {curve.cost_S[-1]:.3g} {unit} of RL",
      f"  R0 {best.first:{form}}; A {a}; B {b}; C_mid {c} {unit}",
  ]
  low, high = limits[:, 0]
  if high - low > 0.1 * (curve.high - curve.low):
    out.append(
        "  The run does not determine its asymptote: more rl.steps, or more"
        " evaluate.interim_prompts."
    )
  half = curve.until(curve.cost_S[-1] / 2)
  count = len(half.cost_S)
  if count < LEAST:
    return [
        *out,
        f"  The first half has {count} evaluations; to predict the rest it"
        f" needs {LEAST}.",
    ]
  errors = np.abs(fit(half)(curve.cost_S) - curve.score_S)[count:]
  mean = errors.mean()
  shown = f"{100 * mean:.1f} points" if curve.share else f"{mean:.2g}"
  return [
      *out,
      "  Fitted to the first half, the curve predicts the rest with a mean"
      f" error of {shown}.",
  ]


def main(argv: list[str]) -> int:
  """Runs the command and returns the exit code."""
  parser = argparse.ArgumentParser(
      prog="python -m rl_reason.lab.sigmoid",
      description=__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  parser.add_argument("workdirs", nargs="+", type=pathlib.Path)
  parser.add_argument(
      "--axis", default="flops", choices=("steps", *charts.COSTS)
  )
  flags = parser.parse_args(argv)
  code = 0
  for workdir in flags.workdirs:
    try:
      print(*report(workdir.expanduser(), flags.axis), sep="\n")
    except RunError as e:
      print(f"error: {e}", file=sys.stderr)
      code = 1
  return code


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
