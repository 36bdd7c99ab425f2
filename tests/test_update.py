"""Early stopping, metrics and frozen layers of an RL update, by NumPy.

The terms of its loss are tested by hand in test_objective.py.
"""

import functools

import golden
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import reference_model

from rl_reason.algorithms import reductions, surrogates
from rl_reason.base.structs import TrainState
from rl_reason.training import step, update_metrics

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
  return reference_model.response_logps(
      reference_model.nested(leaves),
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


def update(batch, counts, tx=SGD, coefs=NONE, **keywords):
  keywords = TOKENS | keywords
  return golden.update(start()[1], batch, counts, SMALL, tx, coefs, **keywords)


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


# --- learning rates and metrics of an update ----------------------------------


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_skipped_updates_advance_the_schedule(name):
  """The second of four is not finite, the third has no token."""
  tx = golden.optimizer(name, schedule="linear", total=4)
  zero = jnp.zeros((), jnp.int32)
  params = {"embed": jnp.zeros(2)}
  state = TrainState(params, tx.init(params), zero, zero)
  moved = []
  for at, (grad, mask) in enumerate(
      [(1.0, True), (jnp.nan, True), (1.0, False), (1.0, True)]
  ):
    before = state.params["embed"][0]
    state, _ = step.optimize(
        state, tx, {"embed": jnp.full(2, grad)}, mask, at=jnp.int32(at)
    )
    moved.append(float(before - state.params["embed"][0]))
  # The rate of the last one is a quarter, not three quarters.
  np.testing.assert_allclose(moved, [1, 0, 0, 0.25], rtol=1e-5)


@pytest.mark.slow
def test_a_run_ends_with_its_schedule():
  """Of three steps of two updates, the second has no signal."""
  tx = golden.optimizer("sgd", lr=0.1, schedule="linear", total=6)
  run = golden.program(SMALL, tx, **TOKENS)
  params = jax.tree.map(jnp.copy, start()[1])
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(params, tx.init(params), zero, zero)
  batch, counts = on_policy(start()[2]), []
  for empty in (False, True, False):
    rows = hide(batch, *range(len(batch.mask_BT) * empty))
    rows_M = padded.split(rows, 2)
    state, _ = run(state, rows_M, padded.packed(rows_M, 1), NONE)
    counts.append(int(jax.tree.leaves(state.opt_state)[-1]))
  # The two updates without a token are not counted until the next step begins.
  assert counts == [2, 3, 6]


def test_metrics_over_tokens_weigh_minibatches_by_their_tokens():
  """3 tokens, 1 token, and a minibatch that made no update."""
  found = update_metrics.summarize(
      dict(
          updates=jnp.array([True, True, False]),
          tokens=jnp.array([3, 1, 4]),
          update_skipped=jnp.array([0.0, 1, 0]),
          entropy=jnp.array([0.4, 0.8, jnp.nan]),
          grad_norm=jnp.array([1.0, 3, 9]),
          kl_old_new_max=jnp.array([1.0, 3, 9]),
      )
  )
  wanted = dict(entropy=0.5, grad_norm=2, kl_old_new_max=9, updates=2)
  wanted["update_skipped"] = 1
  assert {k: float(x) for k, x in found.items()} == pytest.approx(wanted)
  one = update_metrics.summarize(
      dict(updates=jnp.array([True]), tokens=jnp.array([7]))
      | dict(entropy=jnp.array([jnp.float32(0.1)]))
  )
  assert one["entropy"] == jnp.float32(0.1)  # to the bit


# --- early stopping ----------------------------------------------------------


def near_old(metrics):
  return metrics["kl_old_new"] <= 1e-3


def far_from_old(metrics):
  return metrics["kl_old_new"] <= 1e3


@pytest.mark.slow
def test_updates_stop_once_the_kl_exceeds_its_limit():
  """Four minibatches of two rows: the first update goes beyond a KL of 1e-3.

  The third is all padding, and its KL is 0; still the fourth is not used.
  """
  batch = hide(on_policy(start()[2]), 4, 5)
  state, metrics = update(batch, [4, 1], admits=near_old)
  first, wanted = update(jax.tree.map(lambda x: x[:2], batch), [1, 1])
  assert scale_of(first) > 0.05
  near(state.params, first.params)
  assert metrics["updates"] == 1 and metrics["update_skipped"] == 0
  assert state.skipped == 0, "an unwanted update does not count as skipped"
  for name in ("loss", "grad_norm", "kl_old_new", "entropy"):
    np.testing.assert_allclose(
        metrics[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name
    )
  free, metrics = update(batch, [4, 1], admits=far_from_old)
  assert metrics["updates"] == 3 and metrics["update_skipped"] == 1
  assert np.abs(free.params["embed"] - first.params["embed"]).max() > 0.01


def test_rollouts_that_are_too_far_off_policy_are_not_used():
  _, params, batch = start()
  state, metrics = update(batch, [4, 1], admits=near_old)
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert metrics["updates"] == 0 and metrics["loss"] == 0
  assert state.step == 1, "the rollout is used up"


# --- metrics -----------------------------------------------------------------


def test_kl_and_effective_sample_size():
  """Off-policy by NumPy: mean(r - 1 - log r), mean(r)^2 / mean(r^2)."""
  _, _, batch = start()
  _, metrics = update(batch, [1, 2])
  log_ratio = (logps() - batch.old_logps_BT)[batch.mask_BT]
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
  _, metrics = update(on_policy(batch), [1, 2])
  np.testing.assert_allclose(metrics["ess"], 1, atol=1e-5)
  assert metrics["first_log_ratio_max"] < 1e-5
  assert abs(metrics["kl_old_new"]) < 1e-6
  assert metrics["pg_clipfrac"] == 0


def test_a_single_update_computes_the_old_log_probs():
  """The batch then has the sampler's, which are only compared."""
  _, _, batch = start()
  state, metrics = update(batch, [1, 2], on_policy=True)
  wanted, _ = update(on_policy(batch), [1, 2])
  near(state.params, wanted.params)
  gap = (batch.old_logps_BT - logps())[batch.mask_BT]
  assert abs(gap.mean()) > 0.01
  for name, value in {
      "rollout/sampler_trainer_kl": gap.mean(),
      "rollout/logp_gap_max": np.abs(gap).max(),
      "ppo_kl": 0,
  }.items():
    np.testing.assert_allclose(metrics[name], value, atol=1e-5, err_msg=name)


def test_staleness_counts_minibatches_and_age():
  """Minibatches of 9, 0, 5 and 7 tokens; four tokens of the first have age 4.

  The first has a mean age of 16 / 9; the tokens of the others are as old as
  their number. The second is empty and does not count.
  """
  _, _, batch = start()
  staleness_B = np.array([0, 4, -1, -1, 0, 0, 0, 0], np.int32)
  batch = hide(batch.replace(staleness_B=staleness_B), 2, 3)
  _, metrics = update(on_policy(batch), [4, 1], admits=far_from_old)
  np.testing.assert_allclose(
      metrics["staleness"], (4 * 4 / 9 + 2 + 3) / 3, rtol=1e-5
  )
  assert metrics["staleness_max"] == 4


def test_imitation_has_one_denominator_over_micro_batches():
  """Correct: rows 0, 2, 5, 7 with 5, 0, 4, 5 tokens.

  Quarters of the batch have 5, 0, 4 and 5 of these tokens: means within
  micro-batches would differ from the mean of all.
  """
  _, _, batch = start()
  correct_BT = batch.mask_BT * batch.correct_B[:, None] > 0
  assert correct_BT.sum(1).tolist() == [5, 0, 0, 0, 0, 4, 0, 5]
  _, metrics = update(batch, [1, 4], positive_nll=0.1)
  nll = -logps()[correct_BT].mean()
  np.testing.assert_allclose(metrics["nll_loss"], nll, rtol=1e-4)
  loss = metrics["pg_loss"] + 0.1 * nll
  np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-4)


# --- frozen layers -----------------------------------------------------------


@pytest.mark.slow
def test_frozen_layers_keep_their_bits():
  """One of two layers: no gradient, no momentum and no weight decay."""
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
  """Gradients 3 and 4 of two layers, the first frozen, and 3 of embeddings."""
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
