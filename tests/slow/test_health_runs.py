"""Runs that learn nothing, by the command: exit code 1, and the reason."""

import subprocess
import sys

import pytest
from conftest import ROOT, child_env

pytestmark = pytest.mark.slow
TASK = """
from rl_reason.tasks.arithmetic import *

def verify(text, row):
  return False
"""
RUNS = {
    "all incorrect": (
        ["--config.task.name=impossible"],
        "error: RL made no update in 3 steps",
        "0 made, 6 skipped",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_learned_nothing_has_exit_code_1(name, tmp_path):
  flags, error, said = RUNS[name]
  (tmp_path / "impossible.py").write_text(TASK)
  env = child_env()
  env["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", "--config=configs/dapo.py:smoke"]
      + [f"--workdir={tmp_path}/run", *flags],
      cwd=ROOT,
      env=env,
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 1, done.stdout + done.stderr
  assert error in done.stderr and done.stderr.count("\n") == 1
  assert said in done.stdout and "length 0" not in done.stdout
