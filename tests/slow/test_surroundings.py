"""Runs in strange surroundings: no home, secrets, a read-only disk."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, child_env

pytestmark = pytest.mark.slow
MAIN = [sys.executable, "-m", "rl_reason.main", "--config=dapo:smoke"]
SECRETS = {
    name: f"canary-{name.lower()}-5e7d"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MINE")
}


def test_no_home_no_locale_and_no_secret_is_written(tmp_path):
  """Nothing that a run writes has the value of an environment variable."""
  workdir = tmp_path / "r\u00e9sum\u00e9"  # no ASCII
  env = child_env() | SECRETS | dict(LC_ALL="C", TMPDIR=str(tmp_path))
  for name in ("HOME", "LANG", "USER", "LOGNAME", "XDG_CACHE_HOME"):
    env.pop(name, None)
  done = subprocess.run(
      [*MAIN, f"--workdir={workdir}"],
      cwd=ROOT,
      env=env,
      capture_output=True,
      timeout=3000,
  )
  out = done.stdout + done.stderr
  assert done.returncode == 0, out.decode(errors="replace")
  written = [x for x in tmp_path.rglob("*") if x.is_file()]
  assert {"report.html", "machine.json"} <= {x.name for x in written}
  everything = [out, *(x.read_bytes() for x in written)]
  for secret in SECRETS.values():
    assert not any(secret.encode() in x for x in everything)


def test_a_directory_that_cannot_be_written_is_one_line():
  """A file system that is read-only, for root as well."""
  workdir = pathlib.Path("/sys/rl_reason_run")
  done = subprocess.run(
      [*MAIN, f"--workdir={workdir}"],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.returncode == 1
  [line] = done.stderr.splitlines()
  assert line.startswith(f"error: {workdir}: ")


def test_sixty_steps_take_no_more_memory_than_twenty(tmp_path):
  """The slope of the resident memory over steps 20 to 60."""
  flags = ["--config.rl.steps=60", "--config.evaluate.every=0"]
  process = subprocess.Popen(
      [*MAIN, *flags, f"--workdir={tmp_path}"],
      cwd=ROOT,
      env=child_env(),
      stdout=subprocess.DEVNULL,
  )
  page, points = os.sysconf("SC_PAGE_SIZE"), []
  log = tmp_path / "metrics.jsonl"
  while process.poll() is None:
    time.sleep(0.1)
    steps = log.read_text().count('"stage": "rl"') if log.exists() else 0
    try:
      pages = pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]
    except OSError:
      break
    if 20 <= steps < 60:
      points.append((steps, int(pages) * page / 2**20))
  assert process.wait() == 0
  steps, mib = np.array(points).T
  slope = np.polyfit(steps, mib, 1)[0]
  print(f"\n{slope:.3f} MiB a step, of {mib[-1]:.0f} MiB")
  assert slope < 0.5
