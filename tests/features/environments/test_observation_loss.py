"""The loss that predicts what environments answer, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.base.structs import Batch
from rl_reason.features.environments import observation_loss

close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def test_observations_are_predicted():
  """The mean of -log p over the three tokens between turns of the policy.

  Log-probs of padding may be anything; the other terms keep their numbers.
  """
  mask = np.array([[1, 0, 0, 1, 0], [1, 1, 0, 1, 0], [1, 1, 1, 0, 0]], bool)
  seen = np.array([[0, 1, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
  wide, narrow = jnp.zeros(mask.shape), jnp.zeros(3)
  b = Batch(
      groups_B=narrow,
      mask_BT=jnp.array(mask),
      advantages_BT=wide,
      old_logps_BT=wide,
      ref_logps_BT=wide,
      correct_B=narrow,
      staleness_B=narrow,
      values_BT=wide,
      returns_BT=wide,
  )
  probs = np.random.default_rng(0).uniform(0.1, 1, mask.shape)
  logps = np.where(mask | (seen > 0), np.log(probs), np.nan)

  def of(*terms):
    o = objective.Objective(surrogates.reinforce, reductions.token_mean, terms)
    w = objective.token_weights(o, b)

    def fn(logps_BT):
      return objective.loss(o, logps_BT, wide, b, w, {})

    return jax.value_and_grad(fn, has_aux=True)(jnp.array(logps))

  (loss, metrics), grad = of(observation_loss.term(0.1))
  nll = -np.sum(np.log(probs) * seen) / 3
  close(metrics["observation_loss"], nll)
  close(grad, -0.1 * seen / 3)
  (plain, others), _ = of()
  close(loss, plain + 0.1 * nll)
  assert others.keys() == metrics.keys() - {"observation_loss"}


def test_the_term_by_hand():
  """A hole of one token: its weight is 1, its value -log p, and 0 elsewhere."""
  term = observation_loss.term(0.1)
  mask_BT = np.array([[1, 0, 1]], np.float32)
  close(term.weights(mask_BT, np.arange(1)), [[0, 1, 0]])
  logps_BT = np.array([[-1.0, -2, -3]])
  close(term.value(logps_BT, mask_BT > 0), [[0, 2, 0]])
  assert term.coef == 0.1


def test_observed_by_hand():
  """Holes before the last token of the policy; padding is none."""
  mask_BT = [[1, 0, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]]
  seen_BT = observation_loss.observed(np.array(mask_BT, bool))
  wanted = [[0, 1, 1, 0, 0], [0] * 5, [0] * 5, [0, 1, 0, 0, 0]]
  np.testing.assert_array_equal(seen_BT, np.array(wanted, bool))
