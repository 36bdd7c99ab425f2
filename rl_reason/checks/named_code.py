"""Code that the config of a work directory names: when it is imported.

Work directories and checkpoints are shared. A file of a stranger may make no
code of the stranger run, and call no function of Python or of a library.
"""

import contextlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import pathlib
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rl_reason import tasks
from rl_reason.base import errors, feature, function_kinds, own_code
from rl_reason.tasks import constitutions, passed_objects, reward_terms

LIBRARIES = {"site-packages", "dist-packages"}
# Lists of names, separated by commas.
LISTS = (
    "model.family",
    "log.loggers",
    "serve.filter",
    "data.kind",
    "data.template",
)
KEYED = ("data.kind", "data.template")  # a name may follow a key: math=m:f
# Functions with arguments and weights, separated by commas.
TERMS = ("reward.functions", "loss.terms", "log.metrics")
# Arguments of `rollout.vllm`, which are objects, or modules that are one.
ENGINE = ("rollout.engine.args.transfer", "rollout.engine.args.held")


def fields_with_code(fields: Mapping[str, Any]) -> list[str]:
  """The fields of a flat config that name code to import."""
  terms = str(fields.get("reward.functions", ""))
  # The address of a judge has a colon as well: it gets responses, and a key.
  asks = ["reward.functions"] * asks_a_judge(terms)
  return list(dict.fromkeys([*names_of_code(fields), *asks]))


def names_of_code(fields: Mapping[str, Any]) -> dict[str, list[str]]:
  """The code that a flat config names: fields -> 'module:name', or 'module'."""
  out: dict[str, list[str]] = {}
  for known in function_kinds.KINDS.values():
    out[f"{known.field}.name"] = [str(fields.get(f"{known.field}.name", ""))]
  for name in LISTS:
    items = str(fields.get(name, "")).split(",")
    items = [x.rpartition("=")[2] if name in KEYED else x for x in items]
    out[name] = [x.strip() for x in items]
  for name in TERMS:
    out[name] = [
        function
        for part in reward_terms.parts(str(fields.get(name, "")))
        for function in functions_of_term(part)
    ]
  out = {name: [x for x in found if ":" in x] for name, found in out.items()}
  out |= {name: [str(fields[name])] for name in ENGINE if fields.get(name)}
  of_tasks = str(fields.get("evaluate.tasks", "")).split(",")
  for name, found in (
      ("task.name", [str(fields.get("task.name", tasks.FILES))]),
      ("evaluate.tasks", [x.partition("(")[0].strip() for x in of_tasks]),
  ):
    gym = [x for x in found if x.startswith(f"{tasks.GYM}:")]
    own = ("", tasks.FILES, *tasks.names(), *gym)
    out[name] = [x for x in found if x not in own]
  for name, own in feature.marked("code").items():
    found = [str(fields.get(name, ""))]
    out[name] = [x for x in found if x not in (*own, *tasks.names())]
  return {name: found for name, found in out.items() if found}


def functions_of_term(text: str) -> list[str]:
  """The functions of a term of the reward; those that a constitution names."""
  try:
    name = reward_terms.term(text).name
  except ValueError:  # refused where it is parsed
    name = text
  if (rules := constitutions.of_term(name)) is not None:
    return functions_of_rules(rules)
  return [] if reward_terms.is_model(name) else [name.partition("(")[0]]


