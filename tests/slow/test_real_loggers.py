"""wandb and trackio themselves, offline; skipped where they are missing."""

import os
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from test_loggers import fill, log_with

pytestmark = pytest.mark.slow


def test_wandb_offline(tmp_path, monkeypatch):
  wandb = pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  log, said = log_with(tmp_path, "wandb")
  fill(log)
  assert said == [] and wandb.run is None
  (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
  assert (tmp_path / "wandb.id").read_text() in path.name
  wanted = (b"train/accuracy", b"optimizer.lr", b"rl/step", b"histogram")
  end = time.monotonic() + 20  # wandb's own process writes the file
  while missing := [x for x in wanted if x not in path.read_bytes()]:
    assert time.monotonic() < end, missing
    time.sleep(0.1)


def test_wandb_without_a_login_asks_nothing(tmp_path, monkeypatch):
  wandb = pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "online")
  monkeypatch.setenv("NETRC", str(tmp_path / "none"))
  monkeypatch.delenv("WANDB_API_KEY", raising=False)
  wandb.teardown()  # settings are read anew
  log, said = log_with(tmp_path, "wandb")
  fill(log)
  wandb.teardown()
  assert len(said) == 1 and "`wandb login`, or WANDB_MODE=offline" in said[0]


def test_trackio(tmp_path):
  """In a process of its own: trackio reads TRACKIO_DIR at its import."""
  pytest.importorskip("trackio")
  code = """
import pathlib, sys, test_loggers, trackio
log, said = test_loggers.log_with(pathlib.Path(sys.argv[1]), "trackio")
test_loggers.fill(log)
assert not said, said
from trackio.sqlite_storage import SQLiteStorage
(run,) = trackio.Api().runs("rl_reason")
print([(x["step"], x["rl/train/accuracy"])
       for x in SQLiteStorage.get_logs("rl_reason", run.name)
       if "rl/train/accuracy" in x])
"""
  path = f"{ROOT / 'tests'}{os.pathsep}{ROOT}"
  done = subprocess.run(
      [sys.executable, "-c", code, str(tmp_path)],
      env=os.environ
      | {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": path},
      capture_output=True,
      text=True,
  )
  last = done.stdout.splitlines()[-1:]
  assert last == ["[(1, 0.25), (2, 0.5)]"], done.stdout + done.stderr
