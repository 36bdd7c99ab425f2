"""LoRA: low-rank factors for the matrices of a frozen base model.

Hu et al., arXiv:2106.09685. The trainable factors are a separate pytree, so
that optimizer state and checkpoints are small; the base is also the reference
policy of a KL penalty. `a` is initialized at random and `b` at zero: the
initial policy is bit-identical to the base.
"""

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Tree
from rl_reason.models import decoder, parameters
from rl_reason.models.linear import LowRank


def table(
    cfg: decoder.ModelConfig, rank: int, targets: tuple[str, ...]
) -> dict[str, dict]:
  """The table of the factors a and b of each target of `decoder.MATRICES`."""
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


def table_of(params: Tree, cfg: decoder.ModelConfig) -> tuple[Tree, float]:
  """The table of the factors in joined parameters, and their scale."""
  found = {
      name: w for name, w in params["layers"].items() if isinstance(w, LowRank)
  }
  if not found:
    return dict(layers={}), 1.0
  first = next(iter(found.values()))
  return table(cfg, first.a.shape[-1], tuple(found)), first.scale


def join(base: Tree | None, trainable: Tree, scale: float) -> Tree:
  """Parameters for `decoder.forward`, without copies.

  Args:
    base: the frozen parameters; None if all parameters are trainable.
    trainable: factors, or all parameters.
    scale: alpha / rank.
  """
  if base is None:
    return trainable
  layers = base["layers"]
  low_rank = {
      name: LowRank(layers[name], **factors, scale=scale)
      for name, factors in trainable["layers"].items()
  }
  return base | dict(layers=layers | low_rank)


def merge(params: Tree) -> Tree:
  """Adds the factors to the base, in fp32, for exports and external engines.

  Rounding the sum to bfloat16 loses most of a small adapter, so
  `sampler_weights` keeps base and factors separate.
  """

  def one(w):
    if not isinstance(w, LowRank):
      return w
    product = jnp.matmul(w.a, w.b, precision="highest")
    return w.base.astype(jnp.float32) + w.scale * product

  return jax.tree.map(one, params, is_leaf=lambda x: isinstance(x, LowRank))
