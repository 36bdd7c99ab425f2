"""Advantages: rewards in, one number per response or per token out.

A function is called with the arrays that its positional parameters name
(`credit.py` lists all of them); its keyword-only parameters are
`config.advantage.args`. A group is an id: `groups_B` numbers prompts, problem
types, or is one id for the whole batch (`config.advantage.groups`). Groups may
be of unequal sizes, ids may be any integers, and the rows of a group need not
be adjacent. `advantage_variants.py` holds further ones.

An advantage per response takes rewards_B [B] float and groups_B [B] int, and
returns [B] float, exactly 0 in groups whose rewards are all equal. One per
token takes rewards_BT and values_BT [B, T] float and mask_BT [B, T], and
returns [B, T] float, 0 outside the mask.
"""

from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms.reductions import group_constant, group_sum
from rl_reason.base.structs import Array, NonNegative, Positive, UnitInterval


def _group_mean(rewards_B, groups_B):
  """Mean and size of each row's group."""
  chex.assert_rank([rewards_B, groups_B], 1)
  chex.assert_equal_shape([rewards_B, groups_B])
  size_B = group_sum(jnp.ones_like(rewards_B), groups_B)
  return group_sum(rewards_B, groups_B) / size_B, size_B


def _group_std(rewards_B, groups_B, ddof):
  """Standard deviation of each row's group; 1 where all rewards are equal."""
  mean_B, size_B = _group_mean(rewards_B, groups_B)
  squares_B = group_sum((rewards_B - mean_B) ** 2, groups_B)
  std_B = jnp.sqrt(squares_B / jnp.maximum(size_B - ddof, 1))
  # Their advantage is 0; a divisor of 0 would make it NaN where eps is 0.
  return jnp.where(group_constant(rewards_B, groups_B), 1, std_B)


# --- one advantage per response ----------------------------------------------


def group_mean(rewards_B: Array, groups_B: Array) -> Array:
  """R - mean of the group: Dr.GRPO (arXiv:2503.20783, eq 3)."""
  mean_B, _ = _group_mean(rewards_B, groups_B)
  # Exactly 0: the rounded mean of equal rewards differs from the reward, and
  # dividing by a tiny standard deviation would turn that into a signal.
  constant_B = group_constant(rewards_B, groups_B)
  return jnp.where(constant_B, 0, rewards_B - mean_B)


