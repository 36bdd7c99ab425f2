"""Launchers: the commands that they would run, and the mistakes they name."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

from configs import base
from rl_reason import main
from rl_reason.base import config

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = [
    *["launch/local.sh", "launch/tpu_vm.sh", "launch/xpk.sh"],
    *["launch/slurm.sbatch", "launch/resume.sh", "launch/vllm.sh"],
]
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


@pytest.fixture(autouse=True)
def accepts(monkeypatch):
  """Returns a check that `main` understands a command, flag by flag."""
  monkeypatch.chdir(ROOT)

  def check(command: list[str]) -> None:
    argv = command[command.index("rl_reason.main") :]
    main.FLAGS.unparse_flags()
    main._prepare(argv)

  yield check
  for name in ("config", "workdir", "distributed", "coordinator", "processes"):
    main.FLAGS[name].unparse()
  main.FLAGS["process"].unparse()


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


def test_local_runs_one_process(accepts):
  [command] = dry("bash", "launch/local.sh", *FLAGS)
  assert command == ["python", "-m", "rl_reason.main", *FLAGS]
  accepts(command)


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


def test_local_joins_processes(accepts):
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
  accepts(commands[1])


def test_tpu_runs_the_flags_on_all_workers(accepts):
  [command] = dry("bash", "launch/tpu_vm.sh", "run", *FLAGS, ZONE="z", TPU="t")
  assert command[:7] == "gcloud compute tpus tpu-vm ssh t --worker=all".split()
  assert command[-1] == "--zone=z"
  remote = shlex.split(command[7].removeprefix("--command="))
  assert remote[3:] == [
      *["RESTARTS=10", "launch/resume.sh"],
      *[".venv/bin/python", "-m", "rl_reason.main", "--distributed"],
      *FLAGS,
  ]
  accepts(remote)


@pytest.mark.parametrize(
    ("codes", "starts", "code"),
    [
        ("143 175 0 0", 3, 0),
        ("175 1 0 0", 2, 1),
        ("175 175 143 0", 3, 143),  # two restarts at most
    ],
)
def test_a_run_that_can_resume_starts_again(tmp_path, codes, starts, code):
  (tmp_path / "codes").write_text(codes.replace(" ", "\n") + "\n")
  once = "n=$(wc -l < seen); echo >> seen; exit $(sed -n $((n + 1))p codes)"
  (tmp_path / "seen").touch()
  again = str(ROOT / "launch" / "resume.sh")
  flags = dict(code=code, cwd=tmp_path, RESTARTS="2", PAUSE="0")
  run(again, "bash", "-c", once, **flags)
  assert (tmp_path / "seen").read_text().count("\n") == starts


@pytest.mark.parametrize("error", ["2>&-", "2>/dev/full", "2> >(:)"])
def test_nobody_need_read_that_a_run_starts_again(tmp_path, error):
  (tmp_path / "seen").touch()
  again = str(ROOT / "launch" / "resume.sh")
  once = f"sleep .1; echo >> {tmp_path}/seen; exit 143"
  done = subprocess.run(
      ["bash", "-c", f'"$@" {error}', "bash", again, "bash", "-c", once],
      env=os.environ | dict(RESTARTS="2", PAUSE="0"),
  )
  assert done.returncode == 143
  assert (tmp_path / "seen").read_text().count("\n") == 3


def test_a_signal_to_the_script_stops_the_run_for_good(tmp_path):
  once = "trap 'echo saved; exit 143' TERM; echo runs; sleep 60 & wait"
  process = subprocess.Popen(
      [ROOT / "launch" / "resume.sh", "bash", "-c", once],
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
  )
  assert process.stdout.readline() == "runs\n"
  process.terminate()
  assert process.stdout.readline() == "saved\n" and process.wait(30) == 143
  with contextlib.suppress(ProcessLookupError):  # the sleep, if it had begun
    os.killpg(process.pid, signal.SIGKILL)
  process.stdout.close()


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


def test_slurm_gives_a_lone_task_all_gpus_of_its_node(accepts):
  [command] = dry(
      "bash", "launch/slurm.sbatch", *FLAGS, SLURM_GPUS_ON_NODE="4", PYTHON="p"
  )
  assert command == [
      *["env", "JAX_LOCAL_DEVICE_IDS=0,1,2,3"],
      *["srun", "--gpu-bind=none", "--kill-on-bad-exit=0"],
      *["p", "-m", "rl_reason.main", "--distributed", *FLAGS],
  ]
  accepts(command)


def test_slurm_leaves_one_task_a_gpu_to_jax():
  [command] = dry("bash", "launch/slurm.sbatch", SLURM_NTASKS_PER_NODE="8")
  assert command[0] == "srun"


def test_slurm_gives_the_cores_of_the_job_to_its_tasks():
  """srun does not inherit --cpus-per-task of sbatch."""
  [command] = dry("bash", "launch/slurm.sbatch", SLURM_CPUS_PER_TASK="32")
  assert "--cpus-per-task=32" in command[command.index("srun") :]
  [command] = dry("bash", "launch/slurm.sbatch")
  assert not any("cpus-per-task" in x for x in command)


XPK = dict(CLUSTER="c", IMAGE="i")


def test_xpk_runs_the_flags_on_all_hosts(accepts):
  [command] = dry(
      "bash", "launch/xpk.sh", "run", *FLAGS, **XPK, TYPE="v5p-8", ZONE="z"
  )
  assert command[:4] == ["xpk", "workload", "create", "--tpu-type=v5p-8"]
  assert {"--cluster=c", "--docker-image=i", "--zone=z"} < set(command)
  assert "--storage" not in " ".join(command)
  [remote] = [x for x in command if x.startswith("--command=")]
  remote = shlex.split(remote.removeprefix("--command="))
  assert remote[:3] == ["cd", "/rl_reason", "&&"]  # of launch/Dockerfile
  assert remote[3:] == [
      "python",
      "-m",
      "rl_reason.main",
      "--distributed",
      *FLAGS,
  ]
  accepts(remote)


def test_xpk_builds_an_image_and_deletes_a_workload():
  build, push = dry("bash", "launch/xpk.sh", "image", **XPK)
  file = build[build.index("-f") + 1]
  assert (ROOT / file).exists() and "DEVICE=tpu" in build and push[-1] == "i"
  [command] = dry("bash", "launch/xpk.sh", "delete", CLUSTER="c", WORKLOAD="w")
  assert " ".join(command) == "xpk workload delete --workload=w --cluster=c"
  assert "IMAGE" in run("bash", "launch/xpk.sh", "run", code=1, CLUSTER="c")[-1]
  run("bash", "launch/xpk.sh", "fly", code=2, CLUSTER="c")


SKY = yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())


@pytest.mark.parametrize(
    ("device", "hosts", "flags"),
    [
        ("cuda13", ["a"], []),
        ("tpu", ["a", "b"], ["--distributed"]),
        (
            *("cuda12", ["a", "b"]),
            [
                *["--distributed", "--coordinator=a:8476"],
                *["--processes=2", "--process=1"],
            ],
        ),
    ],
)
def test_skypilot_runs_its_flags_on_all_hosts(
    tmp_path, accepts, device, hosts, flags
):
  fake = tmp_path / ".venv" / "bin" / "python"
  fake.parent.mkdir(parents=True)
  fake.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
  fake.chmod(0o755)
  text = SKY["envs"] | dict(DEVICE=device, FLAGS=shlex.join(FLAGS), BUCKET="b")
  text |= dict(SKYPILOT_NODE_IPS="\n".join(hosts), SKYPILOT_NODE_RANK="1")
  command = run("bash", "-c", SKY["run"], cwd=tmp_path, **text)
  start = ["-m", "rl_reason.main", *flags, "--workdir=/runs/dapo"]
  assert command == [*start, *FLAGS]
  accepts(command)
  accepts(["rl_reason.main", *shlex.split(SKY["envs"]["FLAGS"])])


def extras() -> set[str]:
  """The extras of setup.py."""
  text = (ROOT / "setup.py").read_text().partition("extras_require")[2]
  return set(re.findall(r'^ {8}"(\w+)": \[', text, re.MULTILINE))


def test_skypilot_installs_an_extra_and_mounts_what_it_writes():
  run("bash", "-n", "-c", SKY["setup"])
  assert {SKY["envs"]["DEVICE"], "cuda12", "cuda13", "tpu"} <= extras()
  [mount] = SKY["file_mounts"]
  assert f'"--workdir={mount}/$RUN"' in SKY["run"]
  assert SKY["envs"]["BUCKET"] is None  # required: SkyPilot asks for it


def test_the_image_has_what_it_copies_and_an_extra_that_exists():
  path = ROOT / "launch" / "Dockerfile"
  text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)
  lines = text.replace("\\\n", " ").splitlines()
  steps = [line.split(maxsplit=1) for line in lines if line]
  known = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT"}
  assert {name for name, _ in steps} <= known and steps[0][0] == "FROM"
  by_name = {name: [x for n, x in steps if n == name] for name in known}
  for copy in by_name["COPY"]:
    for source in copy.split()[:-1]:
      assert (ROOT / source).exists()
  [device, user], [entry] = by_name["ARG"], by_name["ENTRYPOINT"]
  assert device.removeprefix("DEVICE=") in extras()
  assert entry == '["python", "-m", "rl_reason.main"]'
  # One base for ever, and a user of its own in the end.
  [base] = by_name["FROM"]
  assert re.fullmatch(r"python:3\.11\S*@sha256:[0-9a-f]{64}", base)
  assert user == "RUN_AS=rl" and by_name["USER"] == ["$RUN_AS"]
  assert [name for name, _ in steps[-2:]] == ["USER", "ENTRYPOINT"]
  if lint := shutil.which("hadolint"):
    run(lint, str(path))


def test_xm_sweeps_seeds_and_fields_that_are_set_twice():
  lines = run(
      *[sys.executable, "launch/xm_launch.py"],
      *[DAPO, "--seeds=0,1", "--set=rl.steps=3", "--dry_run"],
  )
  start = [str(ROOT / "launch" / "resume.sh"), sys.executable]
  start += ["-m", "rl_reason.main", DAPO]
  assert [shlex.split(line) for line in lines] == [
      [
          *[*start, f"--config.seed={seed}", "--config.rl.steps=3"],
          f"--workdir=runs/{workdir}",
      ]
      for seed, workdir in enumerate(["dapo", "dapo,seed=1"])
  ]


def test_xm_refuses_all_runs_before_the_first_one_starts(tmp_path):
  (tmp_path / "xmanager.py").write_text("raise ImportError\n")
  for argv, reason in (
      (["--set=rl.stepps=2", "--dry_run"], "stepps"),
      (
          ["--set=log.groups=1", "--set=log.groups=2", "--dry_run"],
          "same direct",
      ),
      ([], "XManager is not installed"),
  ):
    command = [sys.executable, "launch/xm_launch.py", DAPO, *argv]
    [line] = run(*command, code=2, PYTHONPATH=str(tmp_path))
    assert line.startswith("config error: ") and reason in line
