"""Expected bands: whose they are, what they hold, who says that a run left."""

import json
import pathlib
import re
import types

import numpy as np
import pytest
from conftest import ROOT

from bench import results
from bench.training import bands as bench_bands
from rl_reason.base import config as config_lib, feature
from rl_reason.checks import config_checks
from rl_reason.monitoring import bands, health
from rl_reason.report import page
from rl_reason.stages import interim
from studies.table import run as bench_table


def fields_of(config, **changes):
  overrides = {k.replace("__", "."): x for k, x in changes.items()}
  c, _ = config_checks.checked(config, overrides)
  return config_lib.flat(c)


@pytest.fixture
def at_root(monkeypatch):
  monkeypatch.chdir(ROOT)


@pytest.mark.slow
def test_the_file_is_what_the_committed_results_give(at_root):
  found = bench_bands.measure()["configs"]
  known = bands.recorded()["configs"]
  for name in found | known:  # else: python -m bench.training.bands
    for key in ("seeds", "source", "metrics"):
      assert json.loads(json.dumps(found[name][key])) == known[name][key], name


def test_each_recorded_config_finds_its_own_band(at_root):
  for name in bands.recorded()["configs"]:
    assert bands.find(fields_of(f"configs/{name}.py")).config == name


def test_only_overrides_that_matter_lose_the_band(at_root):
  same = dict(seed=5, evaluate__prompts=500, log__loggers="", rl__steps=30)
  assert bands.find(fields_of("configs/dapo.py", **same)).seeds == 16
  for other in (
      dict(optimizer__lr=1e-3),
      dict(model__width=32),
      dict(evaluate__temperature=0.5),  # is another accuracy
      dict(sft__habits__steps=81),
  ):
    assert bands.find(fields_of("configs/dapo.py", **other)) is None
  assert bands.find(fields_of("configs/dapo.py:smoke")) is None
  assert bands.find(fields_of("configs/dapo.py:shuffled")) is None
  assert bands.find({}) is None  # a run without its config


def test_a_further_run_leaves_the_band_as_rarely_as_it_says():
  rng, left = np.random.default_rng(0), 0
  for _ in range(200):
    runs_ND = rng.standard_t(5, (17, 1)) + rng.normal(0, 1, (17, 12)).cumsum(1)
    low_D, high_D = bench_bands.band(runs_ND[:16])
    left += np.any((runs_ND[16] < low_D) | (runs_ND[16] > high_D))
  assert 0.02 < left / 200 < 0.11  # 1 in 17 is 0.059


def test_recorded_runs_are_within_their_band(at_root):
  band = bands.find(fields_of("configs/grpo.py"))
  runs = [x for x in results.read("seeds")["runs"] if x["name"] == "GRPO"]
  outside = [
      x["seed"]
      for x in runs
      if any(
          band.left(bands.ACCURACY, step, value)
          for step, value in zip(x["steps"], x["accuracy"], strict=True)
      )
  ]
  assert len(outside) <= 1


def evaluation(step, accuracy, of="arithmetic"):
  return {
      "stage": "evaluate",
      "step": step,
      f"val-core/{of}/acc/mean@4": accuracy,
  }


def test_a_run_that_leaves_is_named_once_with_its_step(at_root):
  fields, said = fields_of("configs/grpo.py"), []
  watch = bands.Watch(fields, said.append)
  lines = [
      evaluation(0, 0.2),
      evaluation(10, 0.85, "validation"),  # chooses checkpoints
      evaluation(12, 0.1),  # no recorded run has this step
      evaluation(20, 0.1),
      evaluation(30, 0.1),
  ]
  for line in lines:
    watch.check(line)
  (text,) = said
  assert "outside the expected band at step 20: accuracy 10.0%" in text
  assert re.search(r"16 runs of grpo is \d+\.\d% to 9", text)
  assert "One run in 17" in text
  assert bands.of_run(lines, fields) == [text]
  (within,) = bands.of_run(lines[:3], fields)
  assert "the run is within it so far (accuracy to step 10); not" in within
  assert not bands.of_run(lines, fields | {"a": 1})  # a config of one's own


def test_a_run_is_within_a_band_only_where_it_was_compared(at_root):
  fields = fields_of("configs/grpo.py")
  metrics = bands.find(fields).metrics
  assert len(metrics) > 1
  sft = [{"stage": "sft", "step": n, "accuracy": 0.5} for n in range(3)]
  other = [evaluation(12, 0.5), {"stage": "rl", "step": 3, "actor/lr": 0.1}]
  for lines in ([], sft, sft + other):
    (none,) = bands.of_run(lines, fields)
    assert "nothing of this run was compared" in none
    assert "within" not in none
  whole = []
  for name, steps in metrics.items():
    for step, (low, high) in steps.items():
      mean = (low + high) / 2
      line = {"stage": "rl", "step": step, name: mean}
      whole.append(evaluation(step, mean) if name == bands.ACCURACY else line)
  (text,) = bands.of_run(whole, fields)
  assert text.endswith("the run is within it")
  without = [x for x in whole if x["stage"] == "rl"]
  (text,) = bands.of_run(without, fields)
  assert text.endswith(f"not compared: {bands.ACCURACY}")
  assert "so far" in text


