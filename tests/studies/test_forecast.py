"""Forecasts of the end of a run from its first quarter."""

import json

import numpy as np
import pytest

from bench import results
from studies.forecast import run as forecast

pytestmark = pytest.mark.slow


def run(study, row, seed, first, early, end):
  return forecast.Run(study, row, seed, first, early, end)


@pytest.fixture
def made():
  """Ends that are a known function of the first quarter, plus noise."""
  rng = np.random.default_rng(0)
  out = []
  for seed in range(60):
    for row in range(3):
      first, early = rng.uniform(0.1, 0.3), rng.uniform(0.3, 0.6)
      end = 0.1 + 0.5 * first + early + 0.05 * row + rng.normal(0, 0.01)
      out.append(run(f"s{seed % 4}", str(row), seed, first, early, end))
  return out


def test_a_forecast_learns_on_one_half_and_is_judged_on_the_other(made):
  known = [x for x in made if x.calibrates]
  tested = [x for x in made if not x.calibrates]
  # The rows of a seed stay together.
  assert {x.cluster for x in known}.isdisjoint(x.cluster for x in tested)
  assert 60 < len(known) < 120
  seen = {
      k: forecast.judge(known, tested, f) for k, f in forecast.FORECASTS.items()
  }
  errors = [x["error"] for x in seen.values()]
  assert errors[0] > 8 > errors[2]  # nothing; least squares without the row
  low, high = seen["the first 25%: least squares"]["error_interval"]
  assert low < errors[2] < high
  # Noise of 1 point is left where the row is known, too.
  assert errors[4] < errors[2] and errors[4] < errors[3]
  assert seen["the first 25%: least squares"]["explained"] > 0.7
  assert abs(seen["the first 25%: least squares"]["covered"] - 0.9) < 0.08


def test_the_page_has_all_committed_runs():
  """Else: python -m studies.forecast.run."""
  found = list(forecast.runs())
  assert {x.study for x in found} >= {"chain", "credit", "knobs", "xor"}
  studies = results.read(forecast.NAME)["studies"]
  assert {k: sum(x) for k, x in studies.items()} == {
      study: sum(x.study == study for x in found)
      for study in {x.study for x in found}
  }


def test_who_is_ahead():
  made = []
  for seed in range(6):
    made += [
        run("s", "a", seed, 0.1, 0.2, 0.5),
        run("s", "b", seed, 0.1, 0.3, 0.6 if seed else 0.4),
        run("s", "c", seed, 0.1, 0.2, 0.505),  # as good as a
    ]
  found = forecast.ahead(made)
  # b against a and against c: right but for seed 0; a and c are no pair.
  assert found["pairs"] == 12 and found["ties"] == 0
  assert found["right"] == pytest.approx(10 / 12, abs=1e-3)


def test_runs_are_read_from_results_of_any_form(tmp_path, monkeypatch):
  monkeypatch.setattr(results, "RESULTS", tmp_path)
  monkeypatch.setattr(results, "STUDIES", tmp_path)
  monkeypatch.setattr(results, "CONFORMANCE", tmp_path / "none")
  curve = dict(step=[0, 5, 10, 20], accuracy=[0.1, 0.2, 0.3, 0.4])
  late = dict(steps=[0, 10, 20], accuracy=[0.1, 0.3, 0.4])
  lines = [
      dict(row="a", seed=1, evaluate=curve),
      dict(name="b", seed=2, task="t", **dict(late, steps=[0, 5, 20])),
      dict(row="c", seed=1, **late),  # nothing in the first quarter
      dict(seed=3, accuracy=0.5, steps=3),  # no curve
      dict(row="d", accuracy=[0.1]),
  ]
  (tmp_path / "x.json").write_text(json.dumps(dict(runs=lines)))
  (tmp_path / "y.json").write_text(json.dumps([1, 2]))
  found = list(forecast.runs())
  assert found == [
      run("x", "a", 1, 0.1, 0.2, 0.4),
      run("x t", "b", 2, 0.1, 0.3, 0.4),
  ]
