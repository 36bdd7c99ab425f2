"""Matrix products with weights that are more, or less, than an array.

A weight in a pytree of parameters is an array [in, out] (with an axis of layers
before, if it is stacked), an `Int8`, or a `LowRank` about one of these.
`product` multiplies by any of them: what a pytree holds decides, no config.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.structs import Array, Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Int8:
  """A weight of `values * scale`, symmetric, one scale an output channel.

  Attributes:
    values: int8 [..., in, out], from -127 to 127.
    scale: float32 [..., out].
  """

  values: Any
  scale: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class LowRank:
  """A weight of `base + scale * a @ b` (LoRA, arXiv:2106.09685, eq 3).

  Attributes:
    base: a weight; it does not learn.
    a: [..., in, rank].
    b: [..., rank, out].
    scale: alpha / rank; static.
  """

  base: Any
  a: Any
  b: Any
  scale: float = dataclasses.field(metadata=dict(static=True))


def product(x: Array, w: Array | Int8 | LowRank) -> Array:
  """x [..., in] times a weight [in, out], in the dtype of x."""
  if isinstance(w, LowRank):
    low = (x @ w.a.astype(x.dtype)) @ w.b.astype(x.dtype)
    return product(x, w.base) + w.scale * low
  if isinstance(w, Int8):
    # Scaled behind the product, in fp32: the values are exact in any dtype.
    return (x @ w.values.astype(x.dtype) * w.scale).astype(x.dtype)
  return _times(x, w.astype(x.dtype))


@jax.custom_vjp
def _times(x: Array, w: Array) -> Array:
  """x @ w; has a gradient, but no forward-mode derivative."""
  return x @ w


def _times_forward(x, w):
  return x @ w, (x, w)


def _times_backward(saved, grad):
  x, w = saved
  x_XI, grad_XO = (y.reshape(-1, y.shape[-1]) for y in (x, grad))
  tall = w.shape[0] > w.shape[1]
  if tall and jax.default_backend() == "cpu":
    # XLA's CPU backend computes a wide gradient 1.3 times as fast as a tall one
    # (`bench.products`); without the barrier it would turn the product back.
    return grad @ w.T, jax.lax.optimization_barrier(grad_XO.T @ x_XI).T
  return grad @ w.T, x_XI.T @ grad_XO


_times.defvjp(_times_forward, _times_backward)


def quantize(w: Array) -> Int8:
  """The nearest `Int8` of a weight: off by half a step, at most.

  Args:
    w: [..., in, out].
  """
  w = w.astype(jnp.float32)
  most = jnp.max(jnp.abs(w), -2)
  scale = jnp.where(most > 0, most, 127.0) / 127
  values = jnp.round(w / scale[..., None, :])
  return Int8(values.astype(jnp.int8), scale)


def cast(params: Tree, dtype: str) -> Tree:
  """Parameters of a decoder in another dtype, but for the scales of norms.

  Those are read in fp32, all others in the dtype of the products: in that one
  they can be stored without a change to any number.
  """

  def one(path, x):
    name = path[-1].key
    return x if "norm" in name else x.astype(dtype)

  return jax.tree_util.tree_map_with_path(one, params)
