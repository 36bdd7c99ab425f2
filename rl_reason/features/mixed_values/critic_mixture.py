"""Values of two critics as those of the advantage: functions of arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from rl_reason.algorithms import advantages, values
from rl_reason.base import feature
from rl_reason.base.structs import (
    Array,
    NonNegative,
    Tree,
    UnitInterval,
    call_by_name,
)


def mixture(
    pretrained_BT: Array,
    values_BT: Array,
    progress: Array,
    explained_variance: Array,
    *,
    mix: UnitInterval = 0.5,
    decay: NonNegative = 1.0,
    reliability: NonNegative = 1.0,
) -> Array:
  """w V_pretrained + (1 - w) V, with w falling over training.

  w = mix exp(-decay progress) / (1 + reliability * explained_variance).

  pretrained_BT are the values of the critic after pretraining, values_BT those
  of the critic in training, explained_variance is that of the latter. Keywords:
  mix is w at the start, decay its rate of decay over training, reliability how
  much it decreases with the explained variance.
  """
  share = mix * jnp.exp(-decay * progress)
  # Clipped: a negative explained variance would raise w, or flip its sign.
  share = share / (1 + reliability * jnp.clip(explained_variance, 0, 1))
  return share * pretrained_BT + (1 - share) * values_BT


def advantage_of(
    rows: Mapping[str, Any],
    *,
    advantage: Callable[..., Any],
    mix: Callable[..., Array],
    gamma: float,
) -> Any:
  """An advantage, computed from mixed values.

  The critic's targets, which `credit.assign` computes before, are of its own
  values.

  Args:
    rows: the arrays that `credit.assign` gives to an advantage, and
      pretrained_BT, the values of the pretrained critic.
    advantage: a function of `advantages`, keywords bound.
    mix: such as `mixture`, keywords bound.
    gamma: discount of the returns whose variance the critic explains.
  """
  values_BT, mask_BT = rows["values_BT"], rows["mask_BT"]
  actual_BT = advantages.returns_to_go(rows["rewards_BT"], mask_BT, gamma=gamma)
  explained = values.explained_variance(values_BT, actual_BT, mask_BT)
  inputs = dict(rows, explained_variance=explained)
  mixed = dict(rows, values_BT=call_by_name(mix, inputs))
  return call_by_name(advantage, mixed | dict(rows=mixed))


class Pretrained(feature.Part):
  """Supplies the values of the pretrained critic.

  Args:
    values: plan -> its values, [B, T].
  """

  def __init__(self, values: Callable[[Any], Array]):
    self._values = values

  def inputs(self, params: Tree, plan: Any) -> dict[str, Array]:
    """The values of the tokens of a step."""
    return dict(pretrained_BT=self._values(plan))
