"""Two processes with four devices each end where one with eight does."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

import jax
import numpy as np
import pytest
from conftest import ROOT, child_env, restore_arrays
from tiny_session import digest, logged

from rl_reason.base import errors

pytestmark = pytest.mark.slow
FLAGS = (
    "--config=configs/dapo.py:smoke",
    "--config.sft.steps=20",
    "--config.updates.minibatches=1",
    "--config.rl.steps=2",
    "--config.mesh.data=2",
    "--config.mesh.fsdp=2",
    "--config.mesh.tensor=2",
    "--config.optimizer.name=sgd",  # Adam amplifies rounding
    # So short a run rarely solves anything; its lengths differ.
    "--config.reward.functions=length*-0.5",
    "--config.dynamic_sampling.signal=reward",
)


# JAX knows a host by its boot id: a process that sees another one is elsewhere.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
ELSEWHERE = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
ELSEWHERE += [f'mount --bind "$0" {BOOT_ID} && exec "$@"']


def start(workdir, devices, *flags, prefix=(), usual=FLAGS):
  env = child_env()
  env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
  return subprocess.Popen(
      [
          *prefix,
          sys.executable,
          "-m",
          "rl_reason.main",
          *usual,
          f"--workdir={workdir}",
          *flags,
      ],
      cwd=ROOT,
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
  )


def end(process):
  out, _ = process.communicate(timeout=1800)
  assert process.returncode == 0, out
  return out


def final(workdir: pathlib.Path, step=2):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  state = restore_arrays(workdir / "checkpoints" / "rl" / f"{step}" / "state")
  return [json.loads(line) for line in lines], state["policy"]["params"]


def flat(tree):
  return np.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])


def free_port():
  with socket.socket() as s:
    s.bind(("localhost", 0))
    return s.getsockname()[1]


def start_two(workdir, *flags, second=()):
  port = free_port()
  flags += ("--distributed", f"--coordinator=localhost:{port}", "--processes=2")
  return [
      start(workdir, 4, *flags, f"--process={i}", prefix=prefix)
      for i, prefix in enumerate([(), second])
  ]


@pytest.mark.parametrize("fail", ["", "1"])
def test_two_processes_judge_as_one_does(fail):
  """Each the responses to its own prompts; verdicts and rewards are equal."""
  script, port = ROOT / "tests" / "slow" / "graded.py", free_port()

  def judge(index, count):
    argv = [sys.executable, str(script), f"{index}", f"{count}", f"{port}"]
    env = child_env() | dict(FAIL=fail)
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

  processes = [judge(0, 1), judge(0, 2), judge(1, 2)]
  one, *two = (json.loads(end(x).splitlines()[-1]) for x in processes)
  judged = one.pop("judged")
  mine, theirs = (set(x.pop("judged")) for x in two)
  assert mine and theirs and mine.isdisjoint(theirs)
  assert sorted(mine | theirs) == judged
  assert one["correct"] == [1, 0, 1, 0, 1, 1, -1, 0, 1, 0]
  if fail:  # each process ends, and one of them says why
    whys = [x.pop("error") for x in (one, *two)]
    assert all("failed on its first batch" in why for why in whys)
    assert sum("breaks the reward function" in why for why in whys) == 2
  else:
    assert one["scores"][0][-1] == np.float32(-0.1)
  assert two == [one, one]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """What one process with eight devices ends with."""
  workdir = tmp_path_factory.mktemp("alone")
  end(start(workdir, 8))
  return final(workdir)


@pytest.mark.parametrize(
    ("hosts", "mesh"),
    [
        (1, "data 2 x fsdp 2 x tensor 2 on one host"),
        (2, "data 2 over 2 hosts, fsdp 2 x tensor 2 within each"),
    ],
)
def test_two_processes_end_where_one_does(tmp_path, alone, hosts, mesh):
  """On one host, and on two: the second process sees another boot id."""
  boot_id = tmp_path / "boot_id"
  boot_id.write_text(f"{uuid.uuid4()}\n")
  elsewhere = [*ELSEWHERE, str(boot_id)]
  if hosts == 2 and subprocess.call([*elsewhere, "true"], stderr=-3):
    pytest.skip("this machine gives no process a mount namespace of its own")
  workdir = tmp_path / "two"
  both = start_two(workdir, second=elsewhere if hosts == 2 else ())
  out = [end(p) for p in both]
  assert "report" in out[0]
  assert f"mesh: {mesh}\n" in out[0]

  (one, p), (two, q) = alone, final(workdir)
  assert np.abs(flat(p) - flat(q)).max() <= 1e-5
  assert len(one) == len(two)  # process 1 writes nothing
  for a, b in zip(one, two, strict=True):
    assert (a["stage"], a["step"]) == (b["stage"], b["step"])
    for key in ("sft/loss", "train/accuracy", "tokens/generated"):
      if key in a:
        assert abs(a[key] - b[key]) <= 1e-4 * max(abs(a[key]), 1)


GAME = """
import os
from rl_reason.features.environments import guess

