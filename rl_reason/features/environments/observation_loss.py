"""The term of the loss that predicts what environments answer."""

import jax
import jax.numpy as jnp

from rl_reason.algorithms.objective import Term
from rl_reason.algorithms.reductions import token_mean
from rl_reason.base.structs import Array


def observed(mask_BT: Array) -> Array:
  """The tokens of observations: those between tokens of the policy, [B, T].

  A response begins and ends with tokens that the policy chose. Tokens in
  between that it did not choose are what an environment answered, with the
  markup of the chat template around the answers.
  """
  goes_on_BT = jax.lax.cummax(mask_BT.astype(jnp.int32), 1, reverse=True) > 0
  return goes_on_BT & ~mask_BT


def term(coef: float) -> Term:
  """The mean NLL of all tokens of observations."""
  return Term("observation_loss", _nll, coef, _of_observed)


def _nll(all_logps_BT: Array, mask_BT: Array) -> Array:
  # Log-probs of padding may be anything.
  return jnp.where(observed(mask_BT), -all_logps_BT, 0)


def _of_observed(mask_BT: Array, groups_B: Array) -> Array:
  seen_BT = observed(mask_BT > 0) * jnp.ones_like(mask_BT)
  return token_mean(seen_BT, groups_B)
