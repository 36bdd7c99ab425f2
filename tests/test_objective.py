"""The loss of the policy and its terms, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import deepseek_v3_2
from rl_reason.algorithms import (
    loss_terms,
    objective,
    reductions,
    surrogates,
)
from rl_reason.base.structs import Batch
from rl_reason.checks import config_facts

close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)

# Two rows of two and one tokens. Ratios 3/2, 1/2 and 1; A is 1, 2 and -1.
MASK = np.array([[1, 1], [1, 0]], bool)
OLD = np.log([[0.4, 0.5], [0.2, 1.0]])
LOGPS = np.log([[0.6, 0.25], [0.2, 1.0]])
ADVANTAGES = np.array([[1.0, 2], [-1, 0]])
ENTROPY = np.array([[0.1, 0.3], [0.8, 0]])
REF = np.log([[0.6, 0.5], [0.1, 1.0]])
COEFS = dict(kl=jnp.float32(0.5), entropy=jnp.float32(0.25))


def batch(**changes):
  zeros = np.zeros((2, 2))
  arrays = dict(
      groups_B=np.array([3, 8]),
      mask_BT=MASK,
      advantages_BT=ADVANTAGES.astype(np.float32),
      old_logps_BT=OLD,
      ref_logps_BT=REF,
      correct_B=np.array([1.0, 0]),
      staleness_B=np.zeros(2, int),
      values_BT=zeros,
      returns_BT=zeros,
  )
  return Batch(**jax.tree.map(jnp.asarray, arrays | changes))


def total(
    b=None,
    logps=LOGPS,
    reduction=reductions.token_mean,
    surrogate=surrogates.ppo,
    **terms,
):
  """The loss, its metrics and the gradient in the log-probs."""
  b = batch() if b is None else b
  on_policy, terms = terms.get("on_policy", False), loss_terms.terms(**terms)
  o = objective.Objective(surrogate, reduction, terms, on_policy)
  w = objective.token_weights(o, b)

  def fn(logps_BT):
    return objective.loss(o, logps_BT, jnp.array(ENTROPY), b, w, COEFS)

  grad, metrics = jax.grad(fn, has_aux=True)(jnp.array(logps))
  return metrics, np.asarray(grad), w


def test_the_surrogate_and_its_metrics():
  """Losses: -min(1.5, 1.2), -min(1, 1.6), 1: -1.2, -1 and 1, each a third."""
  metrics, grad, w = total()
  close(metrics["loss"], -1.2 / 3)
  close(metrics["pg_loss"], -1.2 / 3)
  # The first token is clipped; the others have -ratio * A / 3.
  close(grad, [[0, -1 / 3], [1 / 3, 0]])
  close(metrics["pg_clipfrac"], 1 / 3)
  close(metrics["pg_clipfrac_lower"], 0)
  close(metrics["clipped_prob_max"], 0.6)
  close(metrics["entropy"], 1.2 / 3)
  close(metrics["ratio_mean"], (1.5 + 0.5 + 1) / 3)
  close(metrics["ratio_square"], (2.25 + 0.25 + 1) / 3)
  logs = np.log([1.5, 0.5, 1])
  close(metrics["ppo_kl"], -logs.mean())
  close(metrics["kl_old_new"], (1 - 1 - logs).mean())
  close(metrics["log_ratio_max"], np.log(2))
  assert {"kl_loss", "nll_loss", "rollout/logp_gap_max"}.isdisjoint(metrics)
  assert set(w) == {"all", "mean"}


@pytest.mark.parametrize("advantage", [-2, -0.5])
def test_clipped_tokens_of_negative_advantage_are_no_rare_good_ones(advantage):
  """`clipped_prob_max` looks at the upper bound; r = 1/2, A < 0 is below."""
  b = batch(advantages_BT=np.array([[0.0, advantage], [1, 0]], np.float32))
  metrics, _, _ = total(b)
  close(metrics["pg_clipfrac"], 1 / 3)
  close(metrics["clipped_prob_max"], 0)


def test_metrics_are_token_means_whatever_the_reduction():
  """Each response weighs a half: -(1.2 + 1) / 2 / 2 + 1 / 2."""
  metrics, _, _ = total(reduction=reductions.seq_mean_token_mean)
  close(metrics["loss"], -1.1 / 2 + 1 / 2)
  close(metrics["entropy"], 1.2 / 3)


def test_masked_positions_do_not_count():
  metrics, grad, _ = total(logps=np.where(MASK, LOGPS, -1e4))
  same, _, _ = total()
  for name, value in metrics.items():
    close(value, same[name], err_msg=name)
  assert grad[1, 1] == 0


def test_ratios_of_the_metrics_are_clamped():
  """log r of 25 counts as 20."""
  far = LOGPS + np.array([[25.0, 0], [0, 0]]) - np.log([[1.5, 1], [1, 1]])
  metrics, _, _ = total(logps=far)
  close(metrics["ratio_mean"], (np.exp(20) + 0.5 + 1) / 3)


@pytest.mark.parametrize("on_policy", [True, False])
def test_a_surrogate_reads_the_log_probs_of_the_sampler(on_policy):
  """Of one on-policy update, they are the old ones of the batch."""
  seen = []

  def surrogate(logps_BT, advantages_BT, sampler_logps_BT):
    seen.append(sampler_logps_BT)
    none_BT = jnp.zeros(logps_BT.shape, bool)
    aux = dict(ratio=logps_BT, clipped=none_BT, clipped_lower=none_BT)
    return -logps_BT * advantages_BT, aux

  changes = {} if on_policy else dict(sampler_logps_BT=OLD - 1)
  total(batch(**changes), surrogate=surrogate, on_policy=on_policy)
  close(seen[0], OLD if on_policy else OLD - 1)


def test_the_batch_has_what_the_surrogate_reads():
  c = deepseek_v3_2.get_config()
  assert config_facts.batch_options(c)["reads_sampler"]
  c.updates.minibatches = 1  # on-policy: the old log-probs are the sampler's
  assert not config_facts.batch_options(c)["reads_sampler"]
  c.rl.staleness = 2
  assert config_facts.batch_options(c)["reads_sampler"]
  c.surrogate.name = "ppo"
  assert not config_facts.batch_options(c)["reads_sampler"]


def test_an_unbiased_kl_in_the_loss():
  """k3 is 0, 1 - ln 2 and ln 2 - 1/2; ratios 3/2, 1/2 and 1; d 0, -ln 2, ln 2.

  The gradient by the log-prob is that of the surrogate, and coef r d / 3.
  """
  metrics, grad, _ = total(kl="k3_unbiased")
  log2 = np.log(2)
  close(metrics["kl_loss"], ((1 - log2) / 2 + log2 - 0.5) / 3)
  _, plain, _ = total()
  close(grad - plain, 0.5 / 3 * np.array([[0, -log2 / 2], [log2, 0]]))


def test_a_kl_in_the_loss():
  """d = 0, -ln 2, ln 2: k1 adds up to 0, k2 to ln(2)^2."""
  metrics, _, _ = total(kl="k2")
  close(metrics["kl_loss"], np.log(2) ** 2 / 3)
  close(metrics["loss"], -0.4 + 0.5 * np.log(2) ** 2 / 3)
  assert "kl/reference" not in metrics
  metrics, _, _ = total(kl="k1")
  close(metrics["kl_loss"], 0)


def test_an_entropy_bonus():
  metrics, _, _ = total(entropy=True)
  close(metrics["loss"], -0.4 - 0.25 * 1.2 / 3)


def test_correct_responses_are_imitated():
  """The mean of -log p over the two tokens of the first row."""
  metrics, _, w = total(positive_nll=0.1)
  nll = -np.log(0.6 * 0.25) / 2
  close(metrics["nll_loss"], nll)
  close(metrics["loss"], -0.4 + 0.1 * nll)
  close(w["nll_loss"], [[0.5, 0.5], [0, 0]])


def test_on_policy():
  """Ratios are 1: the loss is -(1 + 2 - 1) / 3, the old ones the sampler's."""
  metrics, grad, _ = total(on_policy=True, kl="k1")
  close(metrics["pg_loss"], -2 / 3)
  close(grad, np.array([[-1, -2], [1, 0]]) / 3 + 0.5 * MASK / 3)
  close(metrics["ratio_mean"], 1)
  gap = np.log([0.4 / 0.6, 0.5 / 0.25, 1])
  close(metrics["rollout/sampler_trainer_kl"], gap.mean())
  close(metrics["rollout/logp_gap_max"], np.log(2))
  close(metrics["kl/reference"], 0)
  metrics, _, _ = total(on_policy=True, kl="k2")
  close(metrics["kl/reference"], np.log(2) ** 2 / 3)
