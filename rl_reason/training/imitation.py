"""The gradient of the cross-entropy of rows to imitate."""

from collections.abc import Callable

import jax.numpy as jnp

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder, experts
from rl_reason.training import learned_parameters
from rl_reason.training.step import accumulate


def gradient(
    params: Tree,
    packed: Packed,
    mask_BT: Array,
    frozen: Tree | None = None,
    *,
    cfg: decoder.ModelConfig,
    coef: float = 1.0,
    read: Callable[[Tree, Tree | None], Tree] = learned_parameters.ALL.read,
) -> tuple[Tree, dict[str, Array]]:
  """The gradient of coef times the mean NLL of the response tokens.

  Args:
    params: that are learned.
    packed: the rows.
    mask_BT: [B, T], response tokens; their number is the denominator.
    frozen: as of `step.rl_update`.
    cfg: static.
    coef: static.
    read: static, as of `step.rl_update`.

  Returns:
    gradients, and metrics: loss, the mean NLL, and those of `experts.loss`.
  """
  weights_BT = mask_BT / jnp.maximum(mask_BT.sum(dtype=jnp.float32), 1)

  def loss_fn(params, packed, weights_BT):
    whole = read(params, frozen)
    logps_BT, _, routing = decoder.packed_logps(whole, cfg, packed)
    loss = -jnp.sum(weights_BT * logps_BT)
    total = loss if coef == 1 else coef * loss
    aux, metrics = experts.loss(cfg, routing, packed, weights_BT)
    return total + aux, dict(loss=loss) | metrics

  return accumulate(loss_fn, params, packed, weights_BT)
