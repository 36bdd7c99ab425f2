"""Sampler weights: the policy's, cast or quantised once per RL step.

Decoding reads every weight for each token, so fewer bytes are faster. Shards
cast or quantise their weights and then gather them over the fsdp and expert
axes, so that no decode step waits for weights of other devices.
"""

import jax

from rl_reason.base.structs import Tree
from rl_reason.models import decoder, experts, linear, parameters
from rl_reason.models.kernels import by_layer


def table(
    cfg: decoder.ModelConfig, weights: str, params: Tree | None = None
) -> Tree:
  """The table of the weights that `make` returns.

  Args:
    cfg: of the policy.
    weights: as in `make`.
    params: of the policy, if some weights may be composed of arrays.
  """
  whole = decoder.table(cfg)
  rows = whole | dict(layers=dict(whole["layers"]))
  if weights == "int8":
    embed = rows["embed"]
    head = parameters.Param(embed.shape[::-1], embed.axes[::-1], embed.init)
    rows["head"] = _quantized(rows.get("head", head))
    for name in decoder.MATRICES:
      rows["layers"][name] = _quantized(rows["layers"][name])
  if params is not None:
    for name, w in params["layers"].items():
      if linear.is_composed(w):
        entry = w.table(whole["layers"][name], rows["layers"][name])
        rows["layers"][name] = entry
  rows = jax.tree.map(_gathered, rows, is_leaf=parameters.is_param)
  if not by_layer(cfg.attention):
    return rows
  one = jax.tree.map(_of_layer, rows["layers"], is_leaf=parameters.is_param)
  return rows | dict(layers=(one,) * cfg.layers)


def _of_layer(row: parameters.Param) -> parameters.Param:
  return row._replace(shape=row.shape[1:], axes=row.axes[1:])


def _quantized(row: parameters.Param) -> linear.Int8:
  shape, axes = row.shape, row.axes
  scale = parameters.Param(
      (*shape[:-2], shape[-1]), (*axes[:-2], axes[-1]), row.init
  )
  return linear.Int8(row, scale)


def _gathered(row: parameters.Param) -> parameters.Param:
  gathered = "embed", experts.AXIS
  axes = tuple(None if axis in gathered else axis for axis in row.axes)
  return row._replace(axes=axes)


def make(params: Tree, cfg: decoder.ModelConfig, weights: str) -> Tree:
  """The weights of a policy for the sampler.

  'int8' quantises the matrices and the output head, which is then separate from
  the embedding even if both are tied. Norms stay fp32; the embedding, biases
  and what is composed with a matrix have the dtype of the matrix products.

  Kernels that decode by layer get a tuple of layers in place of stacked arrays.

  Args:
    params: of the policy.
    cfg: of the policy.
    weights: 'same' (changes no number), 'bfloat16' or 'int8'.
  """
  out = _small(params, cfg, weights)
  if not by_layer(cfg.attention):
    return out
  layers = tuple(
      jax.tree.map(lambda x, n=n: x[n], out["layers"])
      for n in range(cfg.layers)
  )
  return out | dict(layers=layers)


def _small(params: Tree, cfg: decoder.ModelConfig, weights: str) -> Tree:
  out = linear.cast(params, weights if weights == "bfloat16" else cfg.dtype)
  if weights != "int8":
    return out

  layers = dict(out["layers"])
  for name in decoder.MATRICES:
    w = params["layers"][name]
    if linear.is_composed(w):
      layers[name] = w.quantized(cfg.dtype)
    else:
      layers[name] = linear.quantize(w)
  head = params["head"] if "head" in params else params["embed"].T
  return out | dict(layers=layers, head=linear.quantize(head))
