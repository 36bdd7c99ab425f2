"""Names for objects that are passed to `rl_reason.train`, for the config.

A function of a module has the name `module:name`. A lambda, a nested function
or an object becomes an attribute of this module, and its name is
`rl_reason.tasks.passed_objects:name`.
"""

import operator
import re
import sys
import types
from typing import Any

# Modules that no other process can import.
LOCAL = ("__main__:", f"{__name__}:")


def name_of(thing: Any) -> str:
  """A name by which `functions.load` finds an object in this process."""
  if isinstance(thing, types.ModuleType):
    return thing.__name__
  module = getattr(thing, "__module__", "")
  name = getattr(thing, "__qualname__", "")
  if name and getattr(sys.modules.get(module), name, None) is thing:
    return f"{module}:{name}"
  here = sys.modules[__name__]
  base = re.sub(r"\W", "", name.rpartition(".")[2] or type(thing).__name__)
  unique, number = base, 1
  while not _same(getattr(here, unique, thing), thing):
    number += 1
    unique = f"{base}_{number}"
  setattr(here, unique, thing)
  return f"{__name__}:{unique}"


def _same(old: Any, new: Any) -> bool:
  """Whether an object is an earlier one, made again by the cell of a notebook.

  A run resumes by the names of its objects, so an equal object keeps its name.
  """
  if old is new or type(old).__qualname__ != type(new).__qualname__:
    return old is new
  try:
    if not isinstance(new, types.FunctionType):
      return bool(vars(old) == vars(new))
    read = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
    cells = [[x.cell_contents for x in f.__closure__ or ()] for f in (old, new)]
    return bool(read(old) == read(new) and cells[0] == cells[1])
  except (TypeError, ValueError):  # no attributes, or arrays among them
    return False