def asks_a_judge(terms: str) -> bool:
  """Whether a constitution among the terms sends responses to a server."""
  # All its arguments belong to a judge; Python reads a name in many spellings.
  return any(
      constitutions.of_term(x) and "(" in x for x in reward_terms.parts(terms)
  )


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
  PYTHONPATH, outside of all work directories. The file of the whole dotted name
  decides, and the files of its packages. To ask imports nothing.

  Args:
    name: 'module:function', 'package.module:Class', or a module.
    workdir: whose config names it.
  """
  if name.startswith(passed_objects.LOCAL):
    return "it was an object of the Python session that trained"
  own_code.search_working_directory()
  module = name.partition(":")[0]
  top, found = module.partition(".")[0], list(_parts(module))
  if found and (top in sys.stdlib_module_names or top == "rl_reason"):
    return f"{top} belongs to Python or to rl_reason"
  standard = pathlib.Path(sysconfig.get_path("stdlib")).resolve()
  package = pathlib.Path(__file__).resolve().parents[1]
  places = [x.file for x in found if x.file]
  # Where the search ends; elsewhere such directories run nothing.
  for place in [*places, *(x for one in found[-1:] for x in one.directories)]:
    real = place.resolve()
    if LIBRARIES & {*place.parts, *real.parts} or _is_installed(place):
      return f"{top} is a library"
    if real.is_relative_to(standard) or real.is_relative_to(package):
      return f"{top} belongs to Python or to rl_reason"
    if run := _work_directory(place, workdir):
      return f"{place} lies in the work directory {run}"
  # A folder of runs, or of such folders, may be a stranger's as a whole.
  around = {*workdir.absolute().parents, *workdir.resolve().parents}
  for folder in (x for one in found for x in one.directories):
    if {folder, folder.resolve()} & around:
      return f"{module} lies in {folder}, the folder of the work directory"
  if len(found) < module.count(".") + 1 or not found[-1].file:
    return f"there is no module {module} in {pathlib.Path.cwd()} or PYTHONPATH"
  return ""


class _Part(NamedTuple):
  """A part of a dotted name.

  Attributes:
    file: which an import runs; None of a package without `__init__`.
    directories: of a package, in which the next part is looked for.
  """

  file: pathlib.Path | None
  directories: list[pathlib.Path]


def _parts(module: str) -> Iterator[_Part]:
  """The parts of a dotted name, as far as they are found; imports nothing."""
  places: list[str] = []
  for name in itertools.accumulate(module.split("."), "{}.{}".format):
    if (spec := _spec(name, places)) is None:
      return
    loaded = sys.modules.get(name)
    there = spec.submodule_search_locations or ()
    places = [*getattr(loaded, "__path__", there)]
    directories = [pathlib.Path(os.path.abspath(x)) for x in places]
    origin = spec.has_location and spec.origin
    file = pathlib.Path(os.path.abspath(origin)) if origin else None
    yield _Part(file, directories)


def _spec(
    name: str, places: list[str]
) -> importlib.machinery.ModuleSpec | None:
  """Where a module is; `importlib.util.find_spec` would import its package.

  Args:
    name: the dotted name.
    places: where its package looks for modules.
  """
  if name in sys.modules or "." not in name:
    with contextlib.suppress(ImportError, ValueError):
      return importlib.util.find_spec(name)
    return None
  portions = []
  for place in places:
    finder = pkgutil.get_importer(place)
    found = finder.find_spec(name) if finder else None
    if found and found.loader:
      return found
    portions += (found and found.submodule_search_locations) or ()
  if not portions:
    return None
  namespace = importlib.machinery.ModuleSpec(name, None, is_package=True)
  namespace.submodule_search_locations = portions
  return namespace


def _is_installed(place: pathlib.Path) -> bool:
  """Whether pip has installed a file, perhaps by --target=DIRECTORY."""
  for parent in [*place.parents][:_DEPTH]:
    name = f"{place.relative_to(parent).as_posix()},"
    for record in parent.glob("*.dist-info/RECORD"):
      with contextlib.suppress(OSError, ValueError):
        lines = record.read_text(encoding="utf-8").splitlines()
        if any(x.startswith(name) for x in lines):
          return True
  return False


_DEPTH = 8  # of packages in packages


def _work_directory(
    place: pathlib.Path, workdir: pathlib.Path
) -> pathlib.Path | None:
  """The work directory, this or another one, that a file lies in.

  A link counts where it is, and where it leads.
  """
  for one in (place, place.resolve()):
    for parent in (one, *one.parents):
      if parent.resolve() == workdir.resolve() or _is_run(parent):
        return parent
  return None


def _is_run(place: pathlib.Path) -> bool:
  """Whether a directory has the config of a run, or what is left of one."""
  with contextlib.suppress(OSError, ValueError, RecursionError):
    text = (place / "config.json").read_text(encoding="utf-8")
    return "rl.steps" in json.loads(text)
  return False
