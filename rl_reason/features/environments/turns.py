"""Turns of trajectories in environments, and credit by turn.

A trajectory in an environment has several turns of the policy, each with a
reward at its last token. Whole trajectories are compared by the advantages of
`advantages.py` (rewards_B is the sum of the rewards), tokens by `gae`, which
skips observations. The functions here give all tokens of a turn one number.

Arrays: rewards_BT and values_BT [B, T] float; turns_BT [B, T] int, the number
of the turn of each token, from 1 on, and 0 for tokens that are not the
policy's. Advantages are 0 there.

Shapes here: Y turns of a trajectory.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from rl_reason.algorithms import advantages
from rl_reason.base.structs import Array, Positive, UnitInterval


@struct.dataclass
class Turns:
  """The turns of trajectories: `Experience.turns`.

  Attributes:
    rewards_BT: float32, the reward of each turn at its last token, else 0.
    numbers_BT: int32, the turn of each token that the policy chose, from 1 on;
      0 elsewhere.
  """

  rewards_BT: Array
  numbers_BT: Array

  def inputs(self) -> dict[str, Array]:
    """The arrays that credit reads, by their names there."""
    return dict(turn_rewards_BT=self.rewards_BT, turns_BT=self.numbers_BT)

  def shown(self) -> dict[str, Array]:
    """Numbers of each token, by their names in samples.jsonl."""
    return dict(turn=self.numbers_BT, turn_reward=self.rewards_BT)


def total(turn_rewards_BT: Array) -> Array:
  """The reward of a trajectory: the sum of the rewards of its turns, [B]."""
  return turn_rewards_BT.sum(1)


def _of_turn(x_BT: Array, turns_BT: Array) -> Array:
  """The sum over all tokens of each token's turn; 0 outside of turns."""
  count = x_BT.shape[1] + 1
  sums_BY = jax.vmap(
      lambda x_T, turns_T: jax.ops.segment_sum(x_T, turns_T, count)
  )(x_BT, turns_BT)
  found_BT = jnp.take_along_axis(sums_BY, turns_BT, 1)
  return jnp.where(turns_BT > 0, found_BT, 0)


def _firsts(turns_BT: Array) -> Array:
  """Whether a token is the first one of its turn."""
  # Numbers only grow within a row: so does their maximum up to a token.
  before_BT = jax.lax.cummax(turns_BT, 1)
  before_BT = jnp.pad(before_BT[:, :-1], ((0, 0), (1, 0)))
  return turns_BT > before_BT


def _by_turn(
    estimate: Callable[[Array, Array, Array], Array],
    rewards_BT: Array,
    values_BT: Array,
    turns_BT: Array,
) -> Array:
  """Applies an estimator of tokens, (rewards, values, mask), to whole turns."""
  # Estimators skip masked positions: only the first token of a turn is left.
  first_BT = _firsts(turns_BT)
  rewards_BT = _of_turn(rewards_BT, turns_BT) * first_BT
  return _of_turn(estimate(rewards_BT, values_BT, first_BT), turns_BT)


def gae_by_turn(
    rewards_BT: Array,
    values_BT: Array,
    turns_BT: Array,
    *,
    gamma: UnitInterval = 1.0,
    lam: UnitInterval | Array = 0.95,
) -> Array:
  """GAE whose steps are turns: an action is a turn, a state what is before it.

  delta_k = r_k + gamma V_{k+1} - V_k with r_k the rewards of turn k and V_k the
  value before its first token; A_k = delta_k + gamma lam A_{k+1}, for all of
  its tokens.

  Keywords: gamma is the discount per turn, lam lambda per turn.
  """
  return _by_turn(
      functools.partial(advantages.gae, gamma=gamma, lam=lam),
      rewards_BT,
      values_BT,
      turns_BT,
  )


def gae_by_turn_length_adaptive(
    rewards_BT: Array,
    values_BT: Array,
    turns_BT: Array,
    *,
    gamma: UnitInterval = 1.0,
    alpha: Positive = 1.0,
) -> Array:
  """`gae_by_turn` with lam = 1 - 1 / (alpha k), k turns: VAPO's, by turns.

  In VAPO (2504.05118, sec 4.2) the length is in tokens.
  """
  # The mask that `_by_turn` passes has one token for each turn.
  return _by_turn(
      functools.partial(
          advantages.gae_length_adaptive, gamma=gamma, alpha=alpha
      ),
      rewards_BT,
      values_BT,
      turns_BT,
  )


def returns_by_turn(
    rewards_BT: Array,
    turns_BT: Array,
    groups_B: Array,
    *,
    gamma: UnitInterval = 1.0,
) -> Array:
  """Returns-to-go of each turn, minus their mean over the group.

  The baseline of turn k is the mean over those rows of the group that have a
  turn k; the advantage is 0 where only one has.

  Keyword: gamma is the discount per turn.
  """
  returns_BT = gae_by_turn(
      rewards_BT, jnp.zeros_like(rewards_BT), turns_BT, gamma=gamma, lam=1.0
  )
  first_BT = _firsts(turns_BT)
  alone_B = -1 - jnp.arange(len(groups_B))  # groups of one have no advantage

  def turn(k, out_BT):
    is_first_BT = first_BT & (turns_BT == k)
    return_B = jnp.where(is_first_BT, returns_BT, 0).sum(1)
    ids_B = jnp.where(is_first_BT.any(1) & (groups_B >= 0), groups_B, alone_B)
    advantage_B = advantages.group_mean(return_B, ids_B)
    return jnp.where(turns_BT == k, advantage_B[:, None], out_BT)

  zeros_BT = jnp.zeros_like(returns_BT)
  return jax.lax.fori_loop(1, turns_BT.max() + 1, turn, zeros_BT)
