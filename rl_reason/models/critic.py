"""The critic: a decoder with a value head, which predicts V of every prefix.

Heads: a scalar; several scalars mixed by learned gates; or a categorical
distribution over a fixed support, whose mean is the value.
"""

import dataclasses
import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rl_reason.algorithms.values import support
from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder, parameters, sequence


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Static shape of a critic; hashable, hence a static argument of jit.

  Attributes:
    trunk: of the decoder.
    head: 'scalar', 'gated' or 'categorical'.
    heads: of a gated head.
    bins, low, high: support of a categorical head.
  """

  trunk: decoder.ModelConfig
  head: str = "scalar"
  heads: int = 4
  bins: int = 41
  low: float = -2.0
  high: float = 2.0


def table(cfg: CriticConfig) -> dict[str, Any]:
  """Every parameter of the critic: a pytree of `parameters.Param`."""
  trunk = decoder.table(cfg.trunk)
  trunk.pop("head", None)  # a critic predicts no tokens
  width = cfg.trunk.width

  def matrix(count):
    return parameters.Param((width, count), ("embed", None), "normal", width)

  outputs = dict(scalar=1, gated=cfg.heads, categorical=cfg.bins)[cfg.head]
  head = dict(value=matrix(outputs))
  head["bias"] = parameters.Param((outputs,), (None,), "zeros")
  if cfg.head == "gated":
    head["gate"] = matrix(outputs)
  return dict(trunk=trunk, value_head=head)


def init(cfg: CriticConfig, key: Array, policy_params: Tree | None) -> Tree:
  """fp32 parameters: the trunk of a policy or a random one; a random head."""
  params = parameters.init_table(table(cfg), key)
  if policy_params is not None:
    params["trunk"] = {name: policy_params[name] for name in params["trunk"]}
  return params


def values(
    params: Tree, cfg: CriticConfig, packed: Packed
) -> tuple[Array, Array | None]:
  """V of the prefix BEFORE each response token.

  Returns:
    [B, T] float32, and logits [B, T, bins] of a categorical head (else None).
    Past the end of a response, they repeat the values of its first token.
  """
  values_RL, logits_RLJ = _values(params, cfg, packed)
  values_RL, source_BT = sequence.join(values_RL), packed.source_BT
  if logits_RLJ is None:
    return values_RL.reshape(-1)[source_BT], None
  flat_XJ = sequence.join(logits_RLJ).reshape(-1, logits_RLJ.shape[-1])
  return values_RL.reshape(-1)[source_BT], flat_XJ[source_BT]


def scores(params: Tree, cfg: CriticConfig, packed: Packed) -> Array:
  """V after the last token of each response: the score of a reward model.

  Returns [B] float32; arbitrary for a row without a response.
  """
  values_RL, _ = _values(params, cfg, packed)
  # `source_BT` is the place before each token; the last token is the next one.
  return sequence.join(values_RL).reshape(-1)[packed.source_BT.max(1) + 1]


def _values(params: Tree, cfg: CriticConfig, packed: Packed):
  """Values [R, L] of packed rows, and the logits of a categorical head."""
  # The record has choices of the policy; a critic makes its own.
  packed = packed.replace(record=None)
  hidden_RLD, _ = decoder.hidden(params["trunk"], cfg.trunk, packed)
  return _head(params["value_head"], cfg, hidden_RLD)


def _head(head: Tree, cfg: CriticConfig, hidden: Array):
  """Values of hidden states [..., D], and the logits of a categorical head."""
  # In fp32: by default a TPU would round both factors to bfloat16.
  product = functools.partial(
      jnp.matmul, hidden.astype(jnp.float32), precision="highest"
  )
  out_J = product(head["value"]) + head["bias"]
  if cfg.head == "gated":
    gate_J = jax.nn.softmax(product(head["gate"]), -1)
    return jnp.sum(gate_J * out_J, -1), None
  if cfg.head == "categorical":
    points_J = support(cfg.bins, cfg.low, cfg.high)
    return jax.nn.softmax(out_J, -1) @ points_J, out_J
  return out_J[..., 0], None


# --- heads that a config names -----------------------------------------------


def scalar(trunk: decoder.ModelConfig) -> CriticConfig:
  """One linear output."""
  return CriticConfig(trunk)


def gated(
    trunk: decoder.ModelConfig, *, heads: Annotated[int, (1, None)] = 4
) -> CriticConfig:
  """Several linear outputs, mixed by learned softmax gates."""
  return CriticConfig(trunk, "gated", heads=heads)


def categorical(
    trunk: decoder.ModelConfig,
    *,
    bins: Annotated[int, (2, None)] = 41,
    low: float = -2.0,
    high: float = 2.0,
) -> CriticConfig:
  """Probabilities of `bins` values from low to high; V is their mean."""
  return CriticConfig(trunk, "categorical", bins=bins, low=low, high=high)
