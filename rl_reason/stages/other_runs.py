"""Checkpoints of other runs: found, and refused where fields differ."""

import pathlib
from typing import Any

from rl_reason.base import config as config_lib, fields, resume_rules
from rl_reason.base.errors import RunError
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.stages.session import Session


def other_checkpoint(
    session: Session,
    field: str,
    path: str | pathlib.Path,
    equal: tuple[str, ...],
    command: str,
) -> tuple[Checkpoints, int]:
  """The checkpoints that another run wrote, and the newest complete step.

  Args:
    session: of this run.
    field: the config field that names the other run, for messages.
    path: directory of the checkpoints.
    equal: prefixes of the fields that must agree in both configs.
    command: the one that makes such a checkpoint.

  Raises:
    RunError: there is none, or a field differs.
  """
  checkpoints = Checkpoints(pathlib.Path(path))
  step = checkpoints.newest(session.display.say)
  if step is None:
    raise RunError(
        f"{field} = {path}: holds no complete checkpoint; {command} writes one"
    )
  here, there = config_lib.flat(session.config), checkpoints.host(step)
  require_equal(f"{field} = {path}", here, there["config"], equal)
  return checkpoints, step


def require_equal(
    where: str,
    here: dict[str, Any],
    there: dict[str, Any],
    prefixes: tuple[str, ...] = ("",),
) -> None:
  """Refuses what another config made, if fields that matter differ.

  Args:
    where: the field that names it, and its value.
    here: fields of this run.
    there: fields of the run that made it.
    prefixes: of the fields that matter; by default all do.

  Raises:
    RunError: names the first field that differs, and both values.
  """
  for name, value in here.items():
    matters = name.startswith(prefixes) and name not in resume_rules.FREE
    newer = fields.FIELDS.get(name)  # than the other run, perhaps
    other = there.get(name, newer and newer.default)
    if matters and other != value:
      raise RunError(
          f"{where}: {name} is {other!r} there and {value!r} here; make them"
          " equal"
      )
