"""The speedrun: its rules, its records, and the config that it runs."""

import copy
import json
import subprocess
import types

import pytest

from bench import results
from bench.training import speedrun
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks


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
        (lambda x: x["config"].update({"rl.init": "run"}), "rl.init"),
        (lambda x: x["config"].update({"evaluate.mean_of": 1}), "mean_of"),
        (lambda x: x["config"].update({"evaluate.top_k": 1}), "top_k"),
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


def test_the_rate_of_the_machine_is_that_without_flags(monkeypatch):
  """Flags of a run would change the ratio that its seconds are scaled with."""
  monkeypatch.setenv("XLA_FLAGS", speedrun.FLAGS)
  monkeypatch.setenv("OMP_NUM_THREADS", "1")
  seen = {}

  def process(*_, env, **__):
    seen.update(env)
    return types.SimpleNamespace(stdout="500.04\n")

  monkeypatch.setattr(speedrun.subprocess, "run", process)
  assert speedrun.product() == 500.0
  assert not {"XLA_FLAGS", "OMP_NUM_THREADS"} & set(seen)
  assert seen["JAX_PLATFORMS"] == "cpu" and "PATH" in seen


def _given(**changes):
  """Flags of the command."""
  given = dict(name="new", config="configs/speedrun.py", override=[], seeds=1)
  given |= dict(xla_flags="", again=False, collect=False, check=False)
  return types.SimpleNamespace(**given | changes)


def test_a_finished_run_counts_for_its_own_command(monkeypatch, tmp_path):
  monkeypatch.setattr(results, "RUNS", tmp_path)
  made = []

  def run(place, args, *_):
    place.mkdir(parents=True, exist_ok=True)
    made.append(args)
    one = dict(seed=speedrun.SEEDS[0], seconds=1, cpu_seconds=1, after=1.0)
    return one | dict(others=0.0, environment={"git commit": "0"})

  monkeypatch.setattr(speedrun, "run", run)
  first = speedrun.record(_given())
  assert first == speedrun.record(_given()) and len(made) == 1
  assert "command" not in first["runs"][0]
  other = ["--config.rl.steps=7"]
  with pytest.raises(SystemExit, match="result.json: is of"):
    speedrun.record(_given(override=other))
  with pytest.raises(SystemExit, match="another --name keeps them"):
    speedrun.record(_given(xla_flags="--flag"))
  path = next(tmp_path.rglob("result.json"))
  path.write_text(json.dumps(first["runs"][0] | {"environment": {}}))
  with pytest.raises(SystemExit, match="is of unknown, config unknown;"):
    speedrun.record(_given())  # of a version that did not keep the command
  found = speedrun.record(_given(override=other, again=True))
  assert found["config"]["rl.steps"] == 7 and len(made) == 2


def test_code_without_a_commit_makes_no_record(monkeypatch, tmp_path):
  """A config, own functions next to it, and edits."""
  monkeypatch.setattr(results, "ROOT", tmp_path)
  (tmp_path / "rl_reason").mkdir()
  (tmp_path / "rl_reason" / "__init__.py").write_text("")
  (tmp_path / "mine.py").write_text("1")

  def git(*args):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *args], cwd=tmp_path, check=True)

  git("init", "-q")
  git("add", "rl_reason")
  git("commit", "-qm", "package")
  with pytest.raises(SystemExit, match="commit: mine.py; a record"):
    speedrun.require_commit("mine.py:variant")
  with pytest.raises(SystemExit, match="commit: /elsewhere.py, mine.py;"):
    speedrun.require_commit("/elsewhere.py")
  git("add", "mine.py")
  git("commit", "-qm", "config")
  speedrun.require_commit("mine.py:variant")
  (tmp_path / "mine.py").write_text("2")
  with pytest.raises(SystemExit, match="edits of committed files"):
    speedrun.require_commit("mine.py:variant")


def test_a_record_is_appended_or_refused(record, monkeypatch, tmp_path):
  """A name stands for one record; a fault leaves the ledger as it was."""
  monkeypatch.setattr(results, "RESULTS", tmp_path)
  monkeypatch.setattr(speedrun, "require_commit", lambda _: None)
  old = copy.deepcopy(record) | dict(name="old")
  results.write_data("speedrun", dict(records=[old, record | dict(date="")]))
  monkeypatch.setattr(speedrun, "record", lambda _: record)
  given = _given()
  assert speedrun.measure(given)["records"] == [old, record]
  few = record | dict(runs=record["runs"][:3])
  monkeypatch.setattr(speedrun, "record", lambda _: few)
  with pytest.raises(SystemExit, match="'new' has a complete record"):
    speedrun.measure(given)
  monkeypatch.setattr(speedrun, "record", lambda _: record)
  record["runs"][0]["after"] = 0.5
  with pytest.raises(SystemExit, match="no record: .* is less than 95%"):
    speedrun.measure(given)
  given.check = True
  with pytest.raises(SystemExit) as e:
    speedrun.measure(given)
  assert e.value.code == 0


def test_the_config_of_the_speedrun_keeps_the_rules():
  """Every fixed field exists and is as in configs/dapo.py."""
  c, notes = config_checks.checked("configs/speedrun.py", {})
  assert notes == []
  default = config_lib.flat(config_checks.checked("configs/dapo.py", {})[0])
  assert set(speedrun.FIXED) <= default.keys()
  different = speedrun._different(config_lib.flat(c))
  assert different and not set(different) & set(speedrun.FIXED)
  assert len(set(speedrun.SEEDS)) == 16
