"""Launches an experiment: a config, swept over seeds and overrides.

  python launch/xm_launch.py --config=configs/dapo.py --seeds=0,1,2 \
      --set=rl.steps=100 --set=rollout.group_size=4 --set=rollout.group_size=8

A field that is set several times is swept: the command above starts 3 x 2 runs.
They run one after the other, with XManager if it is installed (`pip install
xmanager`; `xmanager launch launch/xm_launch.py -- ...` works too), otherwise as
child processes. `--dry_run` prints the commands.

All combinations are checked before the first one starts. Exit codes: 0 success;
1 a run failed; 2 a config error, nothing was started.
"""

import asyncio
import contextlib
import itertools
import os
import pathlib
import shlex
import subprocess
import sys

from absl import app, flags

# Finds rl_reason and configs, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from rl_reason import checks, config as config_lib

try:
  from xmanager import xm, xm_local
except ImportError:
  xm = None

ROOT = pathlib.Path(__file__).resolve().parents[1]

_CONFIG = flags.DEFINE_string(
    "config", None, "config file, e.g. configs/dapo.py or configs/dapo.py:smoke"
)
_SEEDS = flags.DEFINE_list("seeds", [], "seeds to run; default: the config's")
_SET = flags.DEFINE_multi_string(
    "set", [], "field=value of the config; a field that is repeated is swept"
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "only print the commands")


def sweep(config: str, seeds: list[str], sets: list[str]) -> list[dict]:
  """Returns the arguments of all runs: a product over the swept fields.

  Args:
    config: file of the config.
    seeds: seeds; [] keeps the seed of the config.
    sets: list of 'field=value'.

  Raises:
    config_lib.ConfigError: an entry is not 'field=value'.
  """
  fields = {"seed": list(seeds)} if seeds else {}
  for text in sets:
    field, mark, value = text.partition("=")
    if not mark:
      raise config_lib.ConfigError(f"--set = {text!r}: must be field=value")
    fields.setdefault(field, []).append(value)
  names = [f"config.{field}" for field in fields]
  return [
      {"config": config} | dict(zip(names, values, strict=True))
      for values in itertools.product(*fields.values())
  ]


def argv(args: dict) -> list[str]:
  """Returns the arguments as command-line flags."""
  return [f"--{name}={value}" for name, value in args.items()]


def check(args: dict) -> None:
  """Checks the config of one run exactly as the run will.

  Raises:
    config_lib.ConfigError: the config cannot work.
  """
  fields = {k: v for k, v in args.items() if k.startswith("config.")}
  checks.checked(
      args["config"], {k.removeprefix("config."): v for k, v in fields.items()}
  )


async def launch(title: str, runs: list[dict]) -> None:
  """Runs them as work units of one XManager experiment, one after the other.

  Args:
    title: title of the experiment.
    runs: arguments of each run.

  Raises:
    RuntimeError: a run failed; raised after the last run.
  """
  executor = xm_local.Local()
  async with xm_local.create_experiment(experiment_title=title) as experiment:
    [executable] = experiment.package(
        [
            xm.binary(
                path=sys.executable,
                args=["-m", "rl_reason.main"],
                executor_spec=executor.Spec(),
            )
        ]
    )
    for args in runs:
      job = xm.Job(executable=executable, executor=executor, args=args)
      unit = await experiment.add(job)
      with contextlib.suppress(xm.ExperimentUnitFailedError):
        await unit.wait_until_complete()  # the next run needs the accelerator


def run_here(commands: list[list[str]]) -> int:
  """Runs commands one after the other; returns the number of failures."""
  failed = 0
  for index, command in enumerate(commands):
    print(f"run {index + 1}/{len(commands)}: {shlex.join(command)}", flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
      print(f"run {index + 1} ended with exit code {code}", file=sys.stderr)
      failed += 1
  return failed


def main(rest: list[str]) -> int:
  """Builds and checks the experiment, then launches or prints it."""
  os.chdir(ROOT)  # the directory of configs/ and runs/
  try:
    if rest[1:]:
      raise config_lib.ConfigError(f"{rest[1]!r}: unexpected argument")
    if _CONFIG.value is None:
      raise config_lib.ConfigError("--config is missing")
    runs = sweep(_CONFIG.value, _SEEDS.value, _SET.value)
    for args in runs:
      check(args)
  except config_lib.ConfigError as e:
    print(f"config error: {e}", file=sys.stderr)
    return 2
  command = [sys.executable, "-m", "rl_reason.main"]
  commands = [command + argv(args) for args in runs]
  if _DRY_RUN.value:
    print("\n".join(shlex.join(command) for command in commands))
    return 0
  if xm is None:
    return int(run_here(commands) > 0)
  try:
    asyncio.run(launch(f"rl_reason {_CONFIG.value}", runs))
  except RuntimeError as e:
    print(f"error: {e}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  app.run(main)
