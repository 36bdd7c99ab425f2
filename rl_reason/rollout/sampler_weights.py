"""Sampler weights: the policy's, cast or quantised once per RL step.

Decoding reads every weight for each token: the fewer bytes, the faster. Weights
are cast or quantised in their shards and then gathered over the fsdp and expert
axes, so that no decode step waits for weights of other devices.
"""

import jax

from rl_reason.models import decoder, experts, lora, parameters
from rl_reason.scale import linear
from rl_reason.structs import Tree


def table(cfg: decoder.ModelConfig, weights: str) -> Tree:
  """The table of the weights that `make` returns."""
  rows = decoder.table(cfg)
  if weights == "int8":
    embed = rows["embed"]
    head = parameters.Param(embed.shape[::-1], embed.axes[::-1], embed.init)
    rows["head"] = _quantized(rows.get("head", head))
    for name in decoder.MATRICES:
      rows["layers"][name] = _quantized(rows["layers"][name])
  return jax.tree.map(_gathered, rows, is_leaf=parameters.is_param)


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

  'int8' quantises the matrices, also the output head, which is then separate
  from the embedding even if they are tied. Norms stay fp32; the embedding and
  biases have the dtype of the matrix products.

  Args:
    params: of the policy; low-rank factors are merged.
    cfg: of the policy.
    weights: 'same' (changes no number), 'bfloat16' or 'int8'.
  """
  merged = lora.merge(params)
  if weights != "int8":
    return linear.cast(merged, cfg.dtype if weights == "same" else weights)
  head = merged["head"] if "head" in merged else merged["embed"].T
  quantized = {
      name: linear.quantize(merged["layers"][name]) for name in decoder.MATRICES
  }
  out = linear.cast(merged, cfg.dtype)
  layers = out["layers"] | quantized
  return out | dict(layers=layers, head=linear.quantize(head))
