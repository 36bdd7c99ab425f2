"""Programs that sleep are ended early, and load changes no verdict."""

import subprocess
import sys
import time

import pytest

from rl_reason.verifiers import code, processes, sandbox

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


def test_computing_pays_for_little_sleep():
  """A program that works a little and sleeps a little, for ever."""
  duty = "while True:\n  t = time.process_time() + 0.02\n"
  duty += "  while time.process_time() < t: pass\n  time.sleep(0.06)"
  with subprocess.Popen([sys.executable, "-c", f"import time\n{duty}"]) as p:
    try:
      progress = processes.Progress([p.pid], idle=0.2, wall=1000)
      began = time.monotonic()
      while not progress.late():
        assert time.monotonic() - began < 60  # 1 s on an idle machine
        time.sleep(0.02)
      assert progress.idle
    finally:
      p.kill()


def test_a_batch_of_sleepers_shares_a_budget():
  """Honest programs between those that sleep do not give time back."""
  sandbox._recent.programs.clear()
  limits, found = sandbox.Limits(), []
  for slept in [True, False, True, True, False, False]:
    progress = sandbox._watch([], limits)
    found.append(progress._limit)
    progress.idle = slept
  assert found == [2.0, 0.25, 0.25, 0.125, 0.1, 0.25]
  for _ in range(sandbox.BATCH):
    progress = sandbox._watch([], limits)
  assert progress._limit == 2.0


def test_load_changes_no_verdict():
  spin = [sys.executable, "-c", "while True: pass"]
  load = [subprocess.Popen(spin) for _ in range(4)]
  try:
    assert code.grade(WORKER, PROBLEM).correct
  finally:
    for process in load:
      process.kill()
      process.wait()
