"""The watchdog: what stands still says where, and ends."""

import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import child_env

from rl_reason.configs import base
from rl_reason.devices.compiled import CompiledOnce
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


def test_compilations_may_take_longer(monkeypatch):
  """Within a minute by default, which a compiler may need."""
  monkeypatch.setattr(time, "process_time", lambda: 0.0)
  assert 0 < base.get_config().log.stall_seconds <= 60
  said, screen = [], display.Display(active=False)
  screen.say = said.append
  dog = watchdog.Watchdog(screen, 0.1, 0.0)
  screen.doing("waiting for the device")
  with screen.compiling("the update"):
    assert screen.where() == "compiling the update"
    time.sleep(0.5)
  assert not said
  time.sleep(0.5)
  dog.close()
  (line,) = said
  assert "at: waiting for the device" in line


def test_a_program_of_the_cpu_may_take_longer(monkeypatch):
  """An update of a large model is one call; it computes, and nothing hangs."""
  said, screen = [], display.Display(active=False)
  screen.say = said.append
  monkeypatch.setattr(time, "process_time", time.monotonic)  # one core
  dog = watchdog.Watchdog(screen, 0.1, 0.0)
  screen.doing("RL 1/12")
  time.sleep(0.5)
  assert not said
  time.sleep(1.0)  # the limit is 1 second
  dog.close()
  (line,) = said
  assert "at: RL 1/12" in line


def test_programs_that_run_are_progress():
  """While tokens are decoded no program compiles, and nothing hangs."""
  said, screen = [], display.Display(active=False)
  screen.say = said.append
  once = CompiledOnce("f", jax.jit(lambda x: x + 1), screen)
  screen.doing("evaluating")
  once(np.zeros(1))
  assert "compiled f" in said[0] and not screen.compiles
  assert screen.where() == "evaluating"
  screen.progressed = 0.0
  once(np.zeros(1))
  assert screen.progressed > 0


def test_the_rest_of_a_stage_is_estimated_from_its_steps(monkeypatch):
  """Neither compilations nor the evaluation before the first step count."""
  now = 0.0
  monkeypatch.setattr(display.time, "monotonic", lambda: now)
  screen = display.Display(active=False)
  screen.stage("RL", 10)
  now = 100.0  # the evaluation at step 0
  screen.steps_begin(0)
  with screen.compiling("the update"), screen.compiling("the sampler"):
    now += 300
  assert screen.progressed == now
  now += 5
  screen.step(1)
  assert "left 0:45" in screen.where()
  screen.steps_begin(1)  # a later evaluation is part of the rest
  now += 5
  screen.step(2)
  assert "left 0:40" in screen.where()


@pytest.mark.slow
def test_a_run_that_stands_still_says_where():
  assert run(end=0).returncode == 0


@pytest.mark.slow
def test_a_run_that_stands_still_may_end():
  done = run(end=2)
  assert done.returncode == 175
  assert "error: no progress for 2 s (log.stall_ends), at: RL" in done.stderr
