"""One command: SFT, RL, evaluation before and after, a report.

  python -m rl_reason.main --config=configs/dapo.py
  python -m rl_reason.main --config=configs/dapo.py --config.seed=1
  python -m rl_reason.main --stage=evaluate --workdir=runs/dapo --step=sft,best
  python -m rl_reason.main --stage=replay --step=27 --workdir=runs/dapo

Exit codes: 0 done; 1 an error on the way, or nothing was learned; 2 a config or
command line that cannot work; 130 ended by Ctrl-C, for instance a second one;
143 stopped by SIGTERM, SIGHUP or Ctrl-C, state saved; 175 another process of
the run was lost, or the run stood still for log.stall_ends seconds. After 130,
143 and 175 the same command resumes.
"""

import contextlib
import functools
import os
import pathlib
import pkgutil
import sys
import traceback
from collections.abc import Callable
from typing import Any

from absl import flags

from rl_reason import run
from rl_reason.checks import (
    command_line,
    exit_status,
    installation,
    run_directory,
    usage,
)
from rl_reason.monitoring import display, output_guard, process_end

STAGES = (*run.STAGES, "report")
FLAGS = flags.FLAGS
_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "config file, or a preset such as dapo; FILE:smoke runs every stage in"
    " seconds; --config.FIELD=VALUE sets a field",
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "where to write; default: runs/<config and overrides>; evaluate, report:"
    " several runs, as in runs/a,runs/b",
)
_STAGE = flags.DEFINE_enum("stage", "all", STAGES, "what to run")
_STEP = flags.DEFINE_string(
    "step",
    "newest",
    "evaluate, export, generate, serve: 'newest', 'best', a step of RL, or"
    " 'sft', the policy after SFT; several to evaluate, as in sft,newest;"
    " except generate, also the mean of steps, '20+30', or their moving"
    " average, '20+30@0.9'; replay: the step of RL to repeat",
)
_MEMORY = flags.DEFINE_float(
    "memory", None, "size: GiB of a device; default: as this machine has"
)
_DEVICES = flags.DEFINE_integer(
    *("devices", 0),
    "size: number of devices of another machine; 0: this machine; -1: the"
    " smallest number of devices of --memory GiB on which the run fits",
    lower_bound=-1,
)
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "several processes: jax.distributed.initialize"
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of process 0; default: from the cluster"
)
_PROCESSES = flags.DEFINE_integer("processes", None, "number of processes")
_PROCESS = flags.DEFINE_integer("process", None, "index of this process")


def main() -> None:
  """The console entry point."""
  process_end.leave(command(sys.argv))


def command(argv: list[str]) -> int:
  """Runs a command line; returns its exit code. `argv[0]` is the program."""
  with output_guard.guarded() as lost, process_end.said():
    return _explained(lambda _: _main(argv, lost), None)


def _main(argv: list[str], lost: output_guard.Lost) -> int:
  if text := usage.asked(argv, FLAGS):
    print(text)
    return 0
  config, workdir, *others = _prepare(argv)
  lost.directory = workdir
  if _STAGE.value == "report":
    return _explained(_report, workdir)
  output_guard.say(f"rl_reason: {_STAGE.value}, work directory {workdir}")
  stages = functools.partial(_stages, config, others=others)
  if not _DISTRIBUTED.value:
    return _explained(stages, workdir)
  from rl_reason.devices import peers

  # Before the signals of `run.stopping`: until all are there, they just end it.
  others = peers.Peers(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
  code = _explained(stages, workdir, others)
  others.leave(code)
  return code


def _explained(
    function: Callable[[Any], int],
    workdir: pathlib.Path | None,
    others: Any = None,
) -> int:
  """Calls a function; what it raises becomes one line and an exit code."""
  try:
    return function(workdir)
  except (Exception, SystemExit, KeyboardInterrupt) as e:
    code, line, by_itself = exit_status.ending(e, workdir)
    if others and not by_itself:
      others.blame()  # most exceptions of a lost process precede its verdict
    if not line:
      traceback.print_exc(file=output_guard.stream("stderr"))
      return code
    output_guard.say(display.printable(line), "stderr")
    if not by_itself and not others:
      os._exit(code)  # threads that wait or write might never end
    return code


def _prepare(argv):
  """Reads and checks the command line and the config; touches no device."""
  given, faults = command_line.parse(argv, FLAGS)
  config, workdir, notes = command_line.prepare(
      _CONFIG.value,
      given,
      _WORKDIR.value,
      _STAGE.value,
      faults,
      trace=not _DISTRIBUTED.value,
  )
  faults.add(command_line.unread(FLAGS))
  if check := run.CHECKS.get(_STAGE.value):
    with faults.caught():
      pkgutil.resolve_name(check)(config)
  faults.end()
  first = config, workdir, _STEP.value
  others = command_line.evaluated_beside(
      first, _STAGE.value, _CONFIG.value, given, _WORKDIR.value, notes.append
  )
  for line in notes:
    output_guard.say(line)
  return config, workdir, *others


def _stages(config, workdir: pathlib.Path, others=()) -> int:
  """Runs the stages of one process."""
  with run.stopping(_STAGE.value) as stop:
    installation.start_devices()  # after the checks, which need none
    import jax

    screen = display.Display(jax.process_index() == 0)
    with contextlib.closing(screen):
      stage, step = _STAGE.value, _STEP.value
      if stage == "size":
        size = pkgutil.resolve_name(run.STAGES[stage])
        size(config, screen, _MEMORY.value, _DEVICES.value)
      else:
        more: dict[str, Any] = dict(stage=stage, from_record=not _CONFIG.value)
        for c, place, which in [(config, workdir, step), *others]:
          _, more["earlier"] = run.stages(
              c, place, screen, stop, step=which, **more
          )
  return 0


def _report(workdir: pathlib.Path) -> int:
  """Writes the report of a run, or compares several."""
  workdirs = run_directory.several(str(workdir))
  from rl_reason.report import compare, page

  several = len(workdirs) > 1
  say = output_guard.say
  path = compare.write(workdirs) if several else page.write(workdirs[0], say)
  say(f"report: {path}")
  return 0


if __name__ == "__main__":
  main()
