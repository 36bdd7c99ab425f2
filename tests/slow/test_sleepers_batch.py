"""A batch of programs that sleep costs seconds, with the defaults of a run.

  python -m pytest -m slow -s tests/slow/test_sleepers_batch.py

prints how many. Programs that fail at once are the control: what a batch costs
that does not sleep, on this machine and at its present load.
"""

import json
import time

import pytest

from rl_reason.configs import base
from rl_reason.verifiers import workers

pytestmark = pytest.mark.slow
BATCH = 256
TESTS = json.dumps(dict(tests="assert f(1) == 1", names=["f"], prompt=""))
FAILS = "def f(x): return 2"
COMPUTES = """
import time
def f(x):
  while time.process_time() < {}:
    pass
  return 2
"""
SLEEPERS = {
    "sleeps": "import time\ndef f(x): time.sleep(1000)",
    "polls": "import time\ndef f(x):\n  while True: time.sleep(0.001)",
    "waits for itself": "import threading\ndef f(x): threading.Event().wait()",
}
# Its sleep is limited in all, though its CPU time makes up for each of them.
WORKS_AND_SLEEPS = """
import time
def f(x):
  while True:
    end = time.process_time() + 0.25
    while time.process_time() < end:
      pass
    time.sleep(0.9)
"""


def seconds(program: str) -> float:
  """Of a batch, all of whose programs are incorrect."""
  reward = base.get_config().reward
  item = ("rl_reason.verifiers.code", program, TESTS, 0.0)
  function = "rl_reason.verifiers:verdict"
  with workers.Pool(function, reward.workers, reward.seconds) as pool:
    began = time.monotonic()
    outcomes = pool.results(pool.submit([item] * BATCH))
    assert {(x.value, x.failure) for x in outcomes} == {(False, None)}
    return time.monotonic() - began


def test_a_batch_of_programs_that_sleep():
  control = seconds(FAILS)
  for name, program in SLEEPERS.items():
    found = seconds(program)
    print(f"\n{BATCH} programs: {name}: {found:.1f} s, control {control:.1f} s")
    assert found < max(30, control + 15), name


def test_a_batch_of_programs_that_work_and_sleep():
  """Beside programs that need as much CPU time."""
  control = seconds(COMPUTES.format(0.3))
  found = seconds(WORKS_AND_SLEEPS)
  print(f"\n{BATCH} programs: {found:.1f} s, control {control:.1f} s")
  assert found < control + 30
