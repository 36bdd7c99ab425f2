"""The critic: a decoder of its own with a value head, V of every prefix.

Heads: one number; several, mixed by learned gates; or a categorical
distribution over a fixed support, whose mean is the value.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason import model
from rl_reason.structs import Array, Tree
from rl_reason.values import support


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Static shape of a critic; hashable.

  Attributes:
    trunk: of the decoder.
    head: 'scalar', 'gated' or 'categorical'.
    heads: of a gated head.
    bins, low, high: support of a categorical head.
  """

  trunk: model.ModelConfig
  head: str = "scalar"
  heads: int = 4
  bins: int = 41
  low: float = -2.0
  high: float = 2.0


def table(cfg: CriticConfig) -> dict[str, Any]:
  """Every parameter of the critic: a pytree of `model.Param`."""
  trunk = model.table(cfg.trunk)
  trunk.pop("head", None)  # nothing predicts tokens here
  width = cfg.trunk.width

  def matrix(count, init="normal"):
    return model.Param((width, count), ("embed", None), init, width)

  def bias(count):
    return model.Param((count,), (None,), "zeros")

  if cfg.head == "scalar":
    head = dict(value=matrix(1), bias=bias(1))
  elif cfg.head == "gated":
    head = dict(
        value=matrix(cfg.heads), bias=bias(cfg.heads), gate=matrix(cfg.heads)
    )
  elif cfg.head == "categorical":
    head = dict(value=matrix(cfg.bins), bias=bias(cfg.bins))
  else:
    raise ValueError(f"critic.head = {cfg.head!r}: scalar, gated, categorical")
  return dict(trunk=trunk, value_head=head)


def init(cfg: CriticConfig, key: Array, policy_params: Tree | None) -> Tree:
  """fp32 parameters: the trunk of a policy, or a random one; a random head."""
  params = model.init_table(table(cfg), key)
  if policy_params is not None:
    params["trunk"] = {name: policy_params[name] for name in params["trunk"]}
  return params


def values(
    params: Tree,
    cfg: CriticConfig,
    tokens_BL: Array,
    start_B: Array,
    length: int,
) -> tuple[Array, Array | None]:
  """V of the prefix BEFORE each of the last `length` tokens.

  Args:
    params: as `init` makes them.
    cfg: static.
    tokens_BL: prompt and response.
    start_B: first slot that is not padding.
    length: T.

  Returns:
    [B, T] float32, and for a categorical head its logits [B, T, bins].
  """
  hidden_BLD, _ = model.forward(params["trunk"], cfg.trunk, tokens_BL, start_B)
  hidden_BTD = hidden_BLD[:, -length - 1 : -1].astype(jnp.float32)
  head = params["value_head"]
  out_BTN = hidden_BTD @ head["value"] + head["bias"]
  if cfg.head == "gated":
    gate_BTN = jax.nn.softmax(hidden_BTD @ head["gate"], -1)
    return jnp.sum(gate_BTN * out_BTN, -1), None
  if cfg.head == "categorical":
    points_N = support(cfg.bins, cfg.low, cfg.high)
    return jax.nn.softmax(out_BTN, -1) @ points_N, out_BTN
  return out_BTN[..., 0], None
