"""The parts of an RL update against NumPy: model, loss, gradient, optimizer."""

import dataclasses

import golden
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import reference_model
from golden import CFG, SGD, SMALL, T, update

from rl_reason.base.structs import TrainState
from rl_reason.models import decoder
from rl_reason.training import step

wide = golden.wide  # a fixture

# --- the forward pass --------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    [
        dict(),
        dict(qkv_bias=False, qk_norm=False, tied=True),
        dict(qkv_bias=False, kv_heads=1, rope_theta=1e4),
    ],
    ids=["bias+qk_norm+untied", "plain, tied", "qk_norm, one kv head"],
)
def test_forward_matches_numpy(variant):
  """fp32 logits and log-probs of padded rows; NumPy never sees the padding."""
  cfg = dataclasses.replace(CFG, **variant)
  leaves = golden.random_leaves(cfg)
  tokens_BL, start_B, _ = golden.random_rows(4)

  @golden.quick_jit
  def run(params):
    hidden_BLD = padded.hidden(params, cfg, tokens_BL, start_B)
    packed = padded.micro(tokens_BL, start_B, np.ones((4, T), bool))
    scored = decoder.packed_logps(params, cfg, packed, 0.8)[:2]
    return decoder.logits(params, cfg, hidden_BLD), *scored

  logits_BLV, logps_BT, entropy_BT = run(golden.on_device(leaves, jnp.float32))
  params = reference_model.nested(leaves)
  wanted_BT = reference_model.response_logps(
      params, cfg, tokens_BL, start_B, T, 0.8
  )
  np.testing.assert_allclose(logps_BT, wanted_BT, rtol=1e-5, atol=1e-5)
  for b, start in enumerate(start_B):
    wanted_LV = reference_model.row_logits(params, cfg, tokens_BL[b, start:])
    np.testing.assert_allclose(
        logits_BLV[b, start:], wanted_LV, rtol=1e-5, atol=1e-5
    )
    probs_TV = np.exp(wanted_LV[-T - 1 : -1] / 0.8)
    probs_TV /= probs_TV.sum(-1, keepdims=True)
    entropy_T = -(probs_TV * np.log(probs_TV)).sum(-1)
    np.testing.assert_allclose(entropy_BT[b], entropy_T, rtol=1e-5, atol=1e-5)


# --- the loss and its gradient -----------------------------------------------


def test_gradient_is_that_of_the_loss(wide):
  """DAPO's loss plus k3: value to 1e-10, gradient to 1e-6 of differences."""
  leaves = golden.random_leaves(wide)
  batch = golden.random_batch(leaves, wide)

  def loss(leaves):
    return reference_model.rl_loss(
        reference_model.nested(leaves),
        wide,
        batch,
        temperature=golden.RL["temperature"],
        reduction="prompt_token_mean",
        beta=golden.COEFS["kl"],
        low=0.2,
        high=0.28,
        dual=3.0,
    )

  params = golden.on_device(leaves, jnp.float64)
  state, metrics = update(params, batch, [1, 2], wide, SGD)
  assert state.params["norm"].dtype == jnp.float64
  np.testing.assert_allclose(metrics["loss"], loss(leaves), rtol=1e-10)
  assert 0 < metrics["pg_clipfrac"] < 1, "some tokens are clipped, not all"
  assert 0 < metrics["pg_clipfrac_lower"] < 1

  golden.assert_gradient(golden.moved(leaves, state), loss, leaves)


# --- minibatches, micro-batches and padding ----------------------------------


@pytest.fixture(scope="module")
def one_piece():
  """fp32 parameters, a batch, and its SGD update without micro-batches."""
  leaves = golden.random_leaves(SMALL)
  batch = golden.random_batch(leaves, SMALL)
  params = golden.on_device(leaves, jnp.float32)
  state, metrics = update(params, batch, [1, 1], SMALL, SGD)
  return params, batch, jax.device_get(state.params), metrics


def test_micro_batches_change_nothing(one_piece):
  """Though groups span them and their numbers of tokens differ."""
  params, batch, _, _ = one_piece
  got = update(params, batch, [1, 4], SMALL, SGD)
  golden.assert_same_update(got, one_piece)


def test_padding_rows_change_nothing(one_piece):
  """Four further rows without a response token are not packed."""
  params, batch, _, _ = one_piece
  rows = jax.tree.map(lambda x: x[:4], batch)
  empty = jax.tree.map(lambda x: x[4:], batch).replace(
      mask_BT=np.zeros((4, T), bool),
      groups_B=np.array([-1, -1, -2, 7], np.int32),
      old_logps_BT=np.full((4, T), np.nan),
      advantages_BT=np.full((4, T), 5.0),
  )
  longer = jax.tree.map(lambda *x: np.concatenate(x), rows, empty)
  state, metrics = update(params, rows, [1, 1], SMALL, SGD)
  golden.assert_same_update(
      update(params, longer, [1, 4], SMALL, SGD),
      (params, rows, jax.device_get(state.params), metrics),
  )


