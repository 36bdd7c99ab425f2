"""What an RL update does beside the surrogate, by hand and by NumPy.

When it stops, what it measures, which layers stay still, and the terms that a
paper adds to its loss.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import test_golden_step as golden

from rl_reason.algorithms import reductions, surrogates, variants
from rl_reason.structs import TrainState
from rl_reason.training import step

T, SMALL, SGD = golden.T, golden.SMALL, golden.SGD
CLIP = functools.partial(surrogates.ppo, clip_low=0.2, clip_high=0.28)
TOKENS = dict(surrogate=CLIP, reduction=reductions.token_mean, kl="none")
NONE = dict(kl=0.0, entropy=0.0)


@functools.cache
def start():
  """Parameters, flat and on the device, and rows on every branch."""
  leaves = golden.random_leaves(SMALL)
  params = golden.on_device(leaves, jnp.float32)
  return leaves, params, golden.random_batch(leaves, SMALL)


@functools.cache
def logps():
  leaves, _, batch = start()
  return reference.response_logps(
      reference.nested(leaves),
      SMALL,
      batch.tokens_BL,
      batch.start_B,
      T,
      golden.RL["temperature"],
  )


def on_policy(batch):
  return batch.replace(old_logps_BT=logps())


def hide(batch, *rows):
  """The same rows, some of them without a token."""
  mask_BT = batch.mask_BT.copy()
  mask_BT[list(rows)] = False
  return batch.replace(mask_BT=mask_BT)


def update(batch, cuts, tx=SGD, coefs=NONE, **keywords):
  keywords = TOKENS | keywords
  return golden.update(start()[1], batch, cuts, SMALL, tx, coefs, **keywords)


def near(a, b, tolerance=1e-5):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(
          x, y, rtol=tolerance, atol=tolerance
      ),
      a,
      b,
  )


def scale_of(state):
  """The largest entry of the step that SGD took."""
  moved = golden.moved(start()[0], state)
  return max(np.abs(x).max() for x in moved.values())


# --- the trust region --------------------------------------------------------


def test_updates_end_where_the_policy_is_too_far():
  """Four minibatches of two rows, rate 1: the first step goes beyond 1e-3.

  The third is all padding, its KL is 0; the fourth must wait all the same.
  """
  batch = hide(on_policy(start()[2]), 4, 5)
  state, metrics = update(batch, [4, 1], max_kl=1e-3)
  first, wanted = update(jax.tree.map(lambda x: x[:2], batch), [1, 1])
  assert scale_of(first) > 0.05
  near(state.params, first.params)
  assert metrics["updates"] == 1 and metrics["update_skipped"] == 0
  assert state.skipped == 0, "what is not wanted is not skipped"
  for name in ("loss", "grad_norm", "kl_old_new", "entropy"):
    np.testing.assert_allclose(
        metrics[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name
    )
  free, metrics = update(batch, [4, 1], max_kl=1e3)
  assert metrics["updates"] == 3 and metrics["update_skipped"] == 1
  off, _ = update(batch, [4, 1])
  near(free.params, off.params)
  assert np.abs(free.params["embed"] - first.params["embed"]).max() > 0.01


def test_a_first_minibatch_that_is_too_far_stops_everything():
  _, params, batch = start()
  state, metrics = update(batch, [4, 1], max_kl=1e-3)
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert metrics["updates"] == 0 and metrics["loss"] == 0
  assert state.step == 1, "the rollout is used up"


# --- what is measured --------------------------------------------------------


def test_kl_and_effective_sample_size():
  """Off-policy by NumPy: mean(r - 1 - log r), mean(r)^2 / mean(r^2)."""
  _, _, batch = start()
  _, metrics = update(batch, [1, 2])
  some = batch.mask_BT
  log_ratio = (logps() - batch.old_logps_BT)[some]
  ratio = np.exp(log_ratio)
  for name, wanted in {
      "kl_old_new": np.mean(ratio - 1 - log_ratio),
      "ppo_kl": -np.mean(log_ratio),
      "ess": ratio.mean() ** 2 / np.mean(ratio**2),
      "ess_min": ratio.mean() ** 2 / np.mean(ratio**2),
      "log_ratio_max": np.abs(log_ratio).max(),
      "first_log_ratio_max": np.abs(log_ratio).max(),
  }.items():
    np.testing.assert_allclose(metrics[name], wanted, rtol=1e-4, err_msg=name)
  assert metrics["ess"] < 0.9


def test_on_policy_every_token_counts_whole():
  _, _, batch = start()
  _, metrics = update(on_policy(batch), [1, 2])
  np.testing.assert_allclose(metrics["ess"], 1, atol=1e-5)
  assert metrics["first_log_ratio_max"] < 1e-5
  assert abs(metrics["kl_old_new"]) < 1e-6
  assert metrics["pg_clipfrac"] == 0


@pytest.mark.parametrize(
    "surrogate", [CLIP, surrogates.gspo, surrogates.cispo], ids=range(3)
)
def test_one_update_needs_no_old_log_probs(surrogate):
  """Those of the sampler stand in the batch: they are only compared."""
  _, _, batch = start()
  terms = dict(surrogate=surrogate)
  state, metrics = update(batch, [1, 2], on_policy=True, **terms)
  wanted, _ = update(on_policy(batch), [1, 2], **terms)
  near(state.params, wanted.params)
  gap = (batch.old_logps_BT - logps())[batch.mask_BT]
  assert abs(gap.mean()) > 0.01
  for name, value in {
      "rollout/sampler_trainer_kl": gap.mean(),
      "rollout/logp_gap_max": np.abs(gap).max(),
      "ppo_kl": 0,
  }.items():
    np.testing.assert_allclose(metrics[name], value, atol=1e-5, err_msg=name)


def test_clipped_tokens_and_the_likeliest_of_them():
  """Clipped: r > 1.28 and A > 0, or r < .8 and A < 0."""
  _, _, batch = start()
  _, metrics = update(batch, [1, 2])
  some, advantage_BT = batch.mask_BT, batch.advantages_BT
  ratio_BT = np.exp(logps() - np.where(some, batch.old_logps_BT, 0))
  high_BT = some & (ratio_BT > 1.28) & (advantage_BT > 0)
  low_BT = some & (ratio_BT < 0.8) & (advantage_BT < 0)
  share = (high_BT | low_BT).sum() / some.sum()
  np.testing.assert_allclose(metrics["pg_clipfrac"], share, rtol=1e-5)
  assert metrics["pg_clipfrac_lower"] == 0, "no dual clip"
  likeliest = np.exp(logps())[high_BT].max()
  np.testing.assert_allclose(metrics["clipped_prob_max"], likeliest, rtol=1e-4)


def test_staleness_counts_minibatches_and_age():
  """Two minibatches; rows of age 0, 4 and padding, and of 0 alone.

  Of the first's nine tokens four are of row 1, which has age 4: 16 / 9. In
  the second every token is one minibatch old.
  """
  _, _, batch = start()
  age_B = np.array([0, 4, -1, -1, 0, 0, 0, 0], np.int32)
  batch = hide(batch.replace(age_B=age_B), 2, 3)
  _, metrics = update(on_policy(batch), [2, 1])
  np.testing.assert_allclose(
      metrics["staleness"], (4 * 4 / 9 + 1) / 2, rtol=1e-5
  )
  assert metrics["staleness_max"] == 4


# --- what stays still --------------------------------------------------------


def test_frozen_layers_keep_their_bits():
  """Half of two layers: neither gradient, nor momentum, nor decay."""
  _, params, batch = start()
  tx = golden.optimizer(
      "adamw", lr=0.1, weight_decay=0.5, clip_norm=0.5, freeze=0.5
  )
  state, _ = update(batch, [2, 2], tx)
  for name, after in state.params["layers"].items():
    before = np.asarray(params["layers"][name])
    np.testing.assert_array_equal(after[0], before[0])
    assert (np.asarray(after[1]) != before[1]).any(), name
  for name in ("embed", "norm"):
    assert (np.asarray(state.params[name]) != np.asarray(params[name])).any()


def test_frozen_layers_do_not_count_for_the_norm():
  """Clipping at 1/2: (3, 4) over two layers is 4 without the first."""
  tx = golden.optimizer("sgd", clip_norm=0.5, freeze=0.5)
  params = {"layers": {"q": jnp.zeros((2, 1, 1))}, "embed": jnp.zeros((1, 1))}
  grads = {"layers": {"q": jnp.array([[[3.0]], [[4.0]]])}}
  grads["embed"] = jnp.full((1, 1), 3.0)
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(params, tx.init(params), zero, zero)
  state, metrics = step.optimize(state, tx, grads)
  # (4, 3) has norm 5: a tenth of it is taken.
  np.testing.assert_allclose(
      state.params["layers"]["q"].ravel(), [0, -0.4], rtol=1e-6
  )
  np.testing.assert_allclose(state.params["embed"], -0.3, rtol=1e-6)


# --- further terms of the loss -----------------------------------------------


def numpy_loss(weights_BT, batch):
  """The weighted sum of the clipped objective."""
  total = 0.0
  for at in zip(*np.nonzero(batch.mask_BT), strict=True):
    total += weights_BT[at] * reference.policy_loss(
        logps()[at] - batch.old_logps_BT[at],
        batch.advantages_BT[at],
        0.2,
        0.28,
    )
  return total


def token_weights(batch):
  return batch.mask_BT / batch.mask_BT.sum()


def covariances():
  """The rows, their old log-probs without infinities, and NumPy's answer."""
  _, _, batch = start()
  old_BT = np.where(batch.mask_BT, batch.old_logps_BT, 0)
  cov_BT = reference.covariance(old_BT, batch.advantages_BT, batch.mask_BT)
  return batch, old_BT, cov_BT


