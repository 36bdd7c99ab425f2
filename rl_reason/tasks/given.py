"""Names for objects that are passed to `rl_reason.train`, for the config.

A function of a module has the name `module:name`. A lambda, a nested function
or an object becomes an attribute of this module, `rl_reason.tasks.given:name`.
"""

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
  while getattr(here, unique, thing) is not thing:
    number += 1
    unique = f"{base}_{number}"
  setattr(here, unique, thing)
  return f"{__name__}:{unique}"
