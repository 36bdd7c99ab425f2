"""Launchers with processes: exit codes, signals, requeueing."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


def run(*argv, code=0, cwd=ROOT, **env):
  """Runs a command in a minimal environment; returns its output as lines."""
  bare = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
  done = subprocess.run(
      argv, cwd=cwd, env=bare | env, capture_output=True, text=True
  )
  assert done.returncode == code, done.stdout + done.stderr
  return (done.stderr if code else done.stdout).splitlines()


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


@pytest.mark.parametrize(
    ("code", "requeued"), [(0, 0), (1, 0), (143, 1), (175, 1)]
)
def test_slurm_queues_again_what_was_stopped(tmp_path, code, requeued):
  fakes = {"srun": f"exit {code}", "scontrol": 'touch "$0.$2"'}
  for name, body in fakes.items():
    (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / name).chmod(0o755)
  path = f"{tmp_path}:{os.environ['PATH']}"
  run("bash", "launch/slurm.sbatch", code=code, PATH=path, SLURM_JOB_ID="7")
  assert (tmp_path / "scontrol.7").exists() == bool(requeued)


def test_the_image_is_built_and_runs():
  """For CPUs; launch/Dockerfile is the same file for CUDA and TPU."""
  info = ["docker", "info"]
  if not shutil.which("docker") or subprocess.call(info, stdout=-3, stderr=-3):
    pytest.skip("there is no docker daemon")
  build = ["docker", "build", "--quiet", "-f", "launch/Dockerfile"]
  [image] = run(*build, "--build-arg", "DEVICE=", ".")
  lines = run("docker", "run", "--rm", image, "--config=configs/grpo.py:smoke")
  assert any("report.html" in line for line in lines)
