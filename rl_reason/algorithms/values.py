"""Losses of the critic and its quality: functions of values and returns."""

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.reductions import masked_mean, varies
from rl_reason.base.structs import Array


def value_loss(
    values_BT: Array,
    old_values_BT: Array,
    returns_BT: Array,
    *,
    clip: float = 0.5,
) -> Array:
  """max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2, per token: [B, T].

  PPO's value clipping, as in the reference implementations. Neither the values
  before the update, V_old, nor the targets R have a gradient; a clip of 0 turns
  the clip off.
  """
  chex.assert_equal_shape([values_BT, old_values_BT, returns_BT])
  loss_BT = (values_BT - returns_BT) ** 2
  if clip:
    near_BT = jnp.clip(values_BT, old_values_BT - clip, old_values_BT + clip)
    loss_BT = jnp.maximum(loss_BT, (near_BT - returns_BT) ** 2)
  return loss_BT / 2


def support(bins: int, low: float, high: float) -> Array:
  """The support of a categorical critic: [bins] equally spaced values."""
  return jnp.linspace(low, high, bins)


def two_hot(returns: Array, bins: int, low: float, high: float) -> Array:
  """Probabilities of the two nearest bins, whose mean is the return.

  Returns [...] are clipped to the support, at least 2 bins from low to high.
  The probabilities [..., bins] sum to 1 (arXiv:2403.03950, sec 3.1).
  """
  place = (jnp.clip(returns, low, high) - low) / (high - low) * (bins - 1)
  # The highest point itself is the right neighbour of the last pair.
  left = jnp.clip(jnp.floor(place), 0, bins - 2)
  right_mass = (place - left)[..., None]
  at = jnp.arange(bins)
  left = left[..., None]
  return (at == left) * (1 - right_mass) + (at == left + 1) * right_mass


def categorical_loss(
    logits_BTJ: Array, returns_BT: Array, low: float, high: float
) -> Array:
  """Cross entropy of logits [B, T, bins] to the two-hot return: [B, T].

  arXiv:2403.03950. low and high are the ends of the support.
  """
  target_BTJ = two_hot(returns_BT, logits_BTJ.shape[-1], low, high)
  return -jnp.sum(target_BTJ * jax.nn.log_softmax(logits_BTJ, -1), -1)


def explained_variance(
    values_BT: Array, returns_BT: Array, mask_BT: Array
) -> Array:
  """1 - Var(R - V) / Var(R) over the tokens of the mask: scalar.

  1 is perfect, 0 no better than a constant, below 0 worse than a constant; 0 if
  all returns are equal.
  """

  def variance(x_BT):
    return masked_mean((x_BT - masked_mean(x_BT, mask_BT)) ** 2, mask_BT)

  # Of equal returns the variance is 0, or a rounding residue above it.
  varied = varies(returns_BT, mask_BT)
  total = jnp.where(varied, variance(returns_BT), 1)
  rest = variance(returns_BT - values_BT)
  return jnp.where(varied, 1 - rest / total, 0)
