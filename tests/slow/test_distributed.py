"""Two processes with four devices each end where one with eight does."""

import json
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import ROOT, child_env, restore_arrays

pytestmark = pytest.mark.slow
FLAGS = (
    "--config=configs/dapo.py:smoke",
    "--config.sft.skill.steps=20",
    "--config.updates.minibatches=1",
    "--config.rl.steps=2",
    "--config.mesh.data=2",
    "--config.mesh.fsdp=2",
    "--config.mesh.tensor=2",
    "--config.optimizer.name=sgd",  # Adam amplifies rounding
)


def start(workdir, devices, *flags):
  env = child_env()
  env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
  return subprocess.Popen(
      [
          sys.executable,
          "-m",
          "rl_reason.main",
          *FLAGS,
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
  out, _ = process.communicate(timeout=400)
  assert process.returncode == 0, out
  return out


def final(workdir: pathlib.Path):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  state = restore_arrays(workdir / "checkpoints" / "rl" / "2" / "state")
  return [json.loads(line) for line in lines], state["policy"]["params"]


def flat(tree):
  return np.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])


def test_two_processes_end_where_one_does(tmp_path):
  end(start(tmp_path / "one", 8))
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  both = [
      start(
          tmp_path / "two",
          4,
          "--distributed",
          f"--coordinator=localhost:{port}",
          "--processes=2",
          f"--process={i}",
      )
      for i in range(2)
  ]
  out = [end(p) for p in both]
  assert "report" in out[0]

  (one, p), (two, q) = final(tmp_path / "one"), final(tmp_path / "two")
  assert np.abs(flat(p) - flat(q)).max() <= 1e-5
  assert len(one) == len(two)  # process 1 writes nothing
  for a, b in zip(one, two, strict=True):
    assert (a["stage"], a["step"]) == (b["stage"], b["step"])
    for key in ("sft/loss", "train/accuracy", "tokens/generated"):
      if key in a:
        assert abs(a[key] - b[key]) <= 1e-4 * max(abs(a[key]), 1)
