"""Sweeps: what is refused, which devices a run sees, and a run that fails."""

import json
import sys

import pytest
from conftest import ROOT

from rl_reason.base.errors import ConfigError
from rl_reason.lab import jobs, sweep

SMOKE = "configs/dapo.py:smoke"
# Stands in for rl_reason.main: writes its config and what it sees.
FAKE = """
import json, os, pathlib, sys
flags = dict(x[2:].split("=", 1) for x in sys.argv[1:])
here, workdir = pathlib.Path(__file__).parent, pathlib.Path(flags["workdir"])
fields = json.loads((here / "fields.json").read_text())[str(workdir)]
(workdir / "config.json").write_text(json.dumps(fields))
seen = {k: os.environ.get(k) for k in (
    "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_PROCESS_PORT",
    "XLA_PYTHON_CLIENT_MEM_FRACTION")}
with open(here / "seen.jsonl", "a") as f:
  f.write(json.dumps([workdir.name, seen]) + "\\n")
if flags["config.seed"] == "1" and not (here / "mended").exists():
  sys.exit("boom: no such luck")
"""


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch):
  monkeypatch.chdir(ROOT)
  for name in jobs.visible(["0"]):
    monkeypatch.delenv(name, raising=False)


# What the error names, and the command line.
REFUSED = {
    "surrogate.args.clip_low": ["--set=surrogate.args.clip_low=2"],
    "stepps": ["--set=rl.stepps=2"],
    "many": ["--set=rl.steps=many"],
    "field=value": ["--set=seed"],
    "seed = x: must be": ["--seeds=0,x"],
    "seed = 1, 1: name each value once": ["--seeds=1,1"],
    "differ in no field": ["--set=log.samples=3", "--set=log.samples=4"],
    "configs/none.py": ["--config=configs/none.py"],
    "3 devices cannot be divided": ["--jobs=2", "--devices=0,1,2"],
    "clip_low = 2:": [
        "--set=surrogate.args.clip_low=0.2",
        "--set=surrogate.args.clip_low=2",
    ],
}


@pytest.mark.parametrize(("reason", "argv"), REFUSED.items())
def test_all_runs_are_refused_before_the_first_one_starts(
    capsys, tmp_path, reason, argv
):
  start = [f"--config={SMOKE}", f"--workdir={tmp_path}"]
  assert sweep.main([*start, *argv], ["false"]) == 2
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith("config error: ") and reason in line
  assert not list(tmp_path.iterdir())


def test_runs_share_devices_and_a_failed_one_is_named(tmp_path, capfd):
  fake = tmp_path / "fake.py"
  fake.write_text(FAKE)
  out, child = tmp_path / "out", [sys.executable, str(fake)]
  runs = sweep.product(
      SMOKE, ["0", "1"], ["rl.steps=3", "optimizer.lr=1e-3", "optimizer.lr=0"]
  )
  plan = sweep.plan(runs, out)
  names = [job.name for job in plan]
  assert names == [
      f"dapo-smoke,optimizer.lr={lr}{seed}"
      for seed in ("", ",seed=1")
      for lr in ("0.001", "0.0")
  ]
  assert [job.fields["rl.steps"] for job in plan] == [3] * 4
  fields = {str(job.workdir): job.fields for job in plan}
  (tmp_path / "fields.json").write_text(json.dumps(fields))
  argv = [f"--config={SMOKE}", "--seeds=0,1", "--set=rl.steps=3"]
  argv += ["--set=optimizer.lr=1e-3", "--set=optimizer.lr=0"]
  argv += [f"--workdir={out}", "--jobs=2", "--devices=4,5,6,7"]

  def seen():
    lines = (tmp_path / "seen.jsonl").read_text().splitlines()
    return dict(map(json.loads, lines)), len(lines)

  assert sweep.main(argv, child) == 1
  screen = capfd.readouterr().out
  assert "boom: no such luck" in screen
  done = ",".join(str(out / name) for name in names[:2])
  assert f"--stage=report --workdir={done}" in screen
  failed = [x.partition("FAILED: ")[2] for x in screen.splitlines()[-2:]]
  assert failed == names[2:]
  environments, count = seen()
  assert sorted(environments) == sorted(names) and count == 4
  for one in environments.values():
    assert one["CUDA_VISIBLE_DEVICES"] in ("4,5", "6,7")
    assert one["TPU_VISIBLE_CHIPS"] == one["CUDA_VISIBLE_DEVICES"]
    assert one["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.90"
    ports = {"4,5": "8476", "6,7": "8477"}
    assert one["TPU_PROCESS_PORT"] == ports[one["TPU_VISIBLE_CHIPS"]]
  # The same command repeats what has failed, and nothing else.
  (tmp_path / "mended").touch()
  assert sweep.main(argv, child) == 0
  assert seen()[1] == 6
  assert sweep.main(argv, child) == 0
  assert seen()[1] == 6


def test_devices_are_divided_evenly_or_shared():
  assert jobs.divide("0123", 2) == [("0", "1"), ("2", "3")]
  assert jobs.divide("01", 4) == [("0",), ("1",), ("0",), ("1",)]
  for devices, parallel in (("012", 2), ("01", 3)):
    with pytest.raises(ConfigError, match="cannot be divided evenly"):
      jobs.divide(devices, parallel)
  assert jobs.visible(()) == {}
  assert jobs.visible("012") == dict(CUDA_VISIBLE_DEVICES="0,1,2")
