"""Refuses code that the config of a work directory names."""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from rl_reason import tasks
from rl_reason.base import errors, kinds


def refuse_code(where: str, fields: Mapping[str, Any]) -> None:
  """Refuses a config that comes with files and names code to import.

  Work directories and checkpoints are shared. Code that a stranger's file names
  runs only if the user's own config names it, too.

  Args:
    where: the file, for the error.
    fields: flat, as read from it.

  Raises:
    ConfigError: a field names a module.
  """
  names = [f"{known.field}.name" for known in kinds.KINDS.values()]
  names += ["log.loggers", "reward.functions", "serve.filter"]
  found = [x for x in names if ":" in str(fields.get(x, ""))]
  # The keys of these are files, whose names may contain a colon.
  for name in ("data.kind", "data.template"):
    values = [x.rpartition("=")[2] for x in str(fields.get(name)).split(",")]
    found += [name] * any(":" in x for x in values)
  if fields.get("rollout.engine.args.transfer"):  # a module, or a part of it
    found.append("rollout.engine.args.transfer")
  rules = re.findall(r"[^,]*\.json", str(fields.get("reward.functions", "")))
  if any(_names_functions(pathlib.Path(x.strip())) for x in rules):
    found.append("reward.functions")
  if fields.get("task.name", tasks.FILES) not in (*tasks.NAMES, tasks.FILES):
    found.append("task.name")
  if fields.get("environment.name", "") not in ("", *tasks.NAMES):
    found.append("environment.name")
  if found:
    shown = "; ".join(f"{name} = {fields[name]!r}" for name in found)
    raise errors.ConfigError(
        f"{where}: names code to import ({shown}), which only a config of your"
        " own may do: give --config and its overrides, too"
    )


def _names_functions(path: pathlib.Path) -> bool:
  """Whether a constitution has rules that are functions."""
  try:
    rules = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError):  # refused where it is read
    return False
  return '"function":' in json.dumps(rules)
