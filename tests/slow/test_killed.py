"""Whatever kills a run, the same command ends with the same bits.

test_resume.py has cheap ones.
"""

import json
import random
import resource
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import ROOT, child_env, restore_arrays
from tiny_session import logged

pytestmark = pytest.mark.slow

KILLER = str(ROOT / "tests" / "slow" / "killer.py")
FLAGS = (
    "--config=configs/dapo.py:smoke",
    "--config.sft.skill.steps=30",
    "--config.checkpoint.sft_every=10",
    "--config.dynamic_sampling.surplus=keep",
    "--config.updates.epochs=2",
)


def start(workdir, cache, *how, more=(), file_bytes=None):
  how = how or ("-m", "rl_reason.main")
  return subprocess.Popen(
      [sys.executable, *how, *FLAGS, *more, f"--workdir={workdir}"],
      cwd=ROOT,
      env=child_env(cache),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      preexec_fn=file_bytes
      and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, [file_bytes] * 2)),
  )


def finish(process, code=0):
  out, _ = process.communicate(timeout=300)
  assert process.returncode == code, out
  return out


def outcome(workdir):
  """Everything that must not depend on how often the run was killed."""
  checkpoints = workdir / "checkpoints" / "rl"
  last = max(checkpoints.iterdir(), key=lambda p: int(p.name))
  state = restore_arrays(last / "state")
  leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
  host = json.loads((last / "host.json").read_text())
  return (
      [(x.dtype.str, x.tobytes()) for x in leaves],
      {k: v for k, v in host.items() if k != "logs"},
      logged(workdir),
      logged(workdir, "samples.jsonl"),
  )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
  workdir = tmp_path_factory.mktemp("undisturbed")
  finish(start(workdir, cache))
  return workdir


def equal(a, b):
  for x, y in zip(outcome(a), outcome(b), strict=True):
    assert x == y


def test_killed_at_every_kind_of_instant(tmp_path, cache, undisturbed):
  """Inside SFT, a save, a manifest, a line, a rollout: one run, five kills."""
  for place, count in (
      ("sft", 15),
      ("manifest", 2),
      ("jsonl", 8),
      ("save", 2),
      ("rollout", 3),
  ):
    process = start(tmp_path, cache, KILLER, place, str(count), "--")
    finish(process, -signal.SIGKILL)
  out = finish(start(tmp_path, cache))
  assert "resumes at step" in out
  equal(tmp_path, undisturbed)
  assert "is complete" in finish(start(tmp_path, cache))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_first(tmp_path, cache, undisturbed, number):
  """Within 10 s, in SFT and in RL; and the run goes on from there."""
  for marker, saved in (("skill", "skill"), ('"rl"', "rl")):
    process = start(tmp_path, cache)
    log = tmp_path / "metrics.jsonl"
    while not (log.exists() and marker in log.read_text()):
      time.sleep(0.05)
      assert process.poll() is None
    process.send_signal(number)
    began = time.monotonic()
    out = finish(process, 143)
    assert time.monotonic() - began < 10
    assert "stopped by a signal" in out
    newest = max(
        (tmp_path / "checkpoints" / saved).iterdir(), key=lambda p: int(p.name)
    )
    assert (newest / "manifest.json").exists()
  finish(start(tmp_path, cache))
  equal(tmp_path, undisturbed)


def test_a_full_disk_ends_the_run_in_one_line(tmp_path, cache, undisturbed):
  """The checkpoint before is whole, and the end is the same without it."""
  process = start(tmp_path, cache, KILLER, "rollout", "3", "--")
  finish(process, -signal.SIGKILL)
  out = finish(start(tmp_path, cache, file_bytes=100_000), 1)
  [line] = [x for x in out.splitlines() if x.startswith("error: ")]
  assert f"{tmp_path}: cannot be written (File too large" in line
  assert "Traceback" not in out
  assert "damaged" not in finish(start(tmp_path, cache))
  equal(tmp_path, undisturbed)


def test_a_resumed_run_may_offload_its_moments(tmp_path, cache, undisturbed):
  """Killed in RL, it goes on with optimizer.offload, and ends as it would."""
  process = start(tmp_path, cache, KILLER, "rollout", "3", "--")
  finish(process, -signal.SIGKILL)
  offload = "--config.optimizer.offload=True"
  assert "resumes at step" in finish(start(tmp_path, cache, more=[offload]))
  got, wanted = outcome(tmp_path), outcome(undisturbed)
  assert got[1].pop("config") != wanted[1].pop("config")
  assert got == wanted


def test_killed_at_twenty_random_instants(tmp_path, cache, undisturbed):
  """As many runs as it takes to be killed twenty times; each ends the same."""
  rng = random.Random(time.time_ns())
  began = time.monotonic()
  finish(start(tmp_path / "clock", cache))
  whole = time.monotonic() - began
  kills = runs = 0
  while kills < 20:
    runs += 1
    workdir = tmp_path / str(runs)
    while True:
      process = start(workdir, cache)
      time.sleep(rng.uniform(0.1, 1.0) * whole)
      if process.poll() is not None:
        break
      process.kill()
      finish(process, -signal.SIGKILL)
      kills += 1
    finish(start(workdir, cache))
    equal(workdir, undisturbed)
