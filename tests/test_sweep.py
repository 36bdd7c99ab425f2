"""Sweeps: what is refused, which devices a run sees, and a run that fails."""

import json
import os
import subprocess
import sys
import threading
import time

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


# Stands in for rl_reason.worker: the exit code of a run is its first
# argument; 'dies' ends the process, 'waits' runs until SIGTERM.
WORKER = """
import json, os, pathlib, signal, sys
def stopped(*_):
  print(143, flush=True)
  sys.exit(143)
signal.signal(signal.SIGTERM, stopped)
for line in sys.stdin:
  (code,), output = json.loads(line).values()
  with open(output, "a") as f:
    print(os.getpid(), file=f)
  if code == "dies":
    os._exit(7)
  if code == "waits":
    pathlib.Path(output).with_name("waits").touch()
    signal.pause()
  print(code, flush=True)
"""


@pytest.fixture
def by_workers(tmp_path, monkeypatch):
  """Makes runs by workers of two runs each; returns failures and processes."""
  (tmp_path / "worker.py").write_text(WORKER)
  command = (sys.executable, str(tmp_path / "worker.py"))
  monkeypatch.setattr(jobs, "WORKER", command)

  def make(*codes, stop=None):
    todo = []
    for i, code in enumerate(codes):
      workdir = tmp_path / str(i)
      workdir.mkdir(exist_ok=True)
      (workdir / "config.json").write_text("{}")
      todo.append(jobs.Job(str(i), workdir, [code], {}, row=str(i)))
    failed = jobs.run(
        todo, stop or threading.Event(), parallel=1, runs_per_process=2
    )
    return failed, [
        int((job.workdir / "output.txt").read_text().split()[-1])
        if (job.workdir / "output.txt").exists()
        else 0
        for job in todo
    ]

  return make


def test_a_process_makes_several_runs(by_workers):
  failed, made_by = by_workers("0", "1", "0", "0", "0")
  assert failed == ["1"]
  first, second, third, fourth, fifth = made_by
  assert first == second != third == fourth != fifth


def test_a_process_that_dies_fails_one_run(by_workers, capfd):
  failed, (first, second, third) = by_workers("dies", "0", "0")
  assert failed == ["0"] and first != second == third
  assert "0: FAILED, exit code 7" in capfd.readouterr().out


def test_a_stopped_run_ends_its_process(by_workers, tmp_path, capfd):
  stop = threading.Event()

  def ask():
    while not (tmp_path / "1" / "waits").exists():
      time.sleep(0.01)
    stop.set()

  threading.Thread(target=ask).start()
  failed, (first, second, third) = by_workers("0", "waits", "0", stop=stop)
  assert failed == [] and first == second and third == 0
  assert "1: stopped after" in capfd.readouterr().out
  with pytest.raises(ProcessLookupError):
    os.kill(first, 0)


def test_a_worker_answers_each_run_with_its_exit_code(tmp_path):
  """And flags of a run are not those of the next one."""
  (tmp_path / "metrics.jsonl").touch()
  report = ["--stage=report", f"--workdir={tmp_path}"]
  wrong = ["--config=nowhere.py"]
  todo = [
      dict(args=args, output=str(tmp_path / f"{i}.txt"))
      for i, args in enumerate((report, wrong, report))
  ]
  done = subprocess.run(
      [*jobs.WORKER],
      input="".join(json.dumps(x) + "\n" for x in todo),
      capture_output=True,
      text=True,
  )
  assert done.stdout == "0\n2\n0\n" and not done.stderr
  first, second, third = ((tmp_path / f"{i}.txt").read_text() for i in range(3))
  assert f"report: {tmp_path}/report.html" in first
  assert "nowhere.py: there is no such file" in second
  assert third == first
