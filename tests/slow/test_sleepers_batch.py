"""A batch of programs that sleep costs seconds, with the defaults of a run.

  python -m pytest -m slow -s tests/slow/test_sleepers_batch.py

prints how many. Programs that fail at once are the control: what a batch costs
that does not sleep, on this machine and at its present load.
"""

import json
import time

import numpy as np
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


def seconds(program: str, batch: int = BATCH) -> float:
  """Of a batch, all of whose programs are incorrect."""
  reward = base.get_config().reward
  item = ("rl_reason.verifiers.code", program, TESTS, 0.0)
  function = "rl_reason.verifiers:verdict"
  with workers.Pool(function, reward.workers, reward.seconds) as pool:
    began = time.monotonic()
    outcomes = pool.results(pool.submit([item] * batch))
    assert {(x.value, x.failure) for x in outcomes} == {(False, None)}
    return time.monotonic() - began


def test_a_batch_of_programs_that_sleep():
  control = seconds(FAILS)
  for name, program in SLEEPERS.items():
    found = seconds(program)
    print(f"\n{BATCH} programs: {name}: {found:.1f} s, control {control:.1f} s")
    # One after the other, four at a time, they would sleep for 128 s.
    assert found < control + 45, name


def test_a_batch_of_programs_that_work_and_sleep():
  """The control needs as much CPU time as one of them gets."""
  control = seconds(COMPUTES.format(2.0), BATCH // 4)
  found = seconds(WORKS_AND_SLEEPS, BATCH // 4)
  print(f"\n{BATCH // 4} programs: {found:.1f} s, control {control:.1f} s")
  assert found < control + 30


def test_verdicts_of_a_batch_are_those_of_each_program_alone():
  """Honest programs sleep up to 1.5 s, others for ever."""
  programs = [
      f"import time\ndef f(x):\n  time.sleep({sleep})\n  return x"
      for sleep in (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1000, 2000)
  ]
  wanted = [True] * 6 + [False] * 2
  reward = base.get_config().reward
  rng = np.random.default_rng(0)
  drawn = rng.permutation(np.arange(BATCH) % len(programs)).tolist()
  path, function = "rl_reason.verifiers.code", "rl_reason.verifiers:verdict"
  with workers.Pool(function, reward.workers, reward.seconds) as pool:
    for order in (drawn, sorted(drawn), sorted(drawn, reverse=True)):
      items = [(path, programs[n], TESTS, 0.0) for n in order]
      began = time.monotonic()
      found = [x.value for x in pool.results(pool.submit(items))]
      assert found == [wanted[n] for n in order]
      print(f"\n{BATCH} programs: {time.monotonic() - began:.1f} s")
