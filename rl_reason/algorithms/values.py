"""What a critic learns and how well: pure functions of values and returns."""

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.groups import token_mean, varies
from rl_reason.structs import Array


def value_loss(
    values_BT: Array,
    old_values_BT: Array,
    returns_BT: Array,
    *,
    clip: float = 0.5,
) -> Array:
  """max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2, per token.

  PPO's value clipping, as in the reference implementations.

  Args:
    values_BT: [B, T] of the critic that learns.
    old_values_BT: [B, T] before the update; no gradient.
    returns_BT: [B, T] targets; no gradient.
    clip: how far V may move from V_old; 0 switches it off.

  Returns:
    [B, T].
  """
  chex.assert_equal_shape([values_BT, old_values_BT, returns_BT])
  loss_BT = (values_BT - returns_BT) ** 2
  if clip:
    near_BT = jnp.clip(values_BT, old_values_BT - clip, old_values_BT + clip)
    loss_BT = jnp.maximum(loss_BT, (near_BT - returns_BT) ** 2)
  return loss_BT / 2


def support(bins: int, low: float, high: float) -> Array:
  """The values that a categorical critic spreads its mass over: [bins]."""
  return jnp.linspace(low, high, bins)


def two_hot(returns: Array, bins: int, low: float, high: float) -> Array:
  """Mass on the two neighbours of a return, whose mean is the return.

  Args:
    returns: [...] float; clipped to [low, high].
    bins: points of the support, at least 2.
    low: least point.
    high: greatest point.

  Returns:
    [..., bins], sums to 1 (arXiv:2403.03950, sec 3.1).
  """
  place = (jnp.clip(returns, low, high) - low) / (high - low) * (bins - 1)
  left = jnp.clip(jnp.floor(place), 0, bins - 2)
  right_mass = (place - left)[..., None]
  at = jnp.arange(bins)
  left = left[..., None]
  return (at == left) * (1 - right_mass) + (at == left + 1) * right_mass


def categorical_loss(
    logits_BTN: Array, returns_BT: Array, low: float, high: float
) -> Array:
  """Cross entropy to the two-hot return: [B, T].

  Args:
    logits_BTN: [B, T, bins].
    returns_BT: [B, T] targets; no gradient.
    low: least point of the support.
    high: greatest point.
  """
  target_BTN = two_hot(returns_BT, logits_BTN.shape[-1], low, high)
  return -jnp.sum(target_BTN * jax.nn.log_softmax(logits_BTN, -1), -1)


def explained_variance(
    values_BT: Array, returns_BT: Array, mask_BT: Array
) -> Array:
  """1 - Var(R - V) / Var(R) over the tokens of the mask: scalar.

  1 is perfect, 0 no better than a constant, less than 0 harmful. 0 if the
  returns do not vary.

  Args:
    values_BT: [B, T].
    returns_BT: [B, T].
    mask_BT: [B, T].
  """

  def variance(x_BT):
    return token_mean((x_BT - token_mean(x_BT, mask_BT)) ** 2, mask_BT)

  varied = varies(returns_BT, mask_BT)
  total = jnp.where(varied, variance(returns_BT), 1)
  rest = variance(returns_BT - values_BT)
  return jnp.where(varied, 1 - rest / total, 0)


def mixture(
    pretrained_BT: Array,
    values_BT: Array,
    progress: Array,
    reliability: Array,
    *,
    mix: float,
    mix_decay: float = 1.0,
    mix_reliability: float = 1.0,
) -> Array:
  """V_aug = w V_pretrained + (1 - w) V.

  w = mix exp(-mix_decay progress) / (1 + mix_reliability * reliability).

  Args:
    pretrained_BT: [B, T] of the critic as pretraining left it.
    values_BT: [B, T] of the critic that goes on learning.
    progress: scalar in [0, 1], the share of the training that is done.
    reliability: explained variance of the latter; clipped to [0, 1].
    mix: w0 in [0, 1].
    mix_decay: k.
    mix_reliability: eta.

  Returns:
    [B, T].
  """
  share = mix * jnp.exp(-mix_decay * progress)
  share = share / (1 + mix_reliability * jnp.clip(reliability, 0, 1))
  return share * pretrained_BT + (1 - share) * values_BT
