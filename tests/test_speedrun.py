"""The speedrun: its rules, its records, and the config that it runs."""

import copy
import types

import pytest

from bench import results, speedrun
from rl_reason.base import config as config_lib
from rl_reason.checks import checked


@pytest.fixture
def record():
  """A record that breaks no rule."""
  one = dict(seconds=50.0, cpu_seconds=80.0, product=500.0, others=0.01)
  one |= dict(before=0.2, after=0.97, steps=20, tokens=1000)
  return dict(
      name="new",
      date="2026-11-23",
      command="python",
      config={"sft.steps": 600},
      commits=["0" * 40],
      environment=dict(backend="cpu"),
      runs=[dict(seed=x) | one for x in speedrun.SEEDS],
  )


def test_the_records_of_the_ledger_break_no_rule():
  records = results.read("speedrun")["records"]
  assert {x["name"]: speedrun.faults(x) for x in records} == {
      x["name"]: [] for x in records
  }


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda x: x["runs"][3].update(after=0.6),
            "94.7% - 4.9% after RL is less than 95%",
        ),
        (
            lambda x: [y.update(after=0.9499) for y in x["runs"]],
            "95.0% - 0.0% after RL is less than 95%",
        ),
        (lambda x: x["runs"][3].update(before=0.41), "begins RL at 41.0%"),
        (lambda x: x["runs"].append(x["runs"].pop(0)), "in this order"),
        (lambda x: x["runs"][0].update(seed=1), "in this order"),
        (lambda x: x["config"].update({"model.path": "m"}), "model.path"),
        (lambda x: x["config"].update({"evaluate.mean_of": 1}), "mean_of"),
        (lambda x: x["commits"].append("1"), "one, without edits"),
        (lambda x: x.update(commits=["0-dirty"]), "one, without edits"),
        (lambda x: x["environment"].update(backend="gpu"), "backend gpu"),
    ],
)
def test_a_record_that_breaks_a_rule(record, change, fault):
  assert speedrun.faults(record) == []
  change(record)
  [line] = speedrun.faults(record)
  assert fault in line


def test_preliminary_records_hold_no_place(record):
  slow = copy.deepcopy(record) | dict(name="slow machine")
  for x in slow["runs"]:  # twice the seconds at 40% of the rate: less work
    x |= dict(seconds=100.0, product=200.0)
  few = copy.deepcopy(record) | dict(name="few")
  few["runs"] = few["runs"][:3]
  busy = copy.deepcopy(record) | dict(name="busy")
  busy["runs"][0] |= dict(others=3.5, seconds=1.0)
  assert speedrun.preliminary(few) == ["3 of 16 seeds"]
  assert speedrun.preliminary(busy) == ["other processes used up to 3.5 cores"]
  assert speedrun.scaled(record) == 50 and speedrun.scaled(slow) == 40
  order = [x["name"] for x in speedrun.ranked([few, busy, record, slow])]
  assert order == ["slow machine", "new", "busy", "few"]


def test_a_record_is_appended_or_refused(record, monkeypatch, tmp_path):
  """A name stands for one record; a fault leaves the ledger as it was."""
  monkeypatch.setattr(results, "RESULTS", tmp_path)
  old = copy.deepcopy(record) | dict(name="old")
  results.write_data("speedrun", dict(records=[old, record | dict(date="")]))
  monkeypatch.setattr(speedrun, "record", lambda _: record)
  given = types.SimpleNamespace(check=False, name="new")
  assert speedrun.measure(given)["records"] == [old, record]
  record["runs"][0]["after"] = 0.5
  with pytest.raises(SystemExit, match="no record: .* is less than 95%"):
    speedrun.measure(given)
  given.check = True
  with pytest.raises(SystemExit) as e:
    speedrun.measure(given)
  assert e.value.code == 0


def test_the_config_of_the_speedrun_keeps_the_rules():
  """Every fixed field exists and is as in configs/dapo.py."""
  c, notes = checked.checked("configs/speedrun.py", {})
  assert notes == []
  default = config_lib.flat(checked.checked("configs/dapo.py", {})[0])
  assert set(speedrun.FIXED) <= default.keys()
  different = speedrun._different(config_lib.flat(c))
  assert different and not set(different) & set(speedrun.FIXED)
  assert len(set(speedrun.SEEDS)) == 16
