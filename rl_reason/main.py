"""One command: SFT, RL, evaluation before and after, a report.

  python -m rl_reason.main --config=configs/dapo.py
  python -m rl_reason.main --config=configs/dapo.py --config.seed=1
  python -m rl_reason.main --stage=evaluate --workdir=runs/dapo

Exit codes: 0 done; 1 an error on the way, or nothing was learned; 2 a config or
command line that cannot work; 143 stopped by SIGTERM, SIGHUP or Ctrl-C, state
saved; 175 another process of the run was lost, or the run stood still for
log.stall_ends seconds. After 143 and 175 the same command resumes.
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

from absl import app, flags

from rl_reason import run
from rl_reason.base import errors
from rl_reason.checks import (
    checked,
    ending,
    machine_checks,
    run_directory,
    saved_config,
)
from rl_reason.monitoring import output_guard as screen_lib

STAGES = (*run.STAGES, "report")


FLAGS = flags.FLAGS
_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "config file, or a preset such as dapo; FILE:smoke runs every stage in"
    " seconds; --config.FIELD=VALUE sets a field",
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "where to write; default: runs/<config and overrides>"
)
_STAGE = flags.DEFINE_enum("stage", "all", STAGES, "what to run")
_STEP = flags.DEFINE_string(
    "step",
    "newest",
    "evaluate, export, generate, serve: 'newest', 'best', a step of RL, or"
    " 'sft', the policy after SFT",
)
_MEMORY = flags.DEFINE_float(
    "memory", None, "size: GiB of a device; default: as this machine has"
)
_DEVICES = flags.DEFINE_integer(
    "devices", 0, "size: number of devices of another machine; 0: this machine"
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
  app.define_help_flags()
  with screen_lib.guarded() as lost:
    code = _explained(lambda _: _main(lost), None)
  sys.exit(code)


def _main(lost: screen_lib.Lost) -> int:
  config, workdir = _prepare(sys.argv)
  lost.directory = workdir
  if check := run.CHECKS.get(_STAGE.value):
    pkgutil.resolve_name(check)(config)
  if _STAGE.value == "report":
    return _explained(_report, workdir)
  print(f"rl_reason: {_STAGE.value}, work directory {workdir}", flush=True)
  stages = functools.partial(_stages, config)
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
  except Exception as e:
    code, line, by_itself = ending.ending(e, workdir)
    if others and not by_itself:
      others.blame()  # most exceptions of a lost process precede its verdict
    if not line:
      traceback.print_exc()
      return code
    from rl_reason.monitoring import display

    print(display.printable(line), file=sys.stderr, flush=True)
    if not by_itself and not others:
      os._exit(code)  # threads that wait or write might never end
    return code


def _prepare(argv):
  """Reads and checks the command line and the config; touches no device."""
  argv, given = _split_fields(argv)
  try:
    rest = FLAGS(argv)
  except flags.Error as e:
    raise errors.ConfigError(errors.one_line(e)) from None
  if rest[1:]:
    raise errors.ConfigError(
        f"{rest[1]!r}: not understood; overrides look like --config.seed=1"
    )
  path, workdir = _CONFIG.value, _WORKDIR.value
  if path is None and workdir and _STAGE.value == "report":
    return None, pathlib.Path(workdir)  # a report needs no config
  if path is None:
    if workdir is None:
      raise errors.ConfigError(
          "--config is missing; for instance --config=configs/dapo.py"
      )
    directory = pathlib.Path(workdir)
    config, notes = saved_config.read(directory, _STAGE.value, given)
    for line in notes:
      print(line, flush=True)
    return config, directory

  # Everything about the config, before the accelerator is touched.
  config, notes = checked.checked(path, given)
  for line in notes:
    print(line, flush=True)
  if _STAGE.value not in ("prepare", "serve", "size"):
    machine_checks.files(config)
  # A work directory holds one run: resume it only with the same numbers.
  workdir = pathlib.Path(workdir or run_directory.default(path, config, given))
  if _STAGE.value != "size":
    run_directory.check(workdir, config, evaluates=_STAGE.value == "evaluate")
  return config, workdir


def _split_fields(argv: list[str]) -> tuple[list[str], dict[str, str]]:
  """Returns the other arguments, and the fields as text: {'seed': '1'}.

  Fields are '--config.seed=1', '--config.data.chat' (a bool), or two words.
  """
  rest, given = [], {}
  words = list(argv)
  while words:
    word = words.pop(0)
    name, mark, value = word.lstrip("-").partition("=")
    if not (word.startswith("-") and name.startswith("config.")):
      rest.append(word)
      continue
    if not mark:
      flag_follows = not words or words[0].startswith("--")
      value = "true" if flag_follows else words.pop(0)
    given[name.removeprefix("config.")] = value
  return rest, given


def _stages(config, workdir: pathlib.Path) -> int:
  """Runs the stages of one process."""
  with run.stopping() as stop:
    import jax  # after the checks: they need no accelerator

    from rl_reason.monitoring import display

    screen = display.Display(jax.process_index() == 0)
    with contextlib.closing(screen):
      stage, step = _STAGE.value, _STEP.value
      if stage == "size":
        size = pkgutil.resolve_name(run.STAGES[stage])
        size(config, screen, _MEMORY.value, _DEVICES.value)
      else:
        run.stages(
            config,
            workdir,
            screen,
            stop,
            stage=stage,
            step=step,
            from_record=not _CONFIG.value,
        )
  return 0


def _report(workdir: pathlib.Path) -> int:
  """Writes the report of a run, or compares several."""
  workdirs = run_directory.several(str(workdir))
  from rl_reason.report import compare, page

  several = len(workdirs) > 1
  path = compare.write(workdirs) if several else page.write(workdirs[0])
  print(f"report: {path}")
  return 0


if __name__ == "__main__":
  main()
