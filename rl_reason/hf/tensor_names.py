"""Tensor names of transformers, and the parameters that they belong to.

Parameters of layers are stacked here, and separate tensors in the files.
Matrices are [in, out] here, and [out, in] in the files.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from rl_reason.base.structs import Tree
from rl_reason.devices import sharding
from rl_reason.models import decoder, linear, parameters
from rl_reason.models.experts import AXIS

# Parameter of a layer -> module of transformers; the tensor is the weight of
# the module, or its bias for a parameter `*_bias`.
MODULES = {
    "norm_attn": "input_layernorm",
    "norm_mlp": "post_attention_layernorm",
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"self_attn.{name}" for name in ("q_norm", "k_norm")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "router": "mlp.gate",
}
EXPERTS = {x: f"mlp.experts.{{}}.{x}_proj" for x in ("gate", "up", "down")}
NO_OTHERS: Mapping[str, str] = {}
SCORE, SCORE_BIAS = "score.weight", "score.bias"
# Other parameters -> tensor. A value head is stored as the head of a token
# classifier with one label per output; transformers has no counterpart of the
# gates of a gated value head.
REST = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "value_head.value": SCORE,
    "value_head.bias": SCORE_BIAS,
    "value_head.gate": "score_gate.weight",
}


class Placement(NamedTuple):
  """The part of a parameter that is one tensor in the files.

  Attributes:
    param: index of the parameter in the flattened table.
    at: index of the layer, and of the expert, in a stacked parameter; else ().
    shape, axes: shape and logical axes of the tensor in the files.
    transposed: whether the parameter is the transpose of the tensor.
  """

  param: int
  at: tuple[int, ...]
  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  transposed: bool


def outer(name: str, modules: Mapping[str, str] = NO_OTHERS) -> str:
  """The tensor of a parameter outside of layers."""
  return f"{modules[name]}.weight" if name in modules else REST[name]


def placements(
    table: Tree, modules: Mapping[str, str] = NO_OTHERS
) -> dict[str, Placement]:
  """Maps tensor names of a network to parts of parameters, in file order.

  `modules` are of `architecture.Family`; "layers" is the prefix of a layer.
  """
  layer_of = modules.get("layers", "model.layers.{}")
  rows, _ = jax.tree_util.tree_flatten_with_path(
      table, is_leaf=parameters.is_param
  )
  first, layers, last = {}, {}, {}
  for i, (path, row) in enumerate(rows):
    name = ".".join(k.key for k in path).removeprefix("trunk.")
    stacked = name.startswith("layers.")
    stacks = stacked + (AXIS in row.axes)
    shape, axes = row.shape[stacks:], row.axes[stacks:]
    # Linear layers of PyTorch are [out, in]; embeddings have one layout.
    transposed = len(shape) == 2 and name != "embed"
    if transposed:
      shape, axes = shape[::-1], axes[::-1]
    if stacked:
      name = name.removeprefix("layers.")
      known = {**MODULES, **(EXPERTS if stacks > 1 else {}), **modules}
      module = known[name.removesuffix("_bias")]
      suffix = f"{module}.{'bias' if name.endswith('_bias') else 'weight'}"
      # Layers and experts are stacked here, and separate tensors in the files.
      for at in np.ndindex(row.shape[:stacks]):
        layer, *expert = at
        place = Placement(i, at, shape, axes, transposed)
        layers[layer, suffix.format(*expert)] = place
    else:
      part = first if name == "embed" else last
      part[outer(name, modules)] = Placement(i, (), shape, axes, transposed)
  in_order = sorted(layers, key=lambda key: key[0])
  middle = {f"{layer_of.format(i)}.{x}": layers[i, x] for i, x in in_order}
  return first | middle | last


def names(cfg: decoder.ModelConfig) -> list[str]:
  """The names of all tensors of the policy in transformers."""
  return list(placements(decoder.table(cfg)))


def named_tensors(
    params: Tree, cfg: decoder.ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields parameters of the policy with their names in transformers.

  Weights that are composed of arrays are merged.
  """
  leaves = jax.tree.leaves(linear.merged(params))
  for name, place in placements(decoder.table(cfg)).items():
    x = leaves[place.param]
    x = sharding.fetch(x[place.at])
    yield name, np.ascontiguousarray(x.T if place.transposed else x)
