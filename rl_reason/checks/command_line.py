"""From the command line to a checked config and a work directory.

All that is wrong is collected, and told at once: flags, the config, the files
that it names, and the work directory.
"""

import difflib
import itertools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
from absl import flags

from rl_reason import features
from rl_reason.base import (
    config as config_lib,
    errors,
    feature,
    function_kinds,
)
from rl_reason.base.fields import FIELDS
from rl_reason.base.other_names import COUNTED, of_others
from rl_reason.checks import (
    config_checks,
    file_checks,
    installation,
    machine_checks,
    presets,
    replay_rules,
    rules,
    run_directory,
    saved_config,
    usage,
)
from rl_reason.checks.rules import Faults
from rl_reason.configs import base

# Stages that read --step.
OF_A_STEP = ("evaluate", "export", "generate", "serve", "replay")


def parse(
    argv: list[str], known: flags.FlagValues
) -> tuple[dict[str, str], Faults]:
  """Parses the flags, and the fields as text: {'seed': '1'}.

  Args:
    argv: the name of the program, then the arguments.
    known: the flags, which get their values.

  Returns:
    the fields, and the faults of the other arguments.
  """
  argv, given = _split_fields(argv)
  faults = Faults()
  while True:
    try:
      _, *rest = known(argv, known_only=True)
      break
    except flags.Error as e:
      named = re.match(r"flag --(\w+)=(.*?): ", str(e), re.DOTALL)
      name, value = named.groups() if named else ("", "")
      is_stage = name == "stage"
      faults.add([usage.no_such_stage(value) if is_stage else _explained(e)])
      left = _without(argv, name)
      if left == argv:
        raise errors.ConfigError(*faults.lines) from None
      argv = left  # the other flags are checked, too
  for before, word in itertools.pairwise(["", *rest]):
    if not (_wants_value(before) and word[:1] != "-"):
      faults.add([_not_understood(word, known)])
  return given, faults


def unread(known: flags.FlagValues) -> list[str]:
  """Lines for the flags that this command does not read."""
  stage, lines = known["stage"].value, []
  given = [x for x in known if known[x].value != known[x].default]
  if not known["distributed"].value:
    lines += [
        f"--{x} = {known[x].value}: needs --distributed"
        for x in ("coordinator", "processes", "process")
        if x in given
    ]
  if known["step"].present and stage not in OF_A_STEP:
    lines.append(
        f"--step = {known['step'].value}: is for --stage={', '.join(OF_A_STEP)}"
        "; to train from an earlier policy, export it (--stage=export --step=N)"
        " and name WORKDIR/export/policy in model.path, with another --workdir"
    )
  if stage != "size":
    lines += [
        f"--{x} = {known[x].value}: is for --stage=size; a run takes the"
        " devices that are there, and mesh.* says how"
        for x in ("memory", "devices")
        if x in given
    ]
  return lines


def _explained(e: flags.Error) -> str:
  text = errors.one_line(e)
  return text[:1].lower() + text[1:]


def _without(argv: list[str], name: str) -> list[str]:
  """The arguments without a flag and its value."""
  left, words = [], iter(argv)
  for word in words:
    if not (word[:1] == "-" and word.lstrip("-").partition("=")[0] == name):
      left.append(word)
    elif "=" not in word:
      next(words, None)
  return left


def _wants_value(word: str) -> bool:
  """Whether the next word may be the value of this flag, as in '--lr 1e-6'."""
  return word[:1] == "-" and "=" not in word


def _not_understood(word: str, known: flags.FlagValues) -> str:
  """What to write instead of a word that is no flag."""
  name, mark, value = word.lstrip("-").partition("=")
  base.get_config()
  own = [x for x in known if known[x].name == x]
  if word[:1] != "-" and name in own and mark:
    return f"{word!r}: flags begin with two dashes: --{word}"
  if word[:1] != "-" and (meant := usage.meant_by(word)):
    return f"{word!r}: not understood; did you mean {meant}?"
  if name in FIELDS:
    return f"{word!r}: fields look like --config.{name}{mark}{value}"
  found = config_lib.similar(name, FIELDS)
  exact = {x.rpartition(".")[2] for x in FIELDS} | of_others().keys()
  if name.rpartition(".")[2] not in exact:
    near = difflib.get_close_matches(name, own, 1)
    found = [f"the flag --{near[0]}"] if near else found
  if not found and (word[:1] != "-" or "." in name):
    return f"{word!r}: not understood; fields look like --config.seed=1"
  hint = "see --help"
  if found:
    first, of_flag = found[0], found[0].partition("the flag ")[2]
    counts = COUNTED.get(name.rpartition(".")[2])
    hint = f"did you mean {of_flag or f'--config.{first}'}{mark}{value}"
    hint += f", {counts}?" if counts else "?"
  if word[:1] != "-":
    return f"{word!r}: not understood; {hint}"
  return f"--{name}: there is no such flag; {hint}"


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