def test_a_config_without_recorded_runs_says_so(monkeypatch):
  entry = dict(fields={}, absent=[], seeds=0, source="", metrics={})
  data = dict(base={"rl.steps": 3}, configs={"new": entry})
  monkeypatch.setattr(bands, "recorded", lambda: data)
  (none,) = bands.of_run([], {"rl.steps": 3})
  assert "no runs of new are recorded yet" in none


def test_runs_outside_a_band_are_counted():
  metrics = {
      bands.ACCURACY: {0: (0.1, 0.3), 5: (0.5, 0.9)},
      "response_length/mean": {1: (10, 20), 2: (10, 20)},
  }
  band = bands.Band("grpo", 16, metrics)
  curves = dict(reward=[0, 0], entropy=[1, 1])
  run = dict(steps=[0, 5], accuracy=[0.2, 0.6], length=[12, 13]) | curves
  assert not bench_bands._outside(band, run)
  assert not bench_bands._outside(band, run | dict(length=[12, None]))
  assert bench_bands._outside(band, run | dict(length=[12, 21]))
  assert bench_bands._outside(band, run | dict(accuracy=[0.2, 0.4]))


def test_a_step_without_rows_is_no_part_of_a_band():
  steps, values_NS = bench_bands._known([[1, None, 3], [4, 5, 6]])
  assert steps == [1, 3] and values_NS.tolist() == [[1, 3], [4, 6]]


def test_the_runs_for_bands_share_the_seeds_of_the_table(at_root):
  (jobs_of,) = bench_bands.plan(["chain"]).values()
  rows = [x for x in jobs_of if x.row]
  assert [x.seed for x in rows] == list(bench_table.seeds()[:16])
  assert {x.row for x in rows} == {"chain"}
  assert rows[0].fields["rl.steps"] == 30  # of the config itself


@pytest.fixture
def reward_band(monkeypatch, at_root):
  """The band of a metric that each RL step has."""
  metrics = {"critic/rewards/mean": {1: (0.1, 0.3), 2: (0.2, 0.4)}}
  band = bands.Band("grpo", 16, metrics)
  monkeypatch.setattr(bands, "find", lambda fields: band)


def test_health_says_at_which_rl_step_a_run_leaves(reward_band):
  from test_alerts import FIELDS, line

  said = []
  monitor = health.HealthMonitor(FIELDS, said.append)
  monitor.check(1, line(critic__rewards__mean=0.2))
  assert not any("band" in x for x in said)
  monitor.check(2, line(critic__rewards__mean=0.9))
  (text,) = (x for x in said if "band" in x)
  assert "at step 2: critic/rewards/mean 0.9" in text and "0.2 to 0.4" in text


def test_the_report_names_the_step(reward_band, tmp_path):
  path = pathlib.Path(tmp_path)
  (path / "config.json").write_text(json.dumps({"rl.steps": 2}))
  line = {"stage": "rl", "step": 2, "critic/rewards/mean": -0.5}
  (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
  notes = page.data_of(path)["notes"]
  assert any("band at step 2: critic/rewards/mean -0.5" in x for x in notes)


def test_an_evaluation_says_that_a_run_leaves(at_root, tmp_path, monkeypatch):
  monkeypatch.setattr(interim.accuracy, "calibration", lambda x, answer: [])
  c, _ = config_checks.checked(
      "configs/dapo.py", {"evaluate.validation": False}
  )
  said, name = [], "val-core/arithmetic/acc/mean@4"
  log = types.SimpleNamespace(metrics=lambda *x: None, samples=lambda x: None)
  output = types.SimpleNamespace(
      display=types.SimpleNamespace(
          say=said.append, steps_begin=lambda step: None
      ),
      log=log,
      workdir=tmp_path,
  )
  of_set = types.SimpleNamespace(
      name="arithmetic",
      measure="acc",
      lines=[],
      doubtful=[],
      chooses=False,
      measured=True,
  )
  values = {name: 0.95, f"{name}/ci95": 0.02, "val-aux/score": 0.95}
  values["val-aux/verifier_failures"] = 0

  def evaluate(*_, **__):
    return dict(values), [of_set]

  band = bands.Watch(config_lib.flat(c), said.append)
  for step in (0, 20):
    state = types.SimpleNamespace(
        step=step,
        parts=feature.Part(),
        counters=dict(tokens=1, flops=1),
        collector=None,
    )
    interim.run(c, evaluate, output, band, str, {}, state)
  assert any(
      "actor/entropy of 16 runs of dapo, steps 0 to 30" in x for x in said
  )
  texts = [x for x in said if "outside the expected band" in x]
  assert [("step 0" in x, "step 20" in x) for x in texts] == [(True, False)]
