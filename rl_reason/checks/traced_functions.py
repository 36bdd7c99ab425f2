"""Traces the user's functions before anything is trained.

They are compiled with the first RL step. Without this check a function that
returns another shape would be found only after SFT.
"""

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
from rl_reason.checks.rules import Faults

# Further entries of a surrogate's dict are not read.
_SURROGATE = ("BT", dict(clipped="BT", clipped_lower="BT"))
# What a function of a kind returns: the axes of each array, or alternatives.
RESULTS: dict[str, tuple[Any, ...]] = {
    "advantage": ("B", "BT", "B1"),
    "surrogate": (_SURROGATE,),
    "reduction": ("BT",),
    "correction": ("BT", "B1"),
    "outcome": ("B",),
    "length_penalty": ("B",),
    "value_mixture": ("BT",),
}
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
  for kind, wanted in RESULTS.items():
    known = function_kinds.KINDS[kind]
    section = config_lib.at(c, known.field)
    if ":" not in section.name:
      continue
    function = functions.bind(kind, section)
    static = dict(correct=1.0, incorrect=-1.0, max_tokens=r.max_tokens)
    arrays = {
        name: _abstract(name, sizes)
        for name in known.inputs
        if name not in static
    }

    def call(arrays, function=function, static=static):
      return call_by_name(function, arrays | static)

    text = f"{known.field}.name = {section.name!r}:"
    wants = " or ".join(map(str, wanted))
    try:
      found = jax.eval_shape(call, arrays)
    except Exception as e:  # the user's code may raise anything
      faults.add([f"{text} raises, when it is traced, {own_code.raised(e)}"])
      continue
    if kind == "surrogate" and isinstance(found, tuple) and len(found) == 2:
      read = _SURROGATE[1].keys() & set(found[1])
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
              f"{text} returns {shapes}, and must return arrays with the axes"
              f" {wants}, where B = {sizes['B']} and T = {sizes['T']}"
              " (docs/own_functions.md)"
          ]
      )
  faults.end()


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
