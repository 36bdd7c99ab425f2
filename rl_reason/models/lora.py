"""LoRA: low-rank factors beside matrices of a frozen base model.

Hu et al., arXiv:2106.09685. The trainable factors are a pytree of their own, so
optimizer state and checkpoints are small, and the base is also the reference
policy of a KL. `a` starts at random and `b` at zero: the initial policy equals
the base bit for bit.
"""

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Tree
from rl_reason.models import decoder, parameters
from rl_reason.models.linear import LowRank


def table(
    cfg: decoder.ModelConfig, rank: int, targets: tuple[str, ...]
) -> dict[str, dict]:
  """The table of the factors: a and b for each target of `decoder.MATRICES`."""
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
  """Parameters as `decoder.forward` takes them; nothing is copied.

  Without a base all parameters are trained; the scale is alpha / rank.
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
  """Adds the factors to the base; fp32 where there are factors.

  For exports and engines that know no factors. A sum which is then rounded to
  bfloat16 loses most of a small adapter: `sampler_weights` keeps them apart.
  """

  def one(w):
    if not isinstance(w, LowRank):
      return w
    product = jnp.matmul(w.a, w.b, precision="highest")
    return w.base.astype(jnp.float32) + w.scale * product

  return jax.tree.map(one, params, is_leaf=lambda x: isinstance(x, LowRank))
