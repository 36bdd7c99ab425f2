"""Sweeps: one config with several seeds and overrides, several runs at once.

  python -m rl_reason.lab.sweep --config=configs/dapo.py --seeds=0,1,2 \
      --set=rl.steps=100 --set=rollout.group_size=4 --set=rollout.group_size=8 \
      --jobs=4 --devices=0,1,2,3

A field that is set several times is swept: the command above makes 3 x 2 runs,
four at a time, each on one GPU and in its default work directory. All configs
are checked before the first run starts. The same command continues a sweep that
was stopped, and skips finished runs. The exit codes equal those of
`rl_reason.main`; runs that failed are named at the end.
"""

import argparse
import itertools
import pathlib
import shlex
import sys
from collections.abc import Sequence

from rl_reason.base import config as config_lib
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, machine_checks, run_directory
from rl_reason.lab import jobs
from rl_reason.monitoring import output_guard


def product(
    config: str, seeds: Sequence[str], sets: Sequence[str]
) -> list[dict[str, str]]:
  """Returns the arguments of all runs: a product over the swept fields.

  `sets` are 'field=value'; without seeds the seed of the config is kept.

  Raises:
    ConfigError: an entry is not 'field=value', or a value occurs twice.
  """
  fields = {"seed": list(seeds)} if seeds else {}
  for text in sets:
    field, mark, value = text.partition("=")
    if not mark:
      raise ConfigError(f"--set = {text!r}: must be field=value")
    fields.setdefault(field, []).append(value)
  for field, values in fields.items():
    if len(set(values)) < len(values):
      raise ConfigError(f"{field} = {', '.join(values)}: name each value once")
  names = [f"config.{field}" for field in fields]
  return [
      {"config": config} | dict(zip(names, values, strict=True))
      for values in itertools.product(*fields.values())
  ]


def argv(args: dict[str, str]) -> list[str]:
  """Returns the arguments as command-line flags."""
  return [f"--{name}={value}" for name, value in args.items()]


def check(args: dict[str, str]) -> tuple[dict, pathlib.Path]:
  """Checks the config of one run as the run itself does.

  Returns:
    the flat config, and the default work directory of the run.

  Raises:
    ConfigError: the config is invalid.
  """
  path = args["config"]
  given = {
      name.removeprefix("config."): value
      for name, value in args.items()
      if name != "config"
  }
  c, _ = config_checks.checked(path, given)
  if lines := machine_checks.files(c):
    raise ConfigError(*lines)
  return config_lib.flat(c), run_directory.default(path, c, given)


def plan(runs: list[dict[str, str]], folder: pathlib.Path) -> list[jobs.Job]:
  """Returns a job for each of the runs of `product`, with its default name.

  Raises:
    ConfigError: a config is invalid, or two runs do not differ.
  """
  out = []
  for args in runs:
    fields, workdir = check(args)
    workdir = folder / workdir.name
    if workdir in [job.workdir for job in out]:
      raise ConfigError(
          f"{workdir}: two runs have the same directory, since they differ in"
          " no field that changes results; remove one"
      )
    flags = argv(args | {"workdir": str(workdir)})
    name, seed = workdir.name, fields["seed"]
    out.append(jobs.Job(name, workdir, flags, fields, row=name, seed=seed))
  return out


def main(argv: list[str], child: Sequence[str] = jobs.MAIN) -> int:
  """Runs the command and returns the exit code; `child` executes one run."""
  parser = argparse.ArgumentParser(
      prog="python -m rl_reason.lab.sweep",
      description=__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  flag = parser.add_argument
  flag("--config", required=True, help="config file, as of rl_reason.main")
  flag("--seeds", type=_split, default=[], help="0,1,2; default: the config's")
  flag(
      "--set", action="append", default=[], help="field=value; repeat to sweep"
  )
  flag("--jobs", type=int, default=1, help="number of runs at a time")
  flag("--runs_per_process", type=int, default=1, help="see jobs.run")
  flag("--devices", type=_split, default=[], help="GPUs or TPU chips: 0,1,2,3")
  flag("--workdir", default="runs", help="parent of the work directories")
  flag("--dry_run", action="store_true", help="only print the commands")
  flags = parser.parse_args(argv)
  if min(flags.jobs, flags.runs_per_process) < 1:
    parser.error("--jobs, --runs_per_process: at least 1")
  folder = pathlib.Path(flags.workdir).expanduser()
  try:
    if flags.devices:
      jobs.divide(flags.devices, flags.jobs)
    todo = plan(product(flags.config, flags.seeds, flags.set), folder)
  except ConfigError as e:
    print(*(f"config error: {x}" for x in e.lines), sep="\n", file=sys.stderr)
    return 2
  if flags.dry_run:
    for job in todo:
      print(shlex.join([*child, *job.args]))
    return 0
  stop = jobs.stop_on_signals()
  failed = jobs.run(
      todo,
      stop,
      parallel=flags.jobs,
      main=child,
      devices=flags.devices,
      runs_per_process=flags.runs_per_process,
  )
  done = [str(job.workdir) for job in todo if job.finished()]
  if len(done) > 1:
    page = f"--stage=report --workdir={shlex.quote(','.join(done))}"
    jobs.say(f"to compare: python -m rl_reason.main {page}")
  for name in failed:
    jobs.say(f"FAILED: {name}")
  return 143 if stop.is_set() else int(bool(failed))


def _split(text: str) -> list[str]:
  return [x for x in text.split(",") if x]


if __name__ == "__main__":
  with output_guard.guarded():
    status = main(sys.argv[1:])
  sys.exit(status)
