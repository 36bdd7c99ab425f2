"""Reads and checks a config, before anything compiles.

An error is one line: the field, its value, and the remedy. Plain fields are
checked first, within half a second and without JAX. The arguments of functions
follow: their signatures import JAX, but start no backend.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from rl_reason.base import config, functions, kinds
from rl_reason.base.errors import ConfigError, one_line
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    cautions,
    config_files,
    data_rules,
    model_rules,
    relations,
    rl_rules,
    rules,
)

# Data come first: the rules of RL ask which rows are verified.
RULES = (
    data_rules.files,
    model_rules.shape,
    model_rules.mesh,
    model_rules.optimizer,
    data_rules.repositories,
    rl_rules.rounds,
    data_rules.environment,
    rl_rules.rewards,
    rl_rules.rollouts,
    rl_rules.partial_groups,
    rl_rules.engine,
    rl_rules.advantages,
    rl_rules.critic,
    rl_rules.loss,
)
CAUTIONS = (
    cautions.prompts,
    cautions.sft,
    cautions.off_policy,
    relations.idle_settings,
)


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
    ConfigError: the first thing that is wrong.
  """
  preset = ""
  if isinstance(path, str):
    c = config_files.read(path)
    _, preset = config_files.find_file(path.partition(":")[0])
  else:
    c, path = path.copy_and_resolve_references(), "the config"
  notes = [*filter(None, [preset]), *config.override(c, given)]
  try:
    fields(c, tuple(given))
  except (AttributeError, KeyError, TypeError) as e:
    raise ConfigError(
        f"{path}: {one_line(e)}; does it start from configs/base.py?"
    ) from None
  c = config.with_defaults(c)
  return c, [*notes, *(f"warning: {line}" for line in warnings(c))]


def fields(c: ml_collections.ConfigDict, given: tuple[str, ...] = ()) -> None:
  """Checks every field, every function and every combination.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  # Single fields first: the rules rely on types and bounds.
  bounds(c, FIELDS)
  arguments = tuple(f"{x.field}.args" for x in kinds.KINDS.values())
  for name, value in config.flat(c).items():
    if name not in FIELDS and not name.startswith(arguments):
      raise config.no_such_field(c, name, value)
  for kind, known in kinds.KINDS.items():
    functions.check(kind, config.at(c, known.field))
  # Combinations are checked, and shown, with the defaults of all arguments.
  c = config.with_defaults(c)
  rules.check(c, data_rules.task(c))
  rules.check(c, relations.mistakes(c, given))
  for group in RULES:
    rules.check(c, group(c))
  if not c.model.path:  # or else `machine_checks.devices` knows the shape
    rules.check(c, model_rules.experts(c))


def warnings(c: ml_collections.ConfigDict) -> list[str]:
  """Settings that do nothing, and choices that probably disappoint."""
  return [line for group in CAUTIONS for line in rules.broken(c, group(c))]


def bounds(c: ml_collections.ConfigDict, names: Iterable[str]) -> None:
  """Checks types and bounds of some fields.

  Raises:
    ConfigError: the first value that a field cannot have.
  """
  for name in names:
    if problem := FIELDS[name].problem(config.at(c, name)):
      rules.refuse(c, name, problem)
