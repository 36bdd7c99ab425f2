"""Benchmarks measured at tiny dims; peers need their own environments."""

import argparse
import dataclasses
import json

import numpy as np
import pytest

from bench import harness, ours, results, tables
from bench.libraries import rollout
from bench.speed import gpu, scaling
from rl_reason.report import figures

pytestmark = pytest.mark.slow
TAIL = harness.Size(16, 6, 12, tail=True, group=4)
EVEN = dataclasses.replace(TAIL, tail=False)
SMALL = dict(slots=8, micro=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Weights are made once."""
  path = tmp_path_factory.mktemp("runs")
  (path / "bench").mkdir()
  return path


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path, runs):
  """The committed tables are not overwritten."""
  monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
  monkeypatch.setattr(results, "RUNS", runs)


def test_a_table_is_measured_in_turns_and_written():
  table = dataclasses.replace(
      rollout.TABLE, cases=dict(one=TAIL), options=dict(ours=[SMALL])
  )
  flags = tables.arguments(table, ["--dims=tiny", "--repeats=2"])
  result = tables.compare(table, flags)
  found = result["cases"]["one"]["systems"]["ours"]
  assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
  assert found["first"] > max(found["seconds"])  # it compiled
  assert found["peak_mib"] > 50
  assert found["tokens"] == sum(harness.lengths(16, 12, 12 * 100 / 512))
  results.write("bench_x", result, tables.page(table, result))
  assert json.loads((results.RESULTS / "bench_x.json").read_text()) == result
  row = (results.RESULTS / "bench_x.md").read_text().split("| one | ")[1]
  assert row.startswith("ours | slots 8, micro 8 | ") and " 1.00 (" in row


@pytest.mark.parametrize("task", ["update", "rl_step"])
def test_ours_learns(task):
  job = harness.job(task, EVEN, "tiny", "float32", SMALL)
  step = ours.TASKS[task](job)
  first = step()["grad_norm"]
  assert np.isfinite(first) and first > 0
  assert step()["grad_norm"] != first  # the state went on


def test_ours_samples_what_the_job_asks_for():
  job = harness.job("rollout", TAIL, "tiny", "float32", SMALL)
  answer = ours.rollout(job)()
  harness.check(job, dict(ours=answer))
  with pytest.raises(RuntimeError, match="ours: 1 tokens, not"):
    harness.check(job, dict(ours=dict(tokens=1)))


def test_a_worker_that_dies_is_named():
  job = harness.job("rollout", EVEN, "tiny", "float32", dict(batch=8))
  job["weights"] = "nowhere"
  with pytest.raises(RuntimeError, match="ours died, see .*nowhere"):
    harness.race(dict(ours=job), harness.ENVIRONMENTS, 1)


def test_one_device_against_its_limits():
  flags = "--dims=tiny --dtype=float32 --rows=8 --group=4 --prompt=4"
  flags += " --response=8 --repeats=1 --copy_mib=8 --product=128 --remat=none"
  flags += " --tail --slots=4"
  parser = argparse.ArgumentParser()
  gpu.flags(parser)
  result = gpu.measure(parser.parse_args(flags.split()))
  for task, limit in result["limit"].items():
    assert 0 < limit < 1.5 * result["seconds"]["xla"][task]
  gap = result["parity"]["xla"]
  assert gap["logps_max"] == gap["gradient"] == 0  # the model is in float32
  assert 0 < gap["sampler_max"] < 1e-3
  page = gpu.page(dict(measured=dict(tiny=result)))
  assert "| update |" in "\n".join(page) and "## tiny" in page


def test_scaling_is_measured_and_drawn():
  pytest.importorskip("matplotlib")
  point = dict(rows=2, length=40, micro=2, layers=1)
  result = scaling.run("tiny", 1, dict(depth=[point]))
  (found,) = result["axes"]["depth"]
  assert found["compile"] > max(found["seconds"]) > 0
  deeper = found | dict(layers=2, seconds=[7.0, 8.0, 9.0])
  result["axes"] = {axis: [found, deeper] for axis in scaling.AXES}
  page = "\n".join(scaling.page(result))
  assert "| depth | 2 | 8.000 | 7.000 to 9.000 |" in page
  results.RESULTS.mkdir()
  path = results.RESULTS / "bench_scaling.png"
  figures.draw(scaling.figure(result), path)
  assert path.stat().st_size > 10_000