def group_norm(
    rewards_B: Array,
    groups_B: Array,
    *,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """(R - mean) / (std + eps) in the group: GRPO (arXiv:2402.03300, sec 4.1.2).

  With one group for the whole batch this is batch whitening of the rewards.

  Keywords: eps is added to the standard deviation (1e-6 in verl, 1e-4 in TRL);
  ddof 1 divides the squared deviations by G - 1 (as verl and TRL do), 0 by G.
  """
  std_B = _group_std(rewards_B, groups_B, ddof)
  return group_mean(rewards_B, groups_B) / (std_B + eps)


def group_mean_batch_std(
    rewards_B: Array,
    groups_B: Array,
    valid_B: Array,
    *,
    eps: NonNegative = 1e-6,
    ddof: Annotated[int, (0, 1)] = 1,
) -> Array:
  """(R - mean of the group) / (std of the batch + eps): LitePPO (2508.08221).

  valid_B is [B] bool, False for padding rows, which are not in the batch's std.
  Keywords as in `group_norm`.
  """
  # Two groups, valid rows and padding: each valid row gets the batch's std.
  std_B = _group_std(rewards_B, valid_B.astype(jnp.int32), ddof)
  return group_mean(rewards_B, groups_B) / (std_B + eps)


def leave_one_out(rewards_B: Array, groups_B: Array) -> Array:
  """R - mean of the other rewards of the group: RLOO (arXiv:2402.14740, eq 8).

  Equal to G / (G - 1) * (R - mean); 0 for a group of one.
  """
  _, size_B = _group_mean(rewards_B, groups_B)
  scale_B = size_B / jnp.maximum(size_B - 1, 1)
  return scale_B * group_mean(rewards_B, groups_B)


def max_rl(rewards_B: Array, groups_B: Array) -> Array:
  """(R - mean) / mean for rewards in {0, 1}: MaxRL (arXiv:2602.02710).

  With rewards of -1 the mean may be 0 or negative.
  """
  mean_B, _ = _group_mean(rewards_B, groups_B)
  # No 0 / 0 in groups without a correct response.
  constant_B = group_constant(rewards_B, groups_B)
  return group_mean(rewards_B, groups_B) / jnp.where(constant_B, 1, mean_B)


# --- one advantage per token -------------------------------------------------


def returns_to_go(
    rewards_BT: Array, mask_BT: Array, *, gamma: UnitInterval = 1.0
) -> Array:
  """Discounted sum of the rewards from each token on: REINFORCE++ (2501.03262).

  Arguments as in `gae`; the rewards are per-token penalties, and the outcome on
  the last token.
  """
  # GAE with V = 0 and lambda 1 is the return.
  zeros_BT = jnp.zeros_like(rewards_BT)
  return gae(rewards_BT, zeros_BT, mask_BT, gamma=gamma, lam=1.0)


def gae(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    *,
    gamma: UnitInterval = 1.0,
    lam: UnitInterval | Array = 0.95,
) -> Array:
  """Generalised advantage estimation (arXiv:1506.02438, eq 16).

  A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, and
  V = A = 0 after the last token. lam = 1 gives the return minus V_t, lam = 0
  the TD error.

  Args:
    rewards_BT: reward of each token.
    values_BT: V of the prefix BEFORE token t.
    mask_BT: response tokens; masked positions are skipped: t + 1 is the next
      token of the mask, without a discount in between.
    gamma: discount per token.
    lam: lambda; a scalar, or any array that broadcasts to [B, T].
  """
  chex.assert_rank([rewards_BT, values_BT, mask_BT], 2)
  chex.assert_equal_shape([rewards_BT, values_BT, mask_BT])
  # A scan needs one dtype for its carry; 1.0 makes integer rewards float.
  dtype = jnp.result_type(rewards_BT, values_BT, 1.0)
  rewards_BT, values_BT = rewards_BT.astype(dtype), values_BT.astype(dtype)
  discount = jnp.asarray(gamma, dtype)
  lam_BT = jnp.broadcast_to(jnp.asarray(lam, dtype), values_BT.shape)

  def step_back(carry, at_t):
    next_value_B, next_advantage_B = carry
    reward_B, value_B, mask_B, lam_B = at_t
    delta_B = reward_B + discount * next_value_B - value_B
    advantage_B = delta_B + discount * lam_B * next_advantage_B
    # A masked position passes the carry on unchanged.
    carry = (
        jnp.where(mask_B, value_B, next_value_B),
        jnp.where(mask_B, advantage_B, next_advantage_B),
    )
    return carry, jnp.where(mask_B, advantage_B, 0)

  # Scan over time, from the last token to the first.
  by_time = jax.tree.map(
      lambda x: x.T, (rewards_BT, values_BT, mask_BT > 0, lam_BT)
  )
  zeros_B = jnp.zeros_like(values_BT[:, 0])
  _, out_TB = jax.lax.scan(step_back, (zeros_B, zeros_B), by_time, reverse=True)
  return out_TB.T


def gae_length_adaptive(
    rewards_BT: Array,
    values_BT: Array,
    mask_BT: Array,
    *,
    gamma: UnitInterval = 1.0,
    alpha: Positive = 0.05,
) -> Array:
  """GAE with lam = 1 - 1 / (alpha l), l tokens: VAPO (2504.05118, sec 4.2).

  Arguments as in `gae`; a larger alpha gives a larger lambda.
  """
  length_B1 = mask_BT.sum(1, keepdims=True).astype(values_BT.dtype)
  # Clipped at 0: the formula is negative for l < 1 / alpha.
  lam_B1 = jnp.clip(1 - 1 / (alpha * jnp.maximum(length_B1, 1)), 0, 1)
  return gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam_B1)
