"""Traces the user's functions before anything is trained.

They are compiled with the first RL step. Without this check a function that
returns another shape would be found only after SFT.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base import (
    config as config_lib,
    feature,
    function_kinds,
    functions,
    own_code,
)
from rl_reason.base.structs import call_by_name
from rl_reason.checks import own_functions
from rl_reason.checks.rules import Faults

# By the last word of a name; float32 without.
_DTYPES = dict.fromkeys(("mask", "valid", "ends"), "bool") | dict.fromkeys(
    ("groups", "types", "problems", "lengths", "turns"), "int32"
)


def check(c) -> None:
  """Traces each function that the config names as `module:function`.

  Args:
    c: the checked config.

  Raises:
    ConfigError: a function raises, or returns arrays of other shapes. The line
      names the field, and the place in the user's file or the axes that the
      function has to return.
  """
  faults = Faults()
  r = c.rollout
  sizes = {"B": r.batch, "T": r.max_tokens, "1": 1}
  for one in feature.used(c):
    sizes |= one.axes(c)
  static = dict(correct=1.0, incorrect=-1.0, max_tokens=r.max_tokens)
  for what, function, inputs, wanted, kind in _functions(c):
    arrays = {x: _abstract(x, sizes) for x in inputs if x not in static}

    def call(arrays, function=function):
      return call_by_name(function, arrays | static)

    wants = " or ".join(map(str, wanted))
    try:
      found = jax.eval_shape(call, arrays)
    except Exception as e:  # the user's code may raise anything
      raised = own_code.raised(e)
      faults.add([f"{what}: raises, when it is traced, {raised}"])
      continue
    if kind == "surrogate" and isinstance(found, tuple) and len(found) == 2:
      read = function_kinds.OF_SURROGATE[1].keys() & set(found[1])
      found = found[0], {name: found[1][name] for name in read}
    if kind == "advantage" and isinstance(found, tuple):
      found = found[0]  # the others are metrics
    shapes = jax.tree.map(lambda x: x.shape, found)
    possible = [
        jax.tree.map(lambda axes: tuple(sizes[x] for x in axes), one)
        for one in wanted
    ]
    if shapes not in possible:
      faults.add(
          [
              f"{what}: returns {shapes}, and must return arrays with the axes"
              f" {wants}, where B = {sizes['B']} and T = {sizes['T']}"
              " (docs/own_functions.md)"
          ]
      )
  faults.end()


def _functions(c) -> Iterator[tuple[str, Callable, Any, tuple[Any, ...], str]]:
  """What names a function of the user, its inputs, results and kind."""
  for kind, known in function_kinds.KINDS.items():
    if not known.results:
      continue
    section = config_lib.at(c, known.field)
    if ":" in section.name:
      what, inputs = f"{known.field}.name = {section.name!r}", known.inputs
      yield what, functions.bind(kind, section), inputs, known.results, kind
  for x in own_functions.terms(c):
    what = f"loss.terms = {x.label!r}"
    yield what, x.function, own_functions.OF_LOSS, ("BT", "B1"), "term"
    if x.weights is not None:
      inputs = own_functions.OF_WEIGHTS
      yield f"{what}: token_weights", x.weights, inputs, ("BT",), "weights"


def _abstract(name: str, sizes: dict[str, int]) -> Any:
  """An input of a function; its suffix has its axes."""
  if name == "parts":
    one = _abstract("rewards_B", sizes), _abstract("weight", sizes)
    return {"outcome": one}
  words, mark, axes = name.rpartition("_")
  known = bool(mark) and set(axes) <= set(sizes)
  shape = tuple(sizes[x] for x in axes) if known else ()
  dtype = _DTYPES.get(words.rpartition("_")[2], "float32")
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
