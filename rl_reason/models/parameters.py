"""Tables of parameters: shapes, logical axes and initial values.

A model describes each parameter once, as a `Param` in a pytree, its table. The
table determines initial values, shardings, and the shapes for a restore.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Tree
from rl_reason.devices import sharding


class Param(NamedTuple):
  """A parameter: shape, logical axes and initial values."""

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  init: str  # 'ones', 'zeros', or 'normal' with std = fan_in ** -0.5
  fan_in: int = 1


def is_param(x) -> bool:
  """Whether x is a leaf of a table, as a tuple would be a pytree."""
  return isinstance(x, Param)


def init_table(table: Tree, key: Array) -> Tree:
  """fp32 parameters of a table; the key determines them on any mesh."""
  entries, treedef = jax.tree.flatten(table, is_leaf=is_param)

  def make(index, entry):
    if entry.init != "normal":
      return getattr(jnp, entry.init)(entry.shape, jnp.float32)
    noise = jax.random.normal(jax.random.fold_in(key, index), entry.shape)
    return noise * entry.fan_in**-0.5

  return treedef.unflatten([make(i, x) for i, x in enumerate(entries)])


def shardings(table: Tree, mesh: jax.sharding.Mesh) -> Tree:
  """The sharding of each parameter of a table on a mesh."""
  return jax.tree.map(
      lambda p: sharding.fit(mesh, p.shape, p.axes), table, is_leaf=is_param
  )


def abstract(table: Tree, shardings: Tree) -> Tree:
  """Shapes, dtypes and shardings of parameters, for a restore."""
  return jax.tree.map(
      lambda p, s: jax.ShapeDtypeStruct(p.shape, jnp.float32, sharding=s),
      table,
      shardings,
      is_leaf=is_param,
  )


def count(table: Tree) -> int:
  """Number of parameters of a table."""
  entries = jax.tree.leaves(table, is_leaf=is_param)
  return sum(math.prod(x.shape) for x in entries)


def flops_per_token(table: Tree, context: float, share: float = 1.0) -> float:
  """Floating-point operations of the forward pass of a decoder for one token.

  Two per weight of matrix products (including the output head), and attention
  to `context` tokens on average. A backward pass takes twice as many. `share`
  is the fraction of the experts that a token uses.
  """
  layers = table["layers"]
  matrices = [x for x in layers.values() if x.init == "normal"]
  weights = sum(
      math.prod(x.shape) * (share if "expert" in x.axes else 1)
      for x in [*matrices, table["embed"]]
  )
  count, _, queries = layers["q"].shape
  return 2.0 * (weights + count * 2 * queries * context)