class Game(guess.Guess):
  def reset(self, row, rng):
    with open(os.environ["PLAYER"], "a") as f:
      f.write(row.prompt + "\\n")
    return super().reset(row, rng)
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_two_processes_play_as_one_does(tmp_path, executor, monkeypatch):
  """Each the trajectories of its own prompts; both update on all of them."""
  (tmp_path / "my_game.py").write_text(GAME)
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  usual = (
      f"--config={ROOT}/configs/guess.py:smoke",
      "--config.environment.name=my_game:Game",  # the task demonstrates
      f"--config.environment.executor={executor}",
      *(x for x in FLAGS[1:] if "functions" not in x and "mesh" not in x),
      "--config.mesh.data=2",  # a device in each process
  )
  asked = {}

  def started(count):
    workdir, port = tmp_path / f"{count}", free_port()
    several = ("--distributed", f"--coordinator=localhost:{port}")
    several += (f"--processes={count}",)
    out = []
    for i in range(count):
      monkeypatch.setenv("PLAYER", f"{tmp_path}/asked-{count}-{i}")
      flags = (*several, f"--process={i}") if count > 1 else ()
      out.append(start(workdir, 2 // count, *flags, usual=usual))
    for process in out:
      end(process)
    for i in range(count):
      path = tmp_path / f"asked-{count}-{i}"
      asked[count, i] = sorted(path.read_text().split())
    return final(workdir)

  (one, p), (two, q) = started(1), started(2)
  assert np.abs(flat(p) - flat(q)).max() <= 1e-5
  assert asked[2, 0] and asked[2, 1]
  assert sorted(asked[2, 0] + asked[2, 1]) == asked[1, 0]
  assert len(one) == len(two)
  for a, b in zip(one, two, strict=True):
    assert (a["stage"], a["step"]) == (b["stage"], b["step"])
    for key in ("sft/loss", "tokens/generated", "environment/turns/mean"):
      if key in a:
        assert abs(a[key] - b[key]) <= 1e-4 * max(abs(a[key]), 1)


def test_a_restart_after_a_lost_process_ends_with_the_same_bits(tmp_path):
  """Process 1 is killed in RL; both are started again, and nothing differs."""
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  flags = ("--config.rl.steps=3", "--config.checkpoint.every=1")
  for process in start_two(whole, *flags):
    end(process)
  survivor, victim = start_two(parts, *flags)
  log = parts / "metrics.jsonl"
  while not (log.exists() and '"stage": "rl"' in log.read_text()):
    time.sleep(0.1)
    assert survivor.poll() is None and victim.poll() is None
  victim.kill()
  out, _ = survivor.communicate(timeout=1500)
  assert survivor.returncode == errors.LOST, out
  assert "\nerror: process 1 of 2 " in out
  assert victim.wait() == -signal.SIGKILL
  again = start_two(parts, *flags)
  assert "RL: resumes at step" in [end(process) for process in again][0]
  (_, p), (_, q) = final(whole, 3), final(parts, 3)
  assert digest(p) == digest(q)
  assert logged(whole) == logged(parts)


@pytest.mark.parametrize(
    ("stage", "number", "victim"),
    [
        ("sft", signal.SIGTERM, 0),
        ("rl", signal.SIGTERM, 1),
        ("sft", signal.SIGKILL, 1),
        ("rl", signal.SIGKILL, 0),
        ("rl", signal.SIGSTOP, 0),
        ("rl", signal.SIGSTOP, 1),
    ],
)
def test_what_ends_one_process_ends_both(tmp_path, stage, number, victim):
  """By name and exit code, soon; and the same command resumes."""
  both = start_two(tmp_path, "--config.rl.steps=500", "--stage=all")
  log = tmp_path / "metrics.jsonl"
  while not (log.exists() and f'"stage": "{stage}"' in log.read_text()):
    time.sleep(0.1)
    assert all(p.poll() is None for p in both)
  both[victim].send_signal(number)
  began = time.monotonic()
  survivor = both[1 - victim]
  out, _ = survivor.communicate(timeout=90)
  seconds = time.monotonic() - began
  if number == signal.SIGTERM:
    # Within 5 s, unless other processes wait for the same processors.
    limit = 15 if os.getloadavg()[0] > 3 * os.cpu_count() else 5
    assert (survivor.returncode, seconds < limit) == (143, True), out
    assert both[victim].wait(15) == 143
    saved = tmp_path / "checkpoints" / stage
    assert list(saved.glob("*/manifest.json"))
  else:
    both[victim].kill()
    assert (survivor.returncode, seconds < 30) == (errors.LOST, True), out
    assert f"\nerror: process {victim} of 2 " in out
    assert "resumes the run" in out
  for p in both:
    p.kill()
    p.communicate()
