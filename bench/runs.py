"""Training runs of the benchmarks, by the runner of ablations and sweeps."""

import pathlib
import subprocess
from collections.abc import Iterable
from typing import Any

from bench import results
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks
from rl_reason.lab import jobs

HELD_OUT = {"evaluate.validation": False}  # curves select no checkpoint


def run(
    config: str,
    workdir: pathlib.Path,
    fields: dict[str, Any],
    bases: tuple[pathlib.Path, ...] = (),
    *flags: str,
) -> jobs.Job:
  """Returns the job of a run.

  Args:
    config: file of the config.
    workdir: work directory; its name becomes the name of the job.
    fields: {field: value} that differ from the config.
    bases: work directories of runs that this run needs.
    *flags: of the command, such as --stage=sft.
  """
  c, _ = config_checks.checked(config, fields)
  args = jobs.arguments(config, fields, workdir, *flags)
  return jobs.Job(
      workdir.name, workdir, args, config_lib.flat(c), bases, row=workdir.name
  )


def command(*args: str) -> None:
  """Runs a command of the package to its end; its output is shown."""
  subprocess.run([*jobs.MAIN, *args], cwd=results.ROOT, check=True)


def make(wanted: Iterable[jobs.Job], parallel: int = 1, **variables) -> None:
  """Makes the runs that have not finished.

  Args:
    wanted: jobs; a base precedes the runs that need it.
    parallel: number of runs at a time.
    **variables: environment variables of the runs.

  Raises:
    SystemExit: a run failed, or a signal ended them.
  """
  stop = jobs.stop_on_signals()
  failed = jobs.run(
      list(wanted), stop, parallel=parallel, environment=variables
  )
  if failed or stop.is_set():
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 143)
