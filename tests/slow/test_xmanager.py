"""launch/xm_launch.py with the real package and its local executor.

XManager is in no list of requirements, because it brings the clients of Google
Cloud: pip install xmanager.
"""

import json
import os
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
  """Two work units; a random model misses the first one's threshold."""
  process = start(
      checkout,
      *("--seeds=3", "--set=rl.steps=1"),
      *("--set=sft.threshold=1.0", "--set=sft.threshold=0.0"),
  )
  out, _ = process.communicate()
  assert process.returncode == 1, out
  failed, done = sorted((checkout / "runs").iterdir())[::-1]
  assert "1.0" in failed.name and not (failed / "report.html").exists()
  lines = [*map(json.loads, (done / "metrics.jsonl").open())]
  assert [x["step"] for x in lines if x["stage"] == "rl"] == [1]
  assert json.loads((done / "config.json").read_text())["seed"] == 3
  [data] = (checkout / ".xmanager").glob("*.sqlite3")
  with sqlite3.connect(data) as database:
    tables = "experiment", "work_unit"
    counts = [
        database.execute(f"SELECT count(*) FROM {x}").fetchone()[0]
        for x in tables
    ]
    assert counts == [1, 2]


def test_an_interrupt_stops_the_run_which_saves(checkout):
  process = start(checkout, "--set=rl.steps=1000")
  metrics = checkout / "runs" / "grpo-smoke,rl.steps=1000" / "metrics.jsonl"
  while not (metrics.exists() and '"rl"' in metrics.read_text()):
    assert process.poll() is None
    time.sleep(0.5)
  os.killpg(process.pid, signal.SIGINT)
  out, _ = process.communicate(timeout=120)
  assert process.returncode, out
  assert "the same command resumes" in out or "saved" in out, out[-3000:]