def test_covariance_picks_tokens_that_lose_their_gradient():
  """Clip-Cov: of the candidates, those with the three least uniforms."""
  batch, old_BT, cov_BT = covariances()
  some = batch.mask_BT
  low, high = np.quantile(cov_BT[some], [0.3, 0.9])
  share = 3.5 / some.sum()  # three, rounded down
  key = jax.random.fold_in(jax.random.key(0), 0)  # step 0, minibatch 0
  uniform_BT = np.asarray(jax.random.uniform(key, some.shape))
  factor_BT = reference.clip_cov(cov_BT, some, uniform_BT, share, low, high)
  assert (factor_BT[some] == 0).sum() == 3
  clip = functools.partial(
      variants.clip_cov, share=share, low=float(low), high=float(high)
  )
  state, metrics = update(batch, [1, 2], covariance=clip)
  wanted = numpy_loss(token_weights(batch) * factor_BT, batch)
  np.testing.assert_allclose(metrics["loss"], wanted, rtol=1e-4)
  plain = numpy_loss(token_weights(batch), batch)
  assert abs(wanted - plain) > 1e-3
  # Tokens that are not there cannot be learnt from either.
  without = batch.replace(advantages_BT=batch.advantages_BT * factor_BT)
  same, _ = update(without, [1, 2])
  near(state.params, same.params)


