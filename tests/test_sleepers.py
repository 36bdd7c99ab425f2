"""Programs that sleep are ended early, and load changes no verdict."""

import asyncio
import json
import subprocess
import sys
import threading
import time

import pytest

from rl_reason.tasks import threads as pool_of_threads
from rl_reason.verifiers import code, progress, workers

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
  """2 s of sleep, not 120 s of wall clock."""
  began = time.monotonic()
  verdict = code.grade(program, PROBLEM)
  assert (verdict.correct, verdict.reason) == (False, "timeout")
  assert time.monotonic() - began < 60  # 3 s on an idle machine


def test_computing_pays_for_little_sleep():
  """A program that works a little and sleeps a little, for ever."""
  duty = "while True:\n  t = time.process_time() + 0.02\n"
  duty += "  while time.process_time() < t: pass\n  time.sleep(0.06)"
  with subprocess.Popen([sys.executable, "-c", f"import time\n{duty}"]) as p:
    try:
      tracker = progress.Progress([p.pid], idle=0.2, wall=1000)
      began = time.monotonic()
      while not tracker.late():
        assert time.monotonic() - began < 60  # 1 s on an idle machine
        time.sleep(0.02)
      assert tracker.idle
    finally:
      p.kill()


ASKED = json.dumps(dict(tests="assert f(1) == 1", names=["f"], prompt=""))
HONEST = "import time\ndef f(x):\n  time.sleep({})\n  return x"


@pytest.mark.slow
def test_a_verdict_depends_on_no_other_program():
  """In any order, and as for the program alone."""
  programs = [SLEEPER, *map(HONEST.format, (0.6, 1.4))]
  wanted = [False, True, True]
  items = [("rl_reason.verifiers.code", x, ASKED, 0.0) for x in programs]
  orders = [[0, 1, 2], [0, 2, 1]]
  with workers.Pool("rl_reason.verifiers:verdict", 1, 10) as pool:
    found = pool.results(pool.submit(items[n] for o in orders for n in o))
    threads = len(pool._threads)
  got = [x.value for x in found]
  assert got == [wanted[n] for order in orders for n in order]
  assert 1 < threads <= 1 + progress.ASLEEP
  assert code.grade(programs[2], PROBLEM).correct


def test_calls_in_threads_lend_their_place_while_a_program_sleeps():
  """Two at a time would take longer than all of them sleep together."""
  most, now, lock = [0], [0], threading.Lock()

  def play():
    with lock:
      now[0] += 1
      most[0] = max(most[0], now[0])
    correct = code.grade(HONEST.format(1.0), PROBLEM).correct
    with lock:
      now[0] -= 1
    return correct

  async def both():
    calls = pool_of_threads.Threads(1, 60.0)
    found = await asyncio.gather(*(calls.call(play) for _ in range(4)))
    return found, calls._places.asleep, calls._free._value

  assert asyncio.run(both()) == ([True] * 4, 0, 1)
  assert most[0] > 1


def test_load_changes_no_verdict():
  spin = [sys.executable, "-c", "while True: pass"]
  load = [subprocess.Popen(spin) for _ in range(4)]
  try:
    assert code.grade(WORKER, PROBLEM).correct
  finally:
    for process in load:
      process.kill()
      process.wait()
