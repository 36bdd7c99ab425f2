"""Programs that sleep are ended early, and load changes no verdict."""

import subprocess
import sys
import time

from rl_reason.verifiers import code

SLEEPER = "import time\ndef f(x):\n  time.sleep(1000)"
WORKER = """
import time
def f(x):
  while time.process_time() < 0.6:
    pass
  return x
"""


def test_programs_that_sleep_cost_little_and_load_changes_no_verdict():
  """Eight sleepers: 2 s, then a quarter of one each, not 120 s each."""
  problem = code.Calls("assert f(1) == 1", ("f",))
  began = time.monotonic()
  for _ in range(8):
    verdict = code.grade(SLEEPER, problem)
    assert (verdict.correct, verdict.reason) == (False, "timeout")
  assert time.monotonic() - began < 14
  spin = [sys.executable, "-c", "while True: pass"]
  load = [subprocess.Popen(spin) for _ in range(4)]
  try:
    assert code.grade(WORKER, problem).correct
  finally:
    for process in load:
      process.kill()
      process.wait()
