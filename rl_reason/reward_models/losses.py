"""The loss of a reward model: arrays in, arrays out."""

import chex
import jax

from rl_reason.structs import Array


def bradley_terry(chosen_B: Array, rejected_B: Array) -> Array:
  """-log P(chosen is preferred) = -log sigmoid(chosen - rejected).

  Bradley and Terry (1952), as a loss of reward models: arXiv:2203.02155, eq 1.

  Args:
    chosen_B: [B] scores of the preferred responses.
    rejected_B: [B] scores of the rejected responses.

  Returns:
    [B], at least 0.
  """
  chex.assert_equal_shape([chosen_B, rejected_B])
  return -jax.nn.log_sigmoid(chosen_B - rejected_B)
