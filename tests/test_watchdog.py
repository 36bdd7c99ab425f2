"""The watchdog: what stands still says where, and ends."""

import subprocess
import sys
import time

import pytest
from conftest import child_env

from rl_reason.configs import base
from rl_reason.monitoring import display, watchdog

CODE = """
import threading, time
from rl_reason.monitoring import display, watchdog
screen = display.Display()
dog = watchdog.Watchdog(screen, 1.0, {end})
for step in range(8):  # progress: no word
  screen.step(step)
  time.sleep(0.25)
print("until here all is well", flush=True)
screen.stage("RL", 10, 3)
screen.doing("waiting for the device")
def hang():
  threading.Event().wait(3)
hang()
dog.close()
"""


def run(end):
  argv = [sys.executable, "-c", CODE.format(end=end)]
  done = subprocess.run(argv, env=child_env(), capture_output=True, text=True)
  before, _, after = done.stdout.partition("until here all is well")
  assert "no progress" not in before
  assert after.count("no progress for 1 s (log.stall_seconds)") == 1
  assert "RL 3/10  waiting for the device" in after.replace("\n", " ")
  assert "in hang" in done.stderr  # the stack of the main thread
  return done


def test_compilations_may_take_longer():
  """Within a minute by default, which a compiler may need."""
  assert 0 < base.get_config().log.stall_seconds <= 60
  said, screen = [], display.Display(active=False)
  screen.say = said.append
  dog = watchdog.Watchdog(screen, 0.1, 0.0)
  screen.doing("compiling the update")
  time.sleep(0.5)
  assert not said
  screen.doing("waiting for the device")
  time.sleep(0.5)
  dog.close()
  (line,) = said
  assert "at: waiting for the device" in line


@pytest.mark.slow
def test_a_run_that_stands_still_says_where():
  assert run(end=0).returncode == 0


@pytest.mark.slow
def test_a_run_that_stands_still_may_end():
  done = run(end=2)
  assert done.returncode == 175
  assert "error: no progress for 2 s (log.stall_ends), at: RL" in done.stderr
