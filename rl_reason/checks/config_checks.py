"""Reads and checks a config, before anything compiles.

A fault is one line: the field, its value, and the remedy. All faults of a
config are told at once, in this order: fields that do not exist or have another
type, bounds, arguments of functions, texts, then contradictions of several
fields. Plain fields need no JAX; the signatures of functions import JAX, but
start no backend.

A contradiction that may only follow from another fault is left out: see
`contradictions`.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from rl_reason import features
from rl_reason.base import config, feature, function_kinds, functions
from rl_reason.base.errors import ConfigError
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    cautions,
    config_files,
    data_rules,
    model_rules,
    relations,
    rl_rules,
    rules,
    text_rules,
)
from rl_reason.checks.rules import Faults
from rl_reason.configs import base

# Data come first: the rules of RL ask which rows are verified.
RULES = (
    data_rules.task,
    data_rules.files,
    model_rules.shape,
    model_rules.mesh,
    model_rules.optimizer,
    model_rules.rates,
    data_rules.repositories,
    rl_rules.rewards,
    rl_rules.process,
    rl_rules.rollouts,
    rl_rules.packing,
    rl_rules.engine,
    rl_rules.advantages,
    rl_rules.critic,
    rl_rules.loss,
    lambda c: itertools.chain(
        *(
            x.rules(c) if x.used(c) else x.without(c)
            for x in features.declared()
        )
    ),
)
CAUTIONS = (
    cautions.prompts,
    cautions.stop_strings,
    cautions.sft,
    cautions.off_policy,
    cautions.rates,
    relations.idle_settings,
    lambda c: itertools.chain(*(x.cautions(c) for x in feature.used(c))),
)
# Values that texts may have, for `contradictions`.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "task.name": ("arithmetic", "files", "guess"),
    "data.train": ("", "gsm8k", "somebody/rows"),
    "data.evaluate": ("", "gsm8k"),
    "data.kind": ("math", "none"),
    "reward.functions": ("", "length*1"),
    "tokenizer": ("", "somebody/model"),
    "model.path": ("", "somebody/model"),
}


def checked(
    path: str | ml_collections.ConfigDict, given: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """Reads and checks a config with its overrides.

  Args:
    path: FILE.py, or FILE.py:variant; or the name of a preset; or a config,
      which is copied.
    given: full name of a field -> its value, or text.

  Returns:
    The config with all arguments of its functions, and lines for the screen:
    which preset is meant, arguments that an override has left out, warnings.

  Raises:
    ConfigError: everything that is wrong.
  """
  c, notes, faults = examined(path, given)
  faults.end()
  return c, notes


def examined(
    path: str | ml_collections.ConfigDict, given: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str], Faults]:
  """As `checked`; returns the faults instead of raising them.

  Fields with faults have their defaults in the config, so that further checks
  can read it.
  """
  base.get_config()  # fills in FIELDS
  faults, notes = Faults(), []
  try:
    c, notes = _read(path)
  except ConfigError as e:  # the overrides are checked nevertheless
    c = base.get_config()
    faults.add(e.lines, FIELDS)
    with faults.caught():
      config.override(c, given)
    faults.add(_out_of_bounds(c, FIELDS.keys() & given))
    return c, [], faults
  with faults.caught():
    notes += config.override(c, given)
  config.expand(c)
  with faults.caught("model.path"):
    _convert(c)
  _examine(c, given, faults)
  c = config.with_defaults(_without(c, faults.fields))
  if not faults.lines:
    notes += [f"warning: {line}" for line in warnings(c)]
  return c, notes, faults


def _convert(c: ml_collections.ConfigDict) -> None:
  """Replaces a GGUF file in model.path by the directory made of it."""
  if c.model.path.endswith(".gguf"):
    from rl_reason.hf import gguf_files  # imports JAX

    c.model.path = gguf_files.directory(c.model.path)


def fields(c: ml_collections.ConfigDict, given: Iterable[str] = ()) -> None:
  """Checks every field, every function and every combination.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: everything that is wrong.
  """
  faults = Faults()
  _examine(c, given, faults)
  faults.end()


def warnings(c: ml_collections.ConfigDict) -> list[str]:
  """Settings that do nothing, and choices that probably disappoint."""
  return [line for group in CAUTIONS for line in rules.broken(c, group(c))]


def bounds(c: ml_collections.ConfigDict, names: Iterable[str]) -> None:
  """Checks types and bounds of some fields.

  Raises:
    ConfigError: values that their fields cannot have.
  """
  faults = Faults()
  faults.add(_out_of_bounds(c, names))
  faults.end()


# --- one field at a time -----------------------------------------------------


def _read(
    path: str | ml_collections.ConfigDict,
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """The config of a file, or a copy, with a line if a preset is meant.

  Raises:
    ConfigError: it cannot be read, or lacks fields.
  """
  preset = ""
  if isinstance(path, str):
    c = config_files.read(path)
    _, preset = config_files.find_file(path.partition(":")[0])
  else:
    c, path = path.copy_and_resolve_references(), "a ConfigDict"
  lacking = []
  for name in FIELDS:
    try:
      config.at(c, name)
    except (AttributeError, KeyError, TypeError):
      lacking.append(name)
  if lacking and "rows" in c:
    raise ConfigError(
        f"--config = {path}: is a study of several runs: python -m"
        f" rl_reason.lab.ablate --config={path}"
    )
  if lacking:
    more = f" and {len(lacking) - 1} more fields" if lacking[1:] else ""
    raise ConfigError(
        f"{path}: lacks {lacking[0]}{more}; does it start from configs/base.py?"
        f" {config_files.EXAMPLE}"
    )
  return c, [*filter(None, [preset])]


def _out_of_bounds(c, names: Iterable[str]) -> dict[str, str]:
  """A line for each value that its field cannot have -> the field."""
  return {
      rules.line(c, name, problem): name
      for name in names
      if (problem := FIELDS[name].problem(config.at(c, name)))
  }


def _examine(c, given: Iterable[str], faults: Faults) -> None:
  """Adds the faults of all fields, functions and combinations of a config."""
  found = _out_of_bounds(c, FIELDS)
  faults.add(found, found.values())
  arguments = tuple(f"{x.field}.args" for x in function_kinds.KINDS.values())
  for name, value in config.flat(c).items():
    if name not in FIELDS and not name.startswith(arguments):
      with faults.caught():
        raise config.no_such_field(c, name, value)
  for kind, known in function_kinds.KINDS.items():
    if f"{known.field}.name" not in faults.fields:
      with faults.caught():
        functions.check(kind, config.at(c, known.field))
  text_rules.check(c, faults)
  faults.add(contradictions(c, given, faults.fields))


# --- several fields ----------------------------------------------------------


def contradictions(
    c: ml_collections.ConfigDict, given: Iterable[str], unknown: set[str]
) -> list[str]:
  """The rules about several fields that a config breaks, a line for each.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.
    unknown: fields with faults of their own. A rule that a valid value of such
      a field would satisfy is left out: it may only follow from that fault.
  """
  found = _broken(_without(c, unknown), given, unknown)
  for name in sorted(FIELDS.keys() & unknown):
    for value in _examples(name):
      if found:
        other = _without(c, unknown)
        config.override(other, {name: value})
        still = _broken(other, given, unknown)
        found = [x for x in found if x in still]
  return found


def _broken(c, given: Iterable[str], unknown: set[str]) -> list[str]:
  """The lines of broken rules, except those about unknown fields."""
  c = config.with_defaults(c)  # arguments are checked, and shown, with defaults
  known = [x for x in given if x not in unknown and _exists(c, x)]
  groups = [relations.mistakes(c, known), *(group(c) for group in RULES)]
  if not c.model.path:  # or else `machine_checks.devices` knows the shape
    groups.append(model_rules.of_shape(c))
  return [
      rules.line(c, field, remedy)
      for field, remedy in dict.fromkeys(itertools.chain(*groups))
      if field not in unknown
  ]


def _exists(c, name: str) -> bool:
  """Whether a name on the command line is a field or an argument."""
  return name in FIELDS or ".args." in name


def _without(c, unknown: Iterable[str]) -> ml_collections.ConfigDict:
  """A copy in which unknown fields have their defaults."""
  c = c.copy_and_resolve_references()
  for name in unknown:
    path, _, last = name.rpartition(".")
    with contextlib.suppress(AttributeError, KeyError), c.unlocked():
      if name in FIELDS:
        config.at(c, path)[last] = FIELDS[name].default
        if last == "name" and "args" in config.at(c, path):
          config.at(c, path).args = {}
      else:
        del config.at(c, path)[last]
  return c


def _examples(name: str) -> tuple[Any, ...]:
  """A few values that a field may have."""
  spec = FIELDS[name]
  for kind, known in function_kinds.KINDS.items():
    if name == f"{known.field}.name":
      return functions.names(kind)
  for one in features.declared():
    if name in one.marks.get("code", ()):
      return "", *list(one.tasks)[:1]
  if spec.kind in (int, float):
    low, high = spec.low or 0, spec.high or 2 * abs(spec.default) + 2
    near = (low, 1, 2 * spec.default, high)
    return tuple(spec.kind(x) for x in near if not spec.problem(spec.kind(x)))
  if spec.kind is bool:
    return False, True
  return spec.choices or EXAMPLES.get(name, ())
