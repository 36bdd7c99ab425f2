"""The gradient of the cross-entropy of rows to imitate."""

import jax.numpy as jnp

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder, experts, lora
from rl_reason.training.step import accumulate


def gradient(
    params: Tree,
    packed: Packed,
    mask_BT: Array,
    base: Tree | None = None,
    *,
    cfg: decoder.ModelConfig,
    coef: float = 1.0,
    lora_scale: float = 1.0,
) -> tuple[Tree, dict[str, Array]]:
  """The gradient of coef times the mean NLL of the response tokens.

  Args:
    params: of the model, or LoRA factors.
    packed: the rows.
    mask_BT: [B, T], response tokens; their number is the denominator.
    base: frozen parameters of LoRA factors; None without.
    cfg: static.
    coef: static.
    lora_scale: static, alpha / rank.

  Returns:
    gradients, and metrics: loss, the mean NLL, and those of `experts.loss`.
  """
  weights_BT = mask_BT / jnp.maximum(mask_BT.sum(dtype=jnp.float32), 1)

  def loss_fn(params, packed, weights_BT):
    joined = lora.join(base, params, lora_scale)
    logps_BT, _, routing = decoder.packed_logps(joined, cfg, packed)
    loss = -jnp.sum(weights_BT * logps_BT)
    total = loss if coef == 1 else coef * loss
    aux, metrics = experts.loss(cfg, routing, packed, weights_BT)
    return total + aux, dict(loss=loss) | metrics

  return accumulate(loss_fn, params, packed, weights_BT)
