"""Signatures of the functions of a module, read from its source.

The modules of the package import JAX, which takes longer than all other checks
of a config together.
"""

import ast
import pathlib
import typing
from typing import Any

from rl_reason.base import bounds

_BOUNDS, _TYPES = ("NonNegative", "Positive", "UnitInterval"), typing.__all__
_NAMES = {x: getattr(bounds, x) for x in _BOUNDS}
_NAMES |= {x: getattr(typing, x) for x in _TYPES}
_NAMES["Array"] = Any

# Name -> names of the positional parameters, and of the keyword-only ones
# -> (annotation, default); a default of ... is none.
Declared = dict[str, tuple[tuple[str, ...], dict[str, tuple[Any, Any]]]]


def functions(module: str) -> Declared | None:
  """The functions that a module of the package defines.

  Returns:
    None if some of them have defaults, annotations or decorators that the
    source alone does not tell: the module has to be imported.
  """
  root = pathlib.Path(__file__).parents[1]
  file = root.joinpath(*module.split(".")).with_suffix(".py")
  tree = ast.parse(file.read_text())
  try:
    return {
        node.name: _signature(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
  except (NameError, TypeError, ValueError, AttributeError):
    return None


def _signature(node: ast.FunctionDef):
  if node.decorator_list:
    raise ValueError(f"{node.name} has a decorator")
  a = node.args
  keywords = {}
  for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
    keywords[x.arg] = (
        _evaluated(x.annotation),
        ... if default is None else ast.literal_eval(default),
    )
  return tuple(x.arg for x in (*a.posonlyargs, *a.args)), keywords


def _evaluated(annotation: ast.expr | None) -> Any:
  """An annotation, in which only names of types can occur."""
  if annotation is None:
    return Any
  return eval(compile(ast.Expression(annotation), "", "eval"), dict(_NAMES))