@pytest.mark.parametrize(
    "field", ["old_logps_BT", "ref_logps_BT", "advantages_BT"]
)
def test_masked_positions_may_hold_nan(one_piece, field):
  params, batch, _, _ = one_piece
  hidden_BT = np.where(batch.mask_BT, getattr(batch, field), np.nan)
  got = update(params, batch.replace(**{field: hidden_BT}), [1, 1], SMALL, SGD)
  golden.assert_same_update(got, one_piece)


def test_an_empty_batch_changes_nothing(one_piece):
  params, batch, _, _ = one_piece
  empty = batch.replace(mask_BT=np.zeros_like(batch.mask_BT))
  state, metrics = update(params, empty, [1, 4], SMALL, SGD)
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert metrics["grad_norm"] == metrics["loss"] == metrics["entropy"] == 0
  assert metrics["update_skipped"] == 1 and state.step == 1


@pytest.mark.slow
def test_minibatches_are_consecutive_updates(one_piece):
  """The second minibatch starts from the parameters of the first update."""
  params, batch, _, _ = one_piece
  first, second = (
      jax.tree.map(lambda x, n=n: x[n : n + 4], batch) for n in (0, 4)
  )
  state, metrics = update(params, batch, [2, 1], SMALL, SGD)
  a, metrics_a = update(params, first, [1, 1], SMALL, SGD)
  b, metrics_b = update(a.params, second, [1, 1], SMALL, SGD)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      state.params,
      b.params,
  )
  both = {k: (metrics_a[k], metrics_b[k]) for k in metrics_a}
  for name, wanted in {
      "loss": np.mean(both["loss"]),
      "grad_norm": np.mean(both["grad_norm"]),
      "log_ratio_max": np.max(both["log_ratio_max"]),
      "first_log_ratio_max": both["log_ratio_max"][0],
      "update_skipped": 0,
  }.items():
    np.testing.assert_allclose(metrics[name], wanted, rtol=1e-4, err_msg=name)
  assert state.step == 1, "steps of the stage, not of the optimizer"


# --- the optimizer -----------------------------------------------------------


def test_adamw_matches_numpy():
  """Warm-up, clipping and weight decay of matrices over three gradients.

  Learning rates are 1/4, 2/4 and 3/4 of 0.01. The norm of the second gradient
  is below the limit of 0.5; the others are clipped. A gradient that is not
  finite then changes neither parameters nor moments, and is counted.
  """
  tx = golden.optimizer("adamw", **golden.ADAMW)
  rng = np.random.default_rng(4)
  leaves, moments = golden.random_leaves(CFG), None
  params = golden.on_device(leaves, jnp.float32)
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(params, tx.init(params), zero, zero)
  optimize = golden.quick_jit(
      lambda state, grads: step.optimize(state, tx, grads)
  )
  for t, size in enumerate([1.0, 0.01, 0.3], start=1):
    grads = {k: rng.normal(0, size, x.shape) for k, x in leaves.items()}
    state, metrics = optimize(state, golden.on_device(grads, jnp.float32))
    clipped, norm = reference_model.clip_by_norm(
        grads, golden.ADAMW["clip_norm"]
    )
    assert (norm > golden.ADAMW["clip_norm"]) == (t != 2)
    leaves, moments = reference_model.adamw(
        leaves,
        clipped,
        moments,
        t,
        lr=golden.ADAMW["lr"] * t / 4,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        decay=golden.ADAMW["weight_decay"],
        decayed=golden.MATRICES,
    )
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)
    assert metrics["update_skipped"] == 0
    for name, value in reference_model.flat(
        jax.device_get(state.params)
    ).items():
      np.testing.assert_allclose(
          value, leaves[name], rtol=1e-6, atol=1e-6, err_msg=f"{name}, step {t}"
      )
  assert state.skipped == 0

  for skipped, bad in enumerate([np.inf, np.nan], start=1):
    broken = dict(grads, norm=grads["norm"] * bad)
    after, metrics = optimize(state, golden.on_device(broken, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    jax.tree.map(
        np.testing.assert_array_equal, after.opt_state, state.opt_state
    )
    assert metrics["update_skipped"] == 1
    assert after.skipped == skipped
    state = after


def test_a_bad_minibatch_is_skipped_alone(one_piece):
  """A NaN advantage in the second half: the first half's update stays."""
  params, batch, _, _ = one_piece
  bad = batch.replace(advantages_BT=batch.advantages_BT.copy())
  bad.advantages_BT[7, 0] = np.nan
  state, metrics = update(params, bad, [2, 1], SMALL, SGD)
  first = jax.tree.map(lambda x: x[:4], batch)
  wanted, _ = update(params, first, [1, 1], SMALL, SGD)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      state.params,
      wanted.params,
  )
  assert metrics["update_skipped"] == state.skipped == 1
