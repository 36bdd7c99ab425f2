"""The command `python -m rl_reason.ablate`."""

import argparse
import json
import pathlib
import shlex
import signal
import sys
import threading
from collections.abc import Sequence

from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_files, run_directory
from rl_reason.lab import jobs, study
from rl_reason.monitoring import screen


def main(argv: list[str], child: Sequence[str] = jobs.MAIN) -> int:
  """Runs the command and returns the exit code; `child` runs a row."""
  parser = argparse.ArgumentParser(
      prog="python -m rl_reason.ablate",
      description=study.__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  flag = parser.add_argument
  flag("--config", required=True, help="configs/ablations/X.py")
  flag("--config.seeds", dest="seeds", type=_seeds, help="override: 1,2,3")
  flag("--rows", nargs="+", help="run only these rows")
  flag("--jobs", type=int, default=2, help="number of processes at a time")
  flag("--out", default="results", help="directory of the output files")
  flag("--workdir", default="runs/ablations", help="directory of the runs")
  flag(
      "--table", action="store_true", help="run nothing: rewrite from the data"
  )
  flag("--against", help="with --table: print a comparison with this row")
  flag("--at", type=int, help="with --against: as of this RL step")
  flags = parser.parse_args(argv)
  if flags.jobs < 1:
    parser.error("--jobs: at least 1")
  file, _, variant = flags.config.partition(":")
  name = pathlib.Path(file).stem + (f"-{variant}" if variant else "")
  out = pathlib.Path(flags.out) / f"{name}.json"
  try:
    if flags.table:
      if not out.exists():
        raise ConfigError(f"{out}: there are no data yet; leave out --table")
      data, code = json.loads(out.read_text()), 0
      rows = [flags.against] * bool(flags.against) + list(flags.rows or ())
      for row in rows:
        known = [x[0] for x in data["rows"]]
        study.require("--against, --rows", row, known)
    else:
      data, code = _run(flags, argv, name, out, child)
  except ConfigError as e:
    print(f"config error: {e}", file=sys.stderr)
    return 2
  if not data["runs"]:
    return code
  from rl_reason.lab import comparison, study_pages

  if flags.table and flags.against:
    data = comparison.select(data, flags.rows or (), flags.against, flags.at)
    print(study_pages.markdown_table(data))
    return code
  for path in study_pages.write(data, out):
    jobs.say(f"wrote {path}")
  for text in comparison.notes(data):
    jobs.say(text)
  return code


def _seeds(text: str) -> tuple[int, ...]:
  return tuple(int(x) for x in text.split(","))


def _run(flags, argv, name: str, out: pathlib.Path, child):
  """Runs what is missing; returns the data and the exit code."""
  c = config_files.read(flags.config)
  if flags.seeds:
    c.seeds = flags.seeds
  folder = pathlib.Path(flags.workdir)
  plan = study.plan(c, folder, name)
  rows = [row[0] for row in c.rows]
  for row in flags.rows or ():
    study.require("--rows", row, rows)
  rows = ["", *(flags.rows or rows)]
  stop = threading.Event()
  command = f"python -m rl_reason.ablate {shlex.join(argv)}"

  def request_stop(number, _):
    stop.set()
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process

  signal.signal(signal.SIGTERM, request_stop)
  signal.signal(signal.SIGINT, request_stop)

  from rl_reason.lab import comparison  # it imports jax; mistakes come first

  def save():
    data = comparison.collect(c, plan, study.measures(c), command)
    if data["runs"]:
      comparison.save(data, out)
    return data

  own = folder / name
  own.mkdir(parents=True, exist_ok=True)
  failed = jobs.run(
      [job for job in plan if job.row in rows],
      stop,
      parallel=flags.jobs,
      main=child,
      on_finished=save,
      held=run_directory.lock(own, jobs.say),
  )
  for job in failed:
    jobs.say(f"FAILED: {job}")
  return save(), 143 if stop.is_set() else int(bool(failed))


def command() -> None:
  """Runs the command line."""
  with screen.guarded():
    status = main(sys.argv[1:])
  sys.exit(status)
