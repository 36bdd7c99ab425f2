"""Launchers: the commands that they would run, and the mistakes they name."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from configs import base
from rl_reason import config

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ["launch/local.sh", "launch/tpu_vm.sh", "launch/slurm.sbatch"]
DAPO = "--config=configs/dapo.py"
FLAGS = [DAPO + ":smoke", "--config.task.difficulties=(2, 3)"]


def run(*argv, code=0, cwd=ROOT, **env):
  """Runs a command in a minimal environment; returns its output as lines."""
  bare = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
  done = subprocess.run(
      argv, cwd=cwd, env=bare | env, capture_output=True, text=True
  )
  assert done.returncode == code, done.stdout + done.stderr
  return (done.stderr if code else done.stdout).splitlines()


def dry(*argv, **env):
  """The commands of a dry run, split as the shell would."""
  return [shlex.split(line) for line in run(*argv, DRY_RUN="1", **env)]


@pytest.mark.parametrize("script", [*SCRIPTS, ".ci/run"])
def test_scripts_are_strict_and_parse(script):
  run("bash", "-n", script)
  assert "\nset -euo pipefail\n" in (ROOT / script).read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_explain_themselves(script):
  assert "Usage:" in run("bash", script, "--help")[0]


def test_scripts_name_fields_that_exist():
  known = config.flat(base.get_config())
  named = set()
  for path in (ROOT / "launch").iterdir():
    if path.is_file():
      text = path.read_text()
      named |= set(re.findall(r"--config\.([a-z_.]+)=", text))
      named |= set(re.findall(r"--set=([a-z_.]+)=", text))
  assert named
  assert named <= set(known)


def test_local_runs_one_process():
  [command] = dry("bash", "launch/local.sh", *FLAGS)
  assert command == ["python", "-m", "rl_reason.main", *FLAGS]


def test_local_makes_virtual_devices_and_keeps_other_flags():
  [command] = dry(
      "bash", "launch/local.sh", *FLAGS, DEVICES="4", XLA_FLAGS="--xla_a=1"
  )
  assert command[:3] == [
      "env",
      "JAX_PLATFORMS=cpu",
      "XLA_FLAGS=--xla_a=1 --xla_force_host_platform_device_count=4",
  ]
  assert command[3:] == ["python", "-m", "rl_reason.main", *FLAGS]


def test_local_joins_processes():
  commands = dry(
      "bash", "launch/local.sh", *FLAGS, PROCESSES="2", PORT="7", PYTHON="p"
  )
  assert commands == [
      [
          *["p", "-m", "rl_reason.main", *FLAGS, "--distributed"],
          *["--coordinator=localhost:7", "--processes=2", f"--process={i}"],
      ]
      for i in range(2)
  ]


def test_tpu_runs_the_flags_on_all_workers():
  [command] = dry("bash", "launch/tpu_vm.sh", "run", *FLAGS, ZONE="z", TPU="t")
  assert command[:7] == "gcloud compute tpus tpu-vm ssh t --worker=all".split()
  assert command[-1] == "--zone=z"
  remote = shlex.split(command[7].removeprefix("--command="))
  assert remote[3:] == [
      *[".venv/bin/python", "-m", "rl_reason.main", "--distributed"],
      *FLAGS,
  ]


def test_tpu_creates_installs_and_deletes():
  def step(name, **env):
    lines = dry("bash", "launch/tpu_vm.sh", name, ZONE="z", TPU="t", **env)
    return [" ".join(line) for line in lines]

  assert step("create", TYPE="v5p-8", SPOT="1", PROJECT="p") == [
      "gcloud compute tpus tpu-vm create t --version=v2-alpha-tpuv6e"
      " --accelerator-type=v5p-8 --spot --zone=z --project=p"
  ]
  [queued] = step("create", QUEUED="1")
  assert "queued-resources create t --node-id=t" in queued
  archive, copy, install = step("install", TMPDIR="/d")
  assert "/d/rl_reason.tar.gz" in archive
  assert "/d/rl_reason.tar.gz t:rl_reason.tar.gz --worker=all" in copy
  assert '".[tpu]"' in install
  assert step("delete") == [
      "gcloud compute tpus tpu-vm delete t --quiet --zone=z"
  ]


def test_tpu_asks_for_what_is_missing():
  run("bash", "launch/tpu_vm.sh", code=2, ZONE="z")
  run("bash", "launch/tpu_vm.sh", "fly", code=2, ZONE="z")
  assert "ZONE" in run("bash", "launch/tpu_vm.sh", "run", code=1)[-1]


def test_slurm_gives_a_lone_task_all_gpus_of_its_node():
  [command] = dry(
      "bash", "launch/slurm.sbatch", *FLAGS, SLURM_GPUS_ON_NODE="4", PYTHON="p"
  )
  assert command == [
      *["env", "JAX_LOCAL_DEVICE_IDS=0,1,2,3"],
      *["srun", "--gpu-bind=none", "--kill-on-bad-exit=0"],
      *["p", "-m", "rl_reason.main", "--distributed", *FLAGS],
  ]


def test_slurm_leaves_one_task_a_gpu_to_jax():
  [command] = dry("bash", "launch/slurm.sbatch", SLURM_NTASKS_PER_NODE="8")
  assert command[0] == "srun"


def test_xm_sweeps_seeds_and_fields_that_are_set_twice():
  lines = run(
      *[sys.executable, "launch/xm_launch.py"],
      *[DAPO, "--seeds=0,1", "--set=rl.steps=3"],
      *[
          "--set=surrogate.args.clip_high=0.2",
          "--set=surrogate.args.clip_high=0.28",
          "--dry_run",
      ],
  )
  start = [sys.executable, "-m", "rl_reason.main", DAPO]
  assert [shlex.split(line) for line in lines] == [
      [
          *[*start, f"--config.seed={seed}", "--config.rl.steps=3"],
          f"--config.surrogate.args.clip_high={clip}",
      ]
      for seed in (0, 1)
      for clip in (0.2, 0.28)
  ]


# The child checks all command lines in one process: its start takes seconds.
REFUSED = {
    "surrogate.args.clip_low": [DAPO, "--set=surrogate.args.clip_low=2"],
    "stepps": [DAPO, "--set=rl.stepps=2"],
    "many": [DAPO, "--set=rl.steps=many"],
    "field=value": [DAPO, "--set=seed"],
    "seed = x: must be": [DAPO, "--seeds=0,x"],
    "smoky": [DAPO + ":smoky"],
    "configs/none.py": ["--config=configs/none.py"],
    "seed=1": [DAPO, "seed=1"],
    "--config": [],
    "clip_low = 2:": [
        DAPO,
        "--set=surrogate.args.clip_low=0.2",
        "--set=surrogate.args.clip_low=2",
    ],
}


def test_xm_refuses_all_runs_before_the_first_one_starts(tmp_path):
  code = f"""
import runpy, sys
from absl import flags
names = runpy.run_path({str(ROOT / "launch" / "xm_launch.py")!r})
for argv in {list(REFUSED.values())}:
  flags.FLAGS.unparse_flags()
  for name in ("config", "seeds", "set"):
    flags.FLAGS[name].unparse()
  rest = flags.FLAGS(["xm_launch", *argv, "--dry_run"])
  assert names["main"](rest) == 2
sys.exit(2)
"""
  lines = run(sys.executable, "-c", code, code=2, cwd=tmp_path)
  assert len(lines) == len(REFUSED)
  for reason, line in zip(REFUSED, lines, strict=True):
    assert line.startswith("config error: ") and reason in line
