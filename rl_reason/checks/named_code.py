"""Code that the config of a work directory names: when it is imported.

Work directories and checkpoints are shared. A file of a stranger may make no
code of the stranger run, and call no function of Python or of a library.
"""

import importlib.util
import json
import pathlib
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from rl_reason import environments, tasks
from rl_reason.base import errors, kinds, own_code
from rl_reason.tasks import given

OWN = "", environments.INTERRUPT
LIBRARIES = {"site-packages", "dist-packages"}


def fields_with_code(fields: Mapping[str, Any]) -> list[str]:
  """The fields of a flat config that name code to import."""
  names = [f"{known.field}.name" for known in kinds.KINDS.values()]
  # The address of a judge has a colon as well: it gets responses, and a key.
  names += ["log.loggers", "reward.functions", "serve.filter"]
  found = [x for x in names if ":" in str(fields.get(x, ""))]
  # The keys of these are files, whose names may contain a colon.
  for name in ("data.kind", "data.template"):
    values = [x.rpartition("=")[2] for x in str(fields.get(name)).split(",")]
    found += [name] * any(":" in x for x in values)
  if fields.get("rollout.engine.args.transfer"):  # a module, or a part of it
    found.append("rollout.engine.args.transfer")
  rules = re.findall(r"[^,]*\.json", str(fields.get("reward.functions", "")))
  foreign = any(functions_of_rules(pathlib.Path(x.strip())) for x in rules)
  if foreign and "reward.functions" not in found:
    found.append("reward.functions")
  task = fields.get("task.name", tasks.FILES)
  if task not in (*tasks.NAMES, tasks.FILES):
    found += ["task.name"] * (not task.startswith(f"{tasks.GYM}:"))
  if fields.get("environment.name", "") not in (*OWN, *tasks.NAMES):
    found.append("environment.name")
  return found


def asks_a_judge(terms: str) -> bool:
  """Whether a constitution among the terms sends responses to a server."""
  return bool(re.search(r"[(,]\s*judge\s*=", terms))


def functions_of_rules(path: pathlib.Path) -> list[str]:
  """The functions that a constitution names; [] if the file has none."""
  try:
    rules = json.loads(path.read_text(encoding="utf-8"))
    return [str(x["function"]) for x in rules if "function" in x]
  except (OSError, ValueError, TypeError):  # refused where it is read
    return []


def refuse_code(where: str, fields: Mapping[str, Any]) -> None:
  """Refuses a config that comes with files and names code to import.

  Args:
    where: the file, for the error.
    fields: flat, as read from it.

  Raises:
    ConfigError: a field names a module.
  """
  if found := fields_with_code(fields):
    shown = "; ".join(f"{name} = {fields[name]!r}" for name in found)
    raise errors.ConfigError(
        f"{where}: names code to import ({shown}), which only a config of your"
        " own may do: give --config and its overrides, too"
    )


def why_foreign(name: str, workdir: pathlib.Path) -> str:
  """Why code that a work directory names may not be imported; '' if it may.

  The user's own modules may be: modules of the working directory or of
  PYTHONPATH, outside of the work directory. To ask imports nothing.

  Args:
    name: 'module:function', 'package.module:Class', or a module.
    workdir: whose config names it.
  """
  if name.startswith(given.LOCAL):
    return "it was an object of the Python session that trained"
  module = name.partition(":")[0].partition(".")[0]
  own_code.search_working_directory()
  try:
    spec = importlib.util.find_spec(module)
  except (ImportError, ValueError):
    spec = None
  if spec is None:
    return f"there is no module {module} in {pathlib.Path.cwd()} or PYTHONPATH"
  places = [spec.origin or "", *(spec.submodule_search_locations or [])]
  standard = pathlib.Path(sysconfig.get_path("stdlib")).resolve()
  for place in (pathlib.Path(x).resolve() for x in places if x):
    of_python = place.is_relative_to(standard)
    if module in sys.stdlib_module_names or of_python or module == "rl_reason":
      return f"{module} belongs to Python or to rl_reason"
    if LIBRARIES & set(place.parts):
      return f"{module} is a library"
    if place.is_relative_to(workdir.resolve()):
      return f"{place} lies in the work directory"
  return ""
