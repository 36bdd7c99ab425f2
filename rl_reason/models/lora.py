"""LoRA: a fixed base, and low-rank factors beside some of its matrices.

Hu et al., arXiv:2106.09685. What learns is a pytree of its own, so optimizer
state and checkpoints are small, and the base is also the reference of a KL. `a`
starts at random and `b` at zero: the first policy is the base, to the bit.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.models import decoder, parameters
from rl_reason.scale import sharding
from rl_reason.scale.linear import LowRank
from rl_reason.structs import Array, Tree


def table(
    cfg: decoder.ModelConfig, rank: int, targets: tuple[str, ...]
) -> dict[str, dict]:
  """The factors: `parameters.Param` of a and b for each target of the layers.

  Args:
    cfg: of the base.
    rank: columns of a, rows of b.
    targets: names of `decoder.MATRICES`.
  """
  layers = decoder.table(cfg)["layers"]
  factors = {}
  for name in targets:
    (count, wide, out), (_, axis_in, axis_out), *_ = layers[name]
    factors[name] = dict(
        a=parameters.Param(
            (count, wide, rank), (None, axis_in, None), "normal", wide
        ),
        b=parameters.Param((count, rank, out), (None, None, axis_out), "zeros"),
    )
  return dict(layers=factors)


def join(base: Tree | None, learnt: Tree, scale: float) -> Tree:
  """Parameters as `decoder.forward` takes them; nothing is copied.

  Args:
    base: of a decoder; None: there is none, all parameters learn.
    learnt: factors as `table` lays them out, or all parameters.
    scale: alpha / rank.
  """
  if base is None:
    return learnt
  layers = base["layers"]
  beside = {
      name: LowRank(layers[name], **factors, scale=scale)
      for name, factors in learnt["layers"].items()
  }
  return base | dict(layers=layers | beside)


def merge(params: Tree) -> Tree:
  """Parameters without factors: fp32 where there were some, else as they are.

  One product an update instead of two a token, for rounding.
  """

  def one(w):
    if not isinstance(w, LowRank):
      return w
    more = jnp.matmul(w.a, w.b, precision="highest")
    return w.base.astype(jnp.float32) + w.scale * more

  return jax.tree.map(one, params, is_leaf=lambda x: isinstance(x, LowRank))


def digest(base: Tree) -> int:
  """A checksum of parameters, the same however they are split over devices."""
  return zlib.crc32(sharding.fetch(_checksums(base)).tobytes())


@jax.jit
def _checksums(params: Tree) -> Array:
  """Of each leaf its bits, weighted by their places, modulo 2 ** 32."""

  def one(x):
    kind = jnp.uint32 if x.dtype.itemsize == 4 else jnp.uint16
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
    # Axis by axis: to flatten would gather what is split.
    place, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
      at = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
      place += np.uint32(stride % 2**32) * at
      stride *= x.shape[axis]
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)

  return jnp.stack([one(x) for x in jax.tree.leaves(params)])