def test_covariance_picks_tokens_that_are_held_back():
  """KL-Cov: the fifth of largest covariance pays .7 |log r|."""
  batch, old_BT, cov_BT = covariances()
  some = batch.mask_BT
  held_BT = reference.top_share(cov_BT, some, 0.2)
  assert held_BT.sum() == np.ceil(0.2 * some.sum())
  penalty = functools.partial(variants.kl_cov, share=0.2, coef=0.7)
  _, metrics = update(batch, [1, 2], covariance=penalty)
  weights_BT = token_weights(batch)
  far_BT = np.abs(logps() - old_BT)
  wanted = numpy_loss(weights_BT, batch)
  np.testing.assert_allclose(metrics["pg_loss"], wanted, rtol=1e-4)
  wanted += 0.7 * (weights_BT * held_BT * far_BT).sum()
  np.testing.assert_allclose(metrics["loss"], wanted, rtol=1e-4)


@pytest.mark.parametrize("cuts", [[1, 1], [1, 2], [1, 4]])
def test_right_responses_are_imitated_with_one_denominator(cuts):
  """Right: rows 0, 2, 5, 7 with 5, 0, 4, 5 tokens.

  Halves have 5 and 9 of these tokens, quarters 5, 0, 4 and 5: means within
  micro-batches would differ from the mean of all.
  """
  _, _, batch = start()
  right_BT = batch.mask_BT * batch.right_B[:, None] > 0
  assert right_BT.sum(1).tolist() == [5, 0, 0, 0, 0, 4, 0, 5]
  _, metrics = update(batch, cuts, positive_nll=0.1)
  wanted = -logps()[right_BT].mean()
  np.testing.assert_allclose(metrics["nll_loss"], wanted, rtol=1e-4)
  np.testing.assert_allclose(
      metrics["loss"],
      numpy_loss(token_weights(batch), batch) + 0.1 * wanted,
      rtol=1e-4,
  )
  halves = [-logps()[n][right_BT[n]].mean() for n in (slice(4), slice(4, 8))]
  assert abs(np.mean(halves) - wanted) > 0.01, "the mistake would show"


def test_nothing_right_is_no_division_by_zero():
  _, _, batch = start()
  batch = batch.replace(right_B=np.zeros(8, np.float32))
  _, metrics = update(batch, [1, 1], positive_nll=0.1)
  assert metrics["nll_loss"] == 0 and metrics["update_skipped"] == 0


def test_lengths_reweight_responses():
  """(|o| / median)^-1/2 on the token mean; the median of seven rows is 4."""
  _, _, batch = start()
  lengths = [5, 4, 0, 3, 1, 4, 2, 5]
  assert batch.mask_BT.sum(1).tolist() == lengths
  factor_B = [(n / 4) ** -0.5 if n else 1 for n in lengths]
  _, metrics = update(batch, [1, 2], length_alpha=0.5)
  weights_BT = token_weights(batch) * np.transpose([factor_B])
  np.testing.assert_allclose(
      metrics["loss"], numpy_loss(weights_BT, batch), rtol=1e-4
  )


def test_an_entropy_bonus():
  """Reduced as the loss is, and subtracted with its coefficient."""
  leaves, _, batch = start()
  _, metrics = update(
      batch, [1, 2], coefs=dict(kl=0.0, entropy=0.3), entropy=True
  )
  entropy = 0.0
  for b, start_ in enumerate(batch.start_B):
    logits_LV = reference.row_logits(
        reference.nested(leaves), SMALL, batch.tokens_BL[b, start_:]
    )
    for t in np.flatnonzero(batch.mask_BT[b]):
      scaled = logits_LV[-T - 1 + t] / golden.RL["temperature"]
      probs = np.exp(scaled) / np.exp(scaled).sum()
      entropy -= (probs * np.log(probs)).sum() / batch.mask_BT.sum()
  np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-4)
  wanted = numpy_loss(token_weights(batch), batch) - 0.3 * entropy
  np.testing.assert_allclose(metrics["loss"], wanted, rtol=1e-4)
