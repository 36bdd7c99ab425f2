"""The power of paired comparisons: known values, simulations, the command."""

import json

import numpy as np
import pytest
from ablate_runs import SMOKE, fake_command, write_config
from conftest import ROOT
from scipy import stats

from rl_reason.lab import ablate, power


@pytest.mark.parametrize(
    "points, seeds", [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5)]
)
def test_the_seeds_of_published_tables(points, seeds):
  """Two-sided paired t-test at 5% and 80%, as tables and G*Power have them."""
  assert power.seeds_needed(points, 1.0) == seeds
  assert power.power(points, 1.0, seeds) >= 0.8
  assert power.power(points, 1.0, seeds - 1) < 0.8
  # The unit does not matter, and the two questions have one answer.
  assert power.seeds_needed(10 * points, 10.0) == seeds
  found = power.detectable(1.0, seeds)
  assert found <= points and power.power(found, 1.0, seeds) >= 0.8


@pytest.mark.parametrize("points, seeds", [(0.0, 5), (1.0, 5), (1.0, 10)])
def test_power_is_that_of_simulated_ladders(points, seeds):
  """How often the interval of `comparison.interval` excludes 0."""
  rng = np.random.default_rng(0)
  values = rng.normal(points, 1.0, (20_000, seeds))
  bound = stats.t.ppf(0.975, seeds - 1) * stats.sem(values, axis=1)
  share = (abs(values.mean(1)) > bound).mean()
  assert share == pytest.approx(power.power(points, 1.0, seeds), abs=0.012)


def test_the_interval_of_a_standard_deviation_holds_for_its_share_of_samples():
  rng = np.random.default_rng(0)
  intervals = [
      power.interval(x, 5) for x in rng.normal(0, 3.0, (800, 5)).std(1, ddof=1)
  ]
  held = np.mean([low < 3.0 < high for low, high in intervals])
  assert held == pytest.approx(0.95, abs=0.025)


def _data(effects):
  runs = [
      dict(
          row=row,
          seed=seed,
          evaluate=dict(
              step=[0, 5], tokens=[0, 9], flops=[0, 9], accuracy=[0.1, x]
          ),
      )
      for row, values in effects.items()
      for seed, x in enumerate(values)
  ]
  return dict(reference="low", rows=[[k, "", {}] for k in effects], runs=runs)


def test_deviations_are_of_paired_differences(tmp_path):
  seeds = np.array([0.2, 0.4, 0.6])  # cancels in pairs
  data = _data(dict(low=seeds, high=seeds + [0.01, 0.03, 0.02], few=seeds[:2]))
  ((row, (deviation, count)),) = power.deviations(data).items()
  assert (row, count) == ("high", 3) and deviation == pytest.approx(1.0)
  (tmp_path / "one.json").write_text(json.dumps(data))
  (tmp_path / "other.json").write_text(json.dumps(dict(runs=[])))
  (tmp_path / "list.json").write_text("[]")
  assert power.known(tmp_path, "one")[1].keys() == {"high"}
  source, rows = power.known(tmp_path, "new")
  assert "other ablations" in source and rows.keys() == {"one: high"}
  assert "power: unknown" in power.lines("others", {}, 5)[0]


def test_a_table_of_tasks_has_an_ablation_for_each_task(tmp_path, monkeypatch):
  """And a new study learns from the studies of its own task."""
  monkeypatch.chdir(ROOT)
  rng = np.random.default_rng(0)
  noise = dict(arithmetic=0.01, countdown=0.1)
  rows = [["dapo", "configs/dapo.py", {}], ["grpo", "configs/grpo.py", {}]]
  runs = [
      dict(
          task=task,
          row=row,
          seed=seed,
          steps=[0, 5],
          tokens=[0, 9],
          accuracy=[0.2, 0.5 + rng.normal(0, scale)],
      )
      for task, scale in noise.items()
      for row, *_ in rows
      for seed in range(40)
  ]
  runs.append(runs[0] | dict(row="start", steps=[0], accuracy=[0.2]))
  fields = {"arithmetic": {}, "countdown": {"task.name": "countdown"}}
  fields = {k: x | dict(rows=rows) for k, x in fields.items()}
  data = dict(reference="dapo", fields=fields, runs=runs)
  (tmp_path / "table.json").write_text(json.dumps(data))
  found = {}
  for name in ("table", "table-countdown"):
    source, found[name] = power.known(tmp_path, name)
    assert source == str(tmp_path / "table.json")
    assert found[name].keys() == {"grpo"}
  ratio = found["table-countdown"]["grpo"][0] / found["table"]["grpo"][0]
  assert 6 < ratio < 15
  for own, wanted in (
      ({}, "table: "),
      (fields["countdown"], "table-countdown: "),
  ):
    common = {k: x for k, x in own.items() if k != "rows"}
    task = power.task_of(dict(reference="dapo", rows=rows, common=common))
    source, pooled = power.known(tmp_path, "new", task)
    assert "of the same task" in source and [*pooled] == [f"{wanted}grpo"]
  moved = dict(reference="a", rows=[["a", "no_such_file.py", {}]], common={})
  assert power.task_of(moved) is None
  assert len(power.known(tmp_path, "new", ("xor", []))[1]) == 2


TWO_ROWS = f"""
    title="A try", question="Does it?", seeds=(1, 2, 3), reference="low",
    rows=[
        ("low", {SMOKE!r}, {{}}),
        ("high", {SMOKE!r}, {{"optimizer.lr": 0.4}}),
    ],
    common={{"rl.steps": 4}},
"""


def test_ablate_says_before_a_run_how_many_seeds_a_difference_needs(
    tmp_path, monkeypatch, capsys
):
  child = fake_command(tmp_path, monkeypatch, ROOT)
  seeds = np.array([0.2, 0.4, 0.6])
  data = _data(dict(low=seeds, high=seeds + [0.01, 0.03, 0.02]))
  out = tmp_path / "out"
  out.mkdir()
  (out / "earlier.json").write_text(json.dumps(data))
  config = write_config(tmp_path, TWO_ROWS)
  flags = [config, f"--out={out}", f"--workdir={tmp_path / 'w'}"]
  assert ablate.main([*flags, "--power=1"], child) == 0
  text = capsys.readouterr().out
  assert "a difference of 1 points needs this many seeds: 10 (" in text
  assert "earlier: high" in text and "10 seeds" in text
  assert not (tmp_path / "w").exists()  # nothing ran
  assert ablate.main(flags, child) == 0
  text = capsys.readouterr().out
  assert text.index("a difference of 2 points needs") < text.index("started")
  with pytest.raises(SystemExit):
    ablate.main([*flags, "--power=0"], child)
  assert "--power: a difference above 0" in capsys.readouterr().err
