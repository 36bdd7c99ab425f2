"""The config of a work directory, for commands without --config.

Export and serving call none of the code that a config names. An evaluation
calls the task, the environment, the verifier and the terms of the reward. A
replay calls all code of a training step.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from rl_reason import tasks, verifiers
from rl_reason.base import (
    config as config_lib,
    feature,
    function_kinds,
    functions,
    resume_rules,
)
from rl_reason.base.errors import ConfigError, one_line
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    config_checks,
    config_facts,
    data_rules,
    machine_checks,
    named_code,
    path_contents,
    relations,
    replay_rules,
    rules,
    run_directory,
    text_rules,
)
from rl_reason.data import datasets
from rl_reason.tasks import constitutions, reward_terms

# Paths, which may name another place of equal files.
PLACES = ("model.path", "sft.reuse")
# Of rows of files.
_PROMPTS = ("data.template", "data.chat", "data.system")
# Stage -> the fields that may be set without --config, by prefix.
OVERRIDES = {
    "export": ("export.", "mesh.", *PLACES),
    "serve": (*resume_rules.SERVED, *PLACES),
    "evaluate": (
        *("evaluate.", "mesh.", *_PROMPTS),
        # Other sets may have other columns and verifiers, and another machine
        # may need longer for them.
        *("data.evaluate", "data.columns", "data.kind", "reward.functions"),
        *("reward.workers", "reward.executor", "reward.timeout"),
        *(*resume_rules.elsewhere(), *PLACES),
    ),
    "generate": ("export.", "generate."),
    "replay": ("",),  # any; `replay_rules` refuses what changes the batch
}
# Stage -> fields that name code, where the stage does not call it.
_ALGORITHM = (
    *(f"{x.field}.name" for x in function_kinds.KINDS.values()),
    *named_code.ENGINE,
)
_ROWS = (
    *("task.name", "evaluate.tasks", *feature.marked("code")),
    *("data.kind", "data.template"),
)
_LISTS = ("loss.terms", "log.metrics", "log.loggers")
_SCORES = ("reward.functions", *_LISTS)
UNUSED = {
    "export": (
        *(x for x in _ALGORITHM if x != "critic.head.name"),
        *(*_ROWS, *_SCORES, "serve.filter"),
    ),
    "serve": (*_ALGORITHM, *_ROWS, *_SCORES),
    "evaluate": (*_ALGORITHM, *_LISTS, "serve.filter"),
    "replay": ("log.metrics", "log.loggers", "serve.filter"),
}
REMEDY = (
    "put the module into the working directory or on PYTHONPATH, or give"
    " --config and its overrides, too"
)


def read(
    workdir: pathlib.Path, stage: str, given: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """The config of a run as a stage needs it, and lines for the screen.

  Args:
    workdir: of the run.
    stage: of `run.STAGES`.
    given: full names of overridden fields -> their values.

  Raises:
    ConfigError: there is no config, or it is damaged; the stage calls code that
      cannot be imported; a field of `given` belongs to the run.
  """
  allowed = OVERRIDES.get(stage, ("export.",))
  if wrong := [x for x in given if not x.startswith(allowed)]:
    shown = ", ".join(f"{x}*" if x[-1] == "." else x for x in allowed)
    raise ConfigError(
        f"--config.{wrong[0]}: without --config, --stage={stage} only takes"
        f" {shown}; give --config to set any field"
    )
  fields, saved = _fields(workdir), workdir / "config.json"
  named = named_code.fields_with_code(fields)
  for name in {*named} & {*UNUSED.get(stage, ())}:
    _leave_out(fields, name)
  if stage not in UNUSED:
    named_code.refuse_code(str(saved), fields)
  _refuse_foreign(fields, workdir, stage, given)
  config = config_lib.unflat(fields)
  if stage == "replay":
    return _for_replay(config, workdir, given)
  config_lib.override(config, given)
  config_lib.expand(config)
  _require(config, "model.family")
  text_rules.add_family(config)
  config_checks.bounds(config, given)
  _check_places(config, fields, given)
  if stage == "evaluate":
    return config, _for_evaluation(config, workdir, given)
  called = {"export": "critic.head.name", "serve": "serve.filter"}.get(stage)
  if called and called not in given:
    _require(config, called)
  if stage == "export" and "export.push_to" not in given:
    return config, _not_pushed(config, saved)
  return config, []


def _not_pushed(config, saved: pathlib.Path) -> list[str]:
  """Leaves export.push_to out: a stranger's would write with the user's key."""
  if not (name := config.export.push_to):
    return []
  config.export.push_to = ""
  return [
      f"warning: export.push_to = {name!r} of {saved}: nothing is pushed; to"
      f" push, add --config.export.push_to={name}"
  ]


def recorded(workdir: pathlib.Path) -> ml_collections.ConfigDict:
  """The config of a run, as the run recorded it; no code is imported.

  Raises:
    ConfigError: there is no config, or it is damaged.
  """
  return config_lib.unflat(_fields(workdir))


def _fields(workdir: pathlib.Path) -> dict[str, Any]:
  """The fields of a run; those that are newer than the run have defaults."""
  saved = workdir / "config.json"
  if not saved.exists():
    raise ConfigError(
        f"--workdir = {workdir}: has no config.json; give --config too"
    )
  from rl_reason.configs import base

  base.get_config()
  fields = {name: spec.default for name, spec in FIELDS.items()}
  fields |= config_lib.load(saved)
  try:  # somebody may have edited it
    config_checks.bounds(config_lib.unflat(fields), FIELDS)
  except ConfigError as e:
    raise ConfigError(*(f"{saved}: {x}" for x in e.lines)) from None
  return fields


def _for_replay(
    own: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    given: Mapping[str, Any],
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """The config of a run with overrides of its credit and its update.

  Raises:
    ConfigError: code that the run named cannot be imported; the overrides do
      not fit together, or change the batch.
  """
  for name in named_code.fields_with_code(config_lib.flat(own)):
    if name != "reward.functions":
      _require(own, name)
      continue
    for term in reward_terms.terms(own.reward.functions):
      if why := _why_lost(term.name, workdir):
        raise ConfigError(f"reward.functions: {term.name}: {why}; {REMEDY}")
  hashes = {x: y for x, y in config_lib.flat(own).items() if "content." in x}
  fields = {x: y for x, y in config_lib.flat(own).items() if x not in hashes}
  config, notes, faults = config_checks.examined(
      config_lib.unflat(fields), given
  )
  faults.add(machine_checks.files(config, faults.fields))
  faults.end()
  replay_rules.check(own, config)
  own = config_lib.unflat(config_lib.flat(config) | hashes)
  return own, [x for x in notes if not x.startswith("warning: ")]


def _leave_out(fields: dict[str, Any], name: str) -> None:
  """Sets a field that names code, with its arguments, to its default."""
  section, mark, _ = name.partition(".args.")
  section = section if mark else name.removesuffix(".name")
  if mark or name in _ALGORITHM:
    for argument in [x for x in fields if x.startswith(f"{section}.args")]:
      del fields[argument]
    fields[f"{section}.args"] = {}
    name = f"{section}.name"
  fields[name] = FIELDS[name].default


def _check_places(config, fields: dict[str, Any], given) -> None:
  """Refuses another place whose files are not those of the run."""
  for name in {*given} & {*PLACES}:
    before = fields.get(f"content.{name}")
    if before and path_contents.content(config, name) != before:
      rules.refuse(
          config,
          name,
          f"its files differ from {fields[name]!r}, with which the run began:"
          " give a copy of these",
      )


def _for_evaluation(
    config, workdir: pathlib.Path, given: Mapping[str, Any]
) -> list[str]:
  """Checks what an evaluation needs; leaves out rewards that cannot be called.

  Returns:
    lines for the screen.

  Raises:
    ConfigError: a field of `given` does not fit; the task, the environment or
      the verifier cannot be imported; or no term of the reward is left, and
      nothing else judges the rows.
  """
  for name, spec in FIELDS.items():
    other = spec.at_most
    if other and {name, other} & {*given}:
      if (most := config_lib.at(config, other)) < config_lib.at(config, name):
        rules.refuse(config, name, f"must not exceed {other} = {most}")
  for name in sorted({*given} & {*FIELDS}):
    if why := relations.in_vain(config, name):
      rules.refuse(config, name, why)
  if "task.name" in given and "data.evaluate" not in given:
    config.data.evaluate = ""  # it belongs to the task of the run
  own = ["task.name", "evaluate.tasks", *feature.marked("code"), "data.kind"]
  if not run_directory.has_rows(workdir, config):
    own.append("data.template")
  for name in own:
    _require(config, name)
  for name in sorted({*given} & {*_PROMPTS}):
    if config.task.name != tasks.FILES:
      rules.refuse(config, name, "goes with task.name = 'files'")
  # An override may not fit to a feature of the run, or have turned one on.
  found = (x for one in feature.used(config) for x in one.rules(config))
  for name, fault in found:
    if name in {*given, "evaluate.tasks"}:
      rules.refuse(config, name, fault)
  faults = rules.Faults()
  text_rules.check(config, faults, given)
  faults.end()
  for name, fault in data_rules.levels(config, "task.difficulties"):
    rules.refuse(config, name, fault)
  kinds_of_rows = _kinds_of_rows(config, workdir)
  if "code" in kinds_of_rows:
    machine_checks.contains_programs(config, "data.evaluate")
  judged = getattr(tasks.get(config.task.name), "verifies", True)
  verified = judged or feature.judge(config)
  needed = not verified or verifiers.NONE in kinds_of_rows
  of_user = "reward.functions" in given
  saved = None if of_user else workdir
  return _leave_out_terms(config, saved, needed=needed)


def _kinds_of_rows(config, workdir: pathlib.Path) -> set[str]:
  """The verifiers of the evaluation rows of a task of files."""
  if config.task.name != tasks.FILES:
    if config.data.evaluate:
      rules.refuse(config, "data.evaluate", "goes with task.name = 'files'")
    return set()
  if not run_directory.has_rows(workdir, config):
    try:
      found = config_facts.sources(config, "evaluate")
    except ValueError as e:
      rules.refuse(config, "data.evaluate", str(e))
    return {config_facts.kind_of_rows(config, x) for x, _ in found}
  from rl_reason.data import pipelines

  verifiers.OWN.update(datasets.assignments(config.data.kind).values())
  prepared, _ = pipelines.prepared(workdir / "data", "evaluate")
  return {x[0].kind for x in prepared}


def _leave_out_terms(
    config, workdir: pathlib.Path | None, *, needed: bool
) -> list[str]:
  """Leaves out terms of the reward that cannot be called; says which.

  Args:
    config: of the evaluation.
    workdir: whose config names the terms; None: the user does.
    needed: see below.

  Raises:
    ConfigError: none is left, and they are `needed` to judge the rows.
  """
  kept, lost = [], []
  for text in reward_terms.parts(config.reward.functions):
    name = reward_terms.term(text).name
    why = _why_lost(name, workdir)
    lost += [f"{name} ({why})"] if why else []
    kept += [] if why else [text]
  if not lost:
    return []
  if needed and not kept:
    raise ConfigError(
        f"reward.functions: nothing else judges the rows of data.evaluate, and"
        f" no term can be imported: {'; '.join(lost)}; {REMEDY}"
    )
  config.reward.functions = ",".join(kept)
  if not needed:
    return [
        f"reward.functions: {'; '.join(lost)}: left out of this evaluation,"
        f" whose accuracy does not depend on it; {REMEDY}"
    ]
  return [
      f"warning: reward.functions: {'; '.join(lost)}: left out, so the rewards"
      f" of this evaluation are {config.reward.functions} alone; {REMEDY}"
  ]


def _why_lost(name: str, workdir: pathlib.Path | None) -> str:
  """Why a term of the reward cannot be called; '' if it can."""
  if reward_terms.is_model(name):
    return ""
  if workdir and constitutions.of_term(name) and named_code.asks_a_judge(name):
    return "it sends responses to a server"
  for function in named_code.functions_of_term(name):
    if workdir and ":" in function:
      if why := named_code.why_foreign(function, workdir):
        return why
  try:
    reward_terms.find(name)
  except ValueError as e:
    return one_line(e)
  return ""


def _refuse_foreign(
    fields: dict[str, Any],
    workdir: pathlib.Path,
    stage: str,
    given: Mapping[str, Any],
) -> None:
  """Refuses foreign code, before a check looks up a function.

  Foreign code of a field that is `given` is left out: the user's is called.

  Raises:
    ConfigError: a field names code of a work directory, of Python or of a
      library, or code that is gone.
  """
  faults = []
  for name, found in named_code.names_of_code(fields).items():
    reasons = (named_code.why_foreign(item, workdir) for item in found)
    why = next(filter(None, reasons), "")
    # An evaluation leaves terms of the reward out, and says which. Its prompts
    # may be rendered already.
    if not why or (stage, name) == ("evaluate", "reward.functions"):
      continue
    if (stage, name) == ("evaluate", "data.template"):
      if run_directory.has_rows(workdir, config_lib.unflat(fields)):
        continue
    if name not in given:
      value = fields[name]
      faults.append(f"{name} = {value!r}: cannot be imported: {why}; {REMEDY}")
    _leave_out(fields, name)
  if faults:
    raise ConfigError(*faults)


def _require(config, name: str) -> None:
  """Refuses a field that names code which cannot be imported."""
  value = config_lib.at(config, name)
  for item in named_code.names_of_code({name: value}).get(name, ()):
    try:
      functions.load(item)
    except ConfigError as e:
      rules.refuse(config, name, f"cannot be imported: {e}; {REMEDY}")
