"""Programs that sleep are ended early, and load changes no verdict."""

import subprocess
import sys
import time

import pytest

from rl_reason.verifiers import code

SLEEPER = "import time\ndef f(x):\n  time.sleep(1000)"
POLLER = "import time\ndef f(x):\n  while True: time.sleep(0.001)"
WORKER = """
import time
def f(x):
  while time.process_time() < 0.6:
    pass
  return x
"""
PROBLEM = code.Calls("assert f(1) == 1", ("f",))


@pytest.mark.parametrize("program", [SLEEPER, POLLER])
def test_programs_that_sleep_cost_little(program):
  """Four of them: 2 s, a quarter, an eighth, a tenth; not 120 s each."""
  began = time.monotonic()
  for _ in range(4):
    verdict = code.grade(program, PROBLEM)
    assert (verdict.correct, verdict.reason) == (False, "timeout")
  assert time.monotonic() - began < 90  # 3 s on an idle machine


def test_load_changes_no_verdict():
  spin = [sys.executable, "-c", "while True: pass"]
  load = [subprocess.Popen(spin) for _ in range(4)]
  try:
    assert code.grade(WORKER, PROBLEM).correct
  finally:
    for process in load:
      process.kill()
      process.wait()
