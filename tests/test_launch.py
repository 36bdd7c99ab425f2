"""Launchers: what they would run, and what they refuse to."""

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
  """Runs a command in a bare environment; returns the lines it printed."""
  bare = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
  done = subprocess.run(
      argv, cwd=cwd, env=bare | env, capture_output=True, text=True
  )
  assert done.returncode == code, done.stdout + done.stderr
  return (done.stderr if code else done.stdout).splitlines()


def dry(*argv, **env):
  """The commands that a script would run, split as the shell would."""
  return [shlex.split(line) for line in run(*argv, DRY_RUN="1", **env)]


def xm_launch(*argv, **more):
  return run(sys.executable, "launch/xm_launch.py", *argv, **more)


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


@pytest.mark.parametrize("code", [0, 2, 143])
def test_local_waits_for_all_processes_and_passes_the_code_on(tmp_path, code):
  fake = tmp_path / "python"
  fake.write_text(f'#!/bin/sh\ntouch "$0.$$"; exit {code}\n')
  fake.chmod(0o755)
  run("bash", "launch/local.sh", code=code, PROCESSES="3", PYTHON=str(fake))
  assert len(list(tmp_path.iterdir())) == 4


def test_local_hands_sigterm_to_all_processes(tmp_path):
  fake = tmp_path / "python"
  fake.write_text(
      "#!/bin/bash\n"
      "trap 'sleep 0.2; touch \"$0.saved.$$\"; exit 143' TERM\n"
      'touch "$0.up.$$"\nfor i in {1..200}; do sleep 0.05; done\n'
  )
  fake.chmod(0o755)
  env = os.environ | {"PROCESSES": "2", "PYTHON": str(fake)}
  script = subprocess.Popen(["bash", "launch/local.sh"], cwd=ROOT, env=env)
  while len(list(tmp_path.glob("*.up.*"))) < 2:
    assert script.poll() is None
  script.terminate()
  assert script.wait(20) == 143
  assert len(list(tmp_path.glob("*.saved.*"))) == 2


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


@pytest.mark.parametrize(("code", "requeued"), [(0, 0), (1, 0), (143, 1)])
def test_slurm_queues_again_what_was_stopped(tmp_path, code, requeued):
  fakes = {"srun": f"exit {code}", "scontrol": 'touch "$0.$2"'}
  for name, body in fakes.items():
    (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / name).chmod(0o755)
  path = f"{tmp_path}:{os.environ['PATH']}"
  run("bash", "launch/slurm.sbatch", code=code, PATH=path, SLURM_JOB_ID="7")
  assert (tmp_path / "scontrol.7").exists() == bool(requeued)


def test_xm_sweeps_seeds_and_fields_that_are_set_twice():
  lines = xm_launch(
      *[DAPO, "--seeds=0,1", "--set=rl.steps=3"],
      *["--set=loss.clip_high=0.2", "--set=loss.clip_high=0.28", "--dry_run"],
  )
  start = [sys.executable, "-m", "rl_reason.main", DAPO]
  assert [shlex.split(line) for line in lines] == [
      [
          *[*start, f"--config.seed={seed}", "--config.rl.steps=3"],
          f"--config.loss.clip_high={clip}",
      ]
      for seed in (0, 1)
      for clip in (0.2, 0.28)
  ]


def test_xm_works_from_anywhere(tmp_path):
  launcher = str(ROOT / "launch" / "xm_launch.py")
  argv = [sys.executable, launcher, "--config=configs/grpo.py", "--dry_run"]
  assert len(run(*argv, cwd=tmp_path)) == 1


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([DAPO, "--set=loss.clip_low=2"], "loss.clip_low"),
        ([DAPO, "--set=rl.stepps=2"], "stepps"),
        ([DAPO, "--set=rl.steps=many"], "many"),
        ([DAPO, "--set=seed"], "field=value"),
        ([DAPO, "--seeds=0,x"], "'x'"),
        ([DAPO + ":smoky"], "smoky"),
        (["--config=configs/none.py"], "configs/none.py"),
        ([DAPO, "seed=1"], "seed=1"),
        ([], "--config"),
    ],
)
def test_xm_refuses_before_anything_starts(argv, reason):
  *_, line = xm_launch(*argv, code=2)
  assert line.startswith("config error: ")
  assert reason in line


def test_xm_refuses_all_runs_for_one_bad_value():
  sets = ["--set=loss.clip_low=0.2", "--set=loss.clip_low=2"]
  [line] = xm_launch(DAPO, *sets, "--dry_run", code=2)
  assert "loss.clip_low = 2.0" in line


def test_xm_without_xmanager_runs_one_after_the_other(tmp_path):
  """A copy whose main only notes its arguments, and fails for seed 1."""
  for name in ("launch", "configs", "rl_reason"):
    (tmp_path / name).mkdir()
    for path in (ROOT / name).rglob("*.py"):
      copy = tmp_path / path.relative_to(ROOT)
      copy.parent.mkdir(exist_ok=True)
      copy.write_text(path.read_text())
  (tmp_path / "xmanager.py").write_text("raise ImportError\n")
  (tmp_path / "rl_reason" / "main.py").write_text(
      "import sys\nprint(sys.argv[1:])\n"
      "sys.exit('--config.seed=1' in sys.argv)\n"
  )
  launcher = str(tmp_path / "launch" / "xm_launch.py")
  argv = [sys.executable, launcher, DAPO]
  [error] = run(*argv, "--seeds=0,1,2", code=1)
  assert error == "run 2 ended with exit code 1"
  first, noted = run(*argv, "--seeds=0")
  assert first.startswith("run 1/1: ")
  assert noted == str([DAPO, "--config.seed=0"])
