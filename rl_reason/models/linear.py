"""Matrix products with weights that are arrays, in int8, or composed.

A weight in a pytree of parameters is an array [in, out] (with a leading axis of
layers if it is stacked), an `Int8`, or a `Composed` with one of these inside.
`product` accepts all of them, so the model does not depend on the kind. Shapes
here: X all leading axes; I inputs; O outputs of a product.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Int8:
  """A weight `values * scale`: symmetric, with a scale per output channel.

  Attributes:
    values: int8 [..., in, out], from -127 to 127.
    scale: float32 [..., out].
  """

  values: Any
  scale: Any


class Composed:
  """A weight that is computed from several arrays; a pytree node of them."""

  def product(self, x: Array) -> Array:
    """x [..., in] times the weight, in the dtype of x."""
    raise NotImplementedError

  def merged(self) -> Array:
    """The weight as one array, in float32."""
    raise NotImplementedError

  def quantized(self, dtype: str) -> "Composed":
    """The weight with the matrix of a model in int8, all else in a dtype."""
    raise NotImplementedError

  def table(self, row: Any, matrix: Any) -> "Composed":
    """Entries of a table of parameters in place of the arrays.

    `row` is the `parameters.Param` of the weight as one array, and `matrix`
    what stands for the matrix that `quantized` may change.
    """
    raise NotImplementedError


def product32(x: Array, w: Array | Int8) -> Array:
  """x [..., in] times a weight [in, out], summed and returned in float32.

  The factors have the dtype of x; the sums are not rounded to it.
  """
  if isinstance(w, Int8):
    return product32(x, w.values) * w.scale
  kind = jnp.promote_types(x.dtype, jnp.float32)  # float64 in some tests
  return jnp.matmul(x, w.astype(x.dtype), preferred_element_type=kind)


def rounded(x: Array, dtype: str) -> Array:
  """Rounds float32 numbers to a dtype; XLA may remove a pair of casts."""
  kind = jnp.finfo(dtype)
  return jax.lax.reduce_precision(x, kind.nexp, kind.nmant)


def product(x: Array, w: Array | Int8 | Composed) -> Array:
  """x [..., in] times a weight [in, out], in the dtype of x."""
  if isinstance(w, Composed):
    return w.product(x)
  if isinstance(w, Int8):
    # Scaled in fp32 after the product, since int8 values are exact in any
    # dtype.
    return (x @ w.values.astype(x.dtype) * w.scale).astype(x.dtype)
  return _times(x, w.astype(x.dtype))


@jax.custom_vjp
def _times(x: Array, w: Array) -> Array:
  """x @ w, with a gradient for XLA's CPU backend."""
  return x @ w


def _times_forward(x, w):
  return x @ w, (x, w)


def _times_backward(saved, grad):
  x, w = saved
  x_XI, grad_XO = (y.reshape(-1, y.shape[-1]) for y in (x, grad))
  tall = w.shape[0] > w.shape[1]
  if tall and jax.default_backend() == "cpu":
    # XLA's CPU backend computes a wide gradient 1.3 times as fast as a tall one
    # (studies/products). Without the barrier XLA would undo the transposition.
    return grad @ w.T, jax.lax.optimization_barrier(grad_XO.T @ x_XI).T
  return grad @ w.T, x_XI.T @ grad_XO


_times.defvjp(_times_forward, _times_backward)


def quantize(w: Array) -> Int8:
  """Rounds a weight [..., in, out] to the nearest `Int8`."""
  w = w.astype(jnp.float32)
  absmax = jnp.max(jnp.abs(w), -2)
  scale = jnp.where(absmax > 0, absmax, 127.0) / 127
  values = jnp.round(w / scale[..., None, :])
  return Int8(values.astype(jnp.int8), scale)


def is_composed(w: Any) -> bool:
  """Whether w is a `Composed`, a leaf where weights are leaves."""
  return isinstance(w, Composed)


def merged(params: Tree) -> Tree:
  """Parameters with each weight as an array: for exports and other engines."""
  return jax.tree.map(
      lambda w: w.merged() if is_composed(w) else w,
      params,
      is_leaf=is_composed,
  )


def cast(params: Tree, dtype: str) -> Tree:
  """Casts the parameters of a decoder, except for the scales of norms.

  Norms are computed in fp32, and everything else in the dtype of the matrix
  products: a cast to this dtype changes no result.
  """

  def one(path, x):
    is_norm = "norm" in jax.tree_util.keystr(path)
    return x if is_norm else x.astype(dtype)

  return jax.tree_util.tree_map_with_path(one, params)