def prepare(
    path: str | None,
    given: Mapping[str, Any],
    workdir: str | None,
    stage: str,
    faults: Faults,
    *,
    trace: bool = True,
) -> tuple[Any, pathlib.Path, list[str]]:
  """Reads and checks the config of a command.

  Args:
    path: of the config; None for the config of the run in the work directory.
    given: full name of a field -> its text.
    workdir: None for the default name.
    stage: of `main.STAGES`.
    faults: gets what is wrong.
    trace: whether to trace the user's functions, which may start a backend of
      JAX: not before `jax.distributed` has started.

  Returns:
    the config (None for a report without one), the work directory, and lines
    for the screen. They are of use only if there are no faults.

  Raises:
    ConfigError: there is no config, besides the faults so far.
  """
  if workdir is not None and (why := run_directory.why_no_name(workdir)):
    faults.add([f"--workdir = {workdir!r}: {why}"])
    faults.end()
  workdir = workdir and config_lib.home(workdir)
  if path is None and workdir and stage == "report":
    return None, pathlib.Path(workdir), []  # a report needs no config
  if path is None:
    with faults.caught():
      if workdir is None:
        raise errors.ConfigError(
            f"--stage = {stage}: needs the --workdir of a run, or a --config"
            if stage in (*saved_config.OVERRIDES, "report")
            else "--config is missing; for instance --config=dapo; "
            + presets.listed()
        )
      directory = pathlib.Path(workdir)
      if stage == "evaluate":
        directory = run_directory.evaluated(workdir)[0]
      config, notes = saved_config.read(directory, stage, given)
      return config, directory, notes
    faults.end()
  return examine(path, given, workdir, stage, faults, trace=trace)


def evaluated_beside(
    first: tuple[Any, pathlib.Path, str],
    stage: str,
    path: str | None,
    given: Mapping[str, Any],
    workdir: str | None,
    say: Callable[[str], None],
) -> list[tuple[Any, pathlib.Path, str]]:
  """What --stage=evaluate evaluates besides its first policy.

  Args:
    first: the config and the work directory that `prepare` returned, and the
      names of checkpoints.
    stage: of `main.STAGES`; another one has no further policies.
    path: as of `prepare`.
    given: as of `prepare`.
    workdir: as of `prepare`.
    say: shows a line.

  Raises:
    ConfigError: one of the policies cannot be evaluated.
  """
  if stage != "evaluate":
    return []
  several = run_directory.evaluated(config_lib.home(workdir or ""))[1:]
  if path is not None and several:
    raise errors.ConfigError(
        f"--workdir = {workdir}: each of several runs has its own config: leave"
        " --config out"
    )
  found = []
  for one in features.declared():
    found += one.policies(first, several, given, say)
  if several and not found:
    raise errors.ConfigError(
        f"--workdir = {workdir}: no feature evaluates several runs at once"
    )
  return found


def examine(
    path: str | ml_collections.ConfigDict,
    given: Mapping[str, Any],
    workdir: str | pathlib.Path | None,
    stage: str,
    faults: Faults,
    *,
    trace: bool = True,
) -> tuple[ml_collections.ConfigDict, pathlib.Path, list[str]]:
  """Checks a config and everything on this machine that its run needs.

  The arguments and the result are those of `prepare`, but the path may also be
  a config, which then needs a work directory.
  """
  installation.import_jax()
  config, notes, found = config_checks.examined(path, given)
  faults.add(found.lines, found.fields)
  if stage not in ("prepare", "serve", "size"):
    faults.add(machine_checks.files(config, faults.fields))
  if stage not in ("serve", "size", "report"):
    file_checks.check(config, stage, faults)
  further = feature.stages().get(stage)
  if further and further.steps and not config_lib.at(config, further.steps):
    remedy = f"--stage={stage} would train nothing: set it"
    faults.add([rules.line(config, further.steps, remedy)])
  names = {f"{known.field}.name" for known in function_kinds.KINDS.values()}
  if trace and stage in file_checks.TRAINS and not names & found.fields:
    if any(":" in config_lib.at(config, name) for name in names):
      with faults.caught():
        installation.start_devices()
        from rl_reason.checks import traced_functions

        traced_functions.check(config)
  if found.fields:  # the name of the directory, too, is not known
    return config, pathlib.Path(workdir or ""), notes
  # A work directory holds one run: resume it only with the same numbers.
  if workdir is None:
    assert isinstance(path, str)
    workdir = run_directory.default(path, config, dict(given))
  workdir = pathlib.Path(workdir)
  if stage != "size":
    with faults.caught():
      if stage == "replay":
        replay_rules.check(saved_config.recorded(workdir), config)
      else:
        run_directory.check(workdir, config, stage)
  return config, workdir, notes
