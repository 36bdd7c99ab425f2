"""Advantages: rewards and group ids in, one number per response out.

Every function takes `rewards_B` and `groups_B`. A group is an id: unequal
groups or groups by problem type are the same code with other ids. Ids may be
any integers; rows of a group need not be adjacent.
"""

import chex
import jax.numpy as jnp

from rl_reason.groups import group_max, group_min, group_sum
from rl_reason.structs import Array


def _group_stats(rewards_B, groups_B):
  """Mean, size and 'all rewards are equal' of each row's group."""
  chex.assert_rank([rewards_B, groups_B], 1)
  chex.assert_equal_shape([rewards_B, groups_B])
  size_B = group_sum(jnp.ones_like(rewards_B), groups_B)
  mean_B = group_sum(rewards_B, groups_B) / size_B
  # Comparing rewards with each other, not with the rounded mean: sixteen
  # rewards of float32(0.7) have a mean other than 0.7 and would get signal.
  constant_B = group_max(rewards_B, groups_B) == group_min(rewards_B, groups_B)
  return mean_B, size_B, constant_B


def group_mean(rewards_B: Array, groups_B: Array) -> Array:
  """Reward less the mean of its group: Dr.GRPO (arXiv:2503.20783, eq 3).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.

  Returns:
    [B] float, exactly 0 in groups whose rewards are all equal.
  """
  mean_B, _, constant_B = _group_stats(rewards_B, groups_B)
  return jnp.where(constant_B, 0, rewards_B - mean_B)


def group_norm(
    rewards_B: Array, groups_B: Array, *, eps: float = 1e-6, ddof: int = 1
) -> Array:
  """(R - mean) / (std + eps) in the group: GRPO (arXiv:2402.03300, sec 4.1.2).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.
    eps: added to the standard deviation (1e-6 in verl, 1e-4 in TRL).
    ddof: 1 divides the squared deviations by G - 1, as both peers do.

  Returns:
    [B] float, exactly 0 in groups whose rewards are all equal.
  """
  mean_B, size_B, constant_B = _group_stats(rewards_B, groups_B)
  centred_B = rewards_B - mean_B
  squares_B = group_sum(centred_B**2, groups_B)
  std_B = jnp.sqrt(squares_B / jnp.maximum(size_B - ddof, 1))
  return jnp.where(constant_B, 0, centred_B / (std_B + eps))


def leave_one_out(rewards_B: Array, groups_B: Array) -> Array:
  """Reward less the mean of the group's OTHERS: RLOO (arXiv:2402.14740, eq 8).

  Args:
    rewards_B: [B] float.
    groups_B: [B] int, rows of one prompt share an id.

  Returns:
    [B] float, G / (G - 1) * (R - mean); 0 for a group of one.
  """
  mean_B, size_B, constant_B = _group_stats(rewards_B, groups_B)
  scale_B = size_B / jnp.maximum(size_B - 1, 1)
  return jnp.where(constant_B, 0, scale_B * (rewards_B - mean_B))
