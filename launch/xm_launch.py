"""Launches an XManager experiment: a config, with several seeds and overrides.

  python launch/xm_launch.py --config=configs/dapo.py --seeds=0,1,2 \
      --set=rl.steps=100 --set=rollout.group_size=4 --set=rollout.group_size=8

A field that is set several times is swept: the command above starts 3 x 2 runs,
one after the other, as processes of this machine (`xm_local.Local`). It needs
XManager (`uv pip install xmanager`), which keeps its database in ~/.xmanager.
`xmanager launch launch/xm_launch.py -- ...` works too. `python -m
rl_reason.lab.sweep` needs no XManager, and starts several runs at once.
`--dry_run` prints the commands.

All combinations are checked before the first one starts. Exit codes: 0 success;
1 a run failed; 2 a config error, nothing was started; 143 stopped by a signal.
"""

import asyncio
import contextlib
import os
import pathlib
import shlex
import signal
import sys

from absl import app, flags

# Finds rl_reason and configs, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from rl_reason.base import errors
from rl_reason.lab import jobs, sweep

try:
  import psutil  # a requirement of XManager
  from xmanager import xm, xm_local
except ImportError:
  xm = None

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The command of a run, restarted if it was stopped or lost.
COMMAND = [str(ROOT / "launch" / "resume.sh"), sys.executable]
COMMAND += ["-m", "rl_reason.main"]

_CONFIG = flags.DEFINE_string(
    "config", None, "config file, e.g. configs/dapo.py or configs/dapo.py:smoke"
)
_SEEDS = flags.DEFINE_list("seeds", [], "seeds to run; default: the config's")
_SET = flags.DEFINE_multi_string(
    "set", [], "field=value of the config; a field that is repeated is swept"
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "only print the commands")


async def launch(title: str, runs: list[jobs.Job]) -> bool:
  """Runs the work units of an XManager experiment, one after the other.

  SIGINT and SIGTERM end the experiment: the current run saves its state.
  XManager alone would wait for the end of the run.

  Args:
    title: title of the experiment.
    runs: the runs of a sweep.

  Returns:
    whether a signal ended the experiment.

  Raises:
    RuntimeError: a run failed; raised after the last run.
  """
  stopped, loop = asyncio.Event(), asyncio.get_running_loop()

  def stop():
    stopped.set()
    for child in psutil.Process().children(recursive=True):
      if COMMAND[0] in child.cmdline():  # not the shell around it
        child.terminate()

  for number in (signal.SIGINT, signal.SIGTERM):
    loop.add_signal_handler(number, stop)
  executor = xm_local.Local()
  try:
    async with xm_local.create_experiment(experiment_title=title) as experiment:
      [executable] = experiment.package(
          [
              xm.binary(
                  path=COMMAND[0],
                  args=COMMAND[1:],
                  executor_spec=executor.Spec(),
              )
          ]
      )
      for run in runs:
        job = xm.Job(executable=executable, executor=executor, args=run.args)
        unit = await experiment.add(job)
        with contextlib.suppress(xm.ExperimentUnitFailedError):
          await unit.wait_until_complete()  # the next run needs the accelerator
        if stopped.is_set():
          break
  except RuntimeError:
    if not stopped.is_set():
      raise
  return stopped.is_set()


def main(rest: list[str]) -> int:
  """Builds and checks the experiment, then launches or prints it."""
  os.chdir(ROOT)  # the directory of configs/ and runs/
  try:
    if rest[1:]:
      raise errors.ConfigError(f"{rest[1]!r}: unexpected argument")
    if _CONFIG.value is None:
      raise errors.ConfigError("--config is missing")
    fields = sweep.product(_CONFIG.value, _SEEDS.value, _SET.value)
    runs = sweep.plan(fields, pathlib.Path("runs"))
    if xm is None and not _DRY_RUN.value:
      raise errors.ConfigError(
          "XManager is not installed: `uv pip install xmanager`, or use"
          " `python -m rl_reason.lab.sweep` with the same flags"
      )
  except errors.ConfigError as e:
    print(f"config error: {e}", file=sys.stderr)
    return 2
  if _DRY_RUN.value:
    print("\n".join(shlex.join(COMMAND + run.args) for run in runs))
    return 0
  try:
    stopped = asyncio.run(launch(f"rl_reason {_CONFIG.value}", runs))
  except RuntimeError as e:
    print(f"error: {e}", file=sys.stderr)
    return 1
  if stopped:
    print("stopped; the same command resumes", file=sys.stderr)
    return 143
  return 0


if __name__ == "__main__":
  app.run(main)
