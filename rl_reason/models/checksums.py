"""Checksums of parameters, computed on their devices.

A checksum is the sum of the bits of each number times 2 n + 1, modulo 2^32,
where n is the position of the number. These factors are odd, so that a change
of a single number changes it. It does not depend on the sharding.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array, Tree
from rl_reason.devices import sharding
from rl_reason.devices.compiled import DISPATCH

Checksums = dict[str, Array]  # by path: uint32 [layers], or [] without layers
Sums = dict[str, list[int]]  # the same on the host; one number without layers


class Answer(NamedTuple):
  """What an engine reports about the weights that it samples with.

  Attributes:
    checksums: checksums of the parameters that it received.
    fault: how the weights of an external engine differ from them; '' if they
      are equal or unknown.
  """

  checksums: Checksums
  fault: str = ""


LAYERS = "layers/"  # paths of arrays of layers
_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by itemsize


def by_layer(params: Tree) -> Checksums:
  """The checksum of each array; arrays of layers have one for each layer.

  The checksums of the layers of a stacked array add up to the checksum of the
  array.
  """
  return {
      name: jnp.stack([_one(layer, stacked=False) for layer in x])
      if isinstance(x, list)
      else _one(x, stacked=name.startswith(LAYERS))
      for name, x in flat(params).items()
  }


def flat(params: Tree) -> dict[str, Array | list[Array]]:
  """Arrays by path, such as layers/q; a list if each layer has its own."""
  out: dict[str, Any] = {}
  for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
    own = len(path) > 1 and isinstance(path[1], jax.tree_util.SequenceKey)
    path = (path[0], *path[2:]) if own else path
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if own:
      out.setdefault(name, []).append(x)
    else:
      out[name] = x
  return out


def _one(x: Array, stacked: bool) -> Array:
  bits = jax.lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize])
  bits = bits.astype(jnp.uint32)
  # Positions are computed by axis, since flattening would gather the array.
  place, stride = jnp.zeros(x.shape, jnp.uint32), 1
  for axis in reversed(range(x.ndim)):
    at = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    place += np.uint32(stride % 2**32) * at
    stride *= x.shape[axis]
  axes = tuple(range(stacked, x.ndim))
  return jnp.sum(bits * (2 * place + 1), axes, dtype=jnp.uint32)


def as_they_are(params: Tree) -> Tree:
  """The parameters."""
  return params


@functools.partial(jax.jit, static_argnames="make")
def _program(params: Tree, make: Callable[[Tree], Tree]) -> Checksums:
  return by_layer(make(params))


def on_device(
    params: Tree, make: Callable[[Tree], Tree] = as_they_are
) -> Checksums:
  """`by_layer(make(params))`, dispatched asynchronously."""
  with DISPATCH:
    return _program(params, make)


def digest(params: Tree) -> int:
  """One number for all parameters."""
  found = sharding.fetch(on_device(params)).values()
  sums = [np.sum(x, dtype=np.uint32) for x in found]
  return zlib.crc32(np.array(sums, np.uint32).tobytes())


def answers(held: list[Answer]) -> list[dict[str, Any]]:
  """Answers of an engine as JSON, without duplicates."""
  out: list[dict[str, Any]] = []
  for x in held:
    one = dict(sums=host_sums(x.checksums), fault=x.fault)
    if one not in out:
      out.append(one)
  return out


def host_sums(found: Checksums) -> Sums:
  """Fetches checksums to the host."""
  fetched = sharding.fetch(found)
  return {name: np.atleast_1d(x).tolist() for name, x in fetched.items()}
