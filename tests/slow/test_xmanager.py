"""launch/xm_launch.py with the real package and its local executor.

XManager is in no list of requirements, because it brings the clients of Google
Cloud: pip install xmanager.
"""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from conftest import ROOT, child_env

pytest.importorskip("xmanager", reason="pip install xmanager")
pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path):
  """A checkout with runs of its own, and a home for XManager's database."""
  shutil.copytree(ROOT / "launch", tmp_path / "launch")
  for name in ("configs", "rl_reason"):
    (tmp_path / name).symlink_to(ROOT / name)
  return tmp_path


def start(checkout, *flags):
  """Starts the script; the output of the runs is in its own."""
  command = [sys.executable, str(checkout / "launch" / "xm_launch.py")]
  return subprocess.Popen(
      [*command, "--config=configs/grpo.py:smoke", *flags],
      cwd=checkout,
      env=child_env() | {"HOME": str(checkout), "PYTHONPATH": str(checkout)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,
  )


def test_a_failed_run_does_not_stop_the_next_one(checkout):
  """The work directory of the first of two work units is of another run."""
  flags = ["--seeds=3,4", "--set=rl.steps=1"]
  planned, _ = start(checkout, *flags, "--dry_run").communicate()
  other, done = [
      checkout / line.rpartition("--workdir=")[2].strip("'")
      for line in planned.splitlines()
  ]
  other.mkdir(parents=True)
  (other / "config.json").write_text("{}")
  process = start(checkout, *flags)
  out, _ = process.communicate()
  assert process.returncode == 1, out
  assert "error: " in out and not (other / "report.html").exists()
  lines = [*map(json.loads, (done / "metrics.jsonl").open())]
  assert [x["step"] for x in lines if x["stage"] == "rl"] == [1]
  assert json.loads((done / "config.json").read_text())["seed"] == 4
  [data] = (checkout / ".xmanager").glob("*.sqlite3")
  with sqlite3.connect(data) as database:
    counts = [
        database.execute(f"SELECT count(*) FROM {x}").fetchone()[0]
        for x in ("experiment", "work_unit")
    ]
    assert counts == [1, 2]


def test_an_interrupt_stops_the_run_and_saves_its_state(checkout):
  process = start(checkout, "--set=rl.steps=1000", "--set=log.loggers=")
  [run] = wait_for(process, lambda: [*(checkout / "runs").glob("*")])
  metrics = run / "metrics.jsonl"
  wait_for(process, lambda: metrics.exists() and '"rl"' in metrics.read_text())
  process.send_signal(signal.SIGINT)
  out, _ = process.communicate(timeout=120)
  assert process.returncode == 143, out
  assert "stopped; the same command resumes" in out, out
  assert [*(run / "checkpoints" / "rl").iterdir()]


def wait_for(process, found):
  """Waits until something is found, which is returned."""
  while not (out := found()):
    assert process.poll() is None, process.communicate()[0]
    time.sleep(0.5)
  return out
