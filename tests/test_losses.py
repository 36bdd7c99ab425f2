"""Per-token losses: values and gradients, at and beyond every clip."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st

from rl_reason import losses

QUICK = settings(max_examples=30, deadline=None, derandomize=True)
DAPO = dict(clip_low=0.2, clip_high=0.28)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
  with jax.enable_x64(request.param == "float64"):
    yield np.dtype(request.param)


def tokens(values, dtype=np.float32):
  """One response: [1, T]."""
  return jnp.array([values], dtype)


@functools.cache
def surrogate_program(**clip):
  """jit: (logps, advantages) -> loss, d loss / d logp and flags; old = 0."""

  def total(logps_BT, advantages_BT):
    old_BT = jnp.zeros_like(logps_BT)
    loss_BT, aux = losses.policy_loss(logps_BT, old_BT, advantages_BT, **clip)
    return loss_BT.sum(), (loss_BT, aux)

  return jax.jit(jax.grad(total, has_aux=True))


def surrogate(log_ratios, advantages, dtype=np.float32, **clip):
  """Loss, d loss / d logp and the flags of each token."""
  grad_BT, (loss_BT, aux) = surrogate_program(**clip)(
      tokens(log_ratios, dtype), tokens(advantages, dtype)
  )
  assert loss_BT.dtype == grad_BT.dtype == dtype
  return loss_BT[0], grad_BT[0], {k: x[0] for k, x in aux.items()}


def test_policy_loss_by_hand(dtype):
  """eps .2 / .28 on ratios 1.5 and 0.5, for both signs of the advantage.

  A = +1: min(1.5, 1.28) = 1.28, the upper bound binds, no gradient;
          min(0.5, 0.80) = 0.50, free: d(-r A)/d logp = -r A = -0.5
  A = -1: min(-1.5, -1.28) = -1.5, free: gradient +1.5;
          min(-0.5, -0.80) = -0.8, the lower bound binds, no gradient
  """
  log_ratios = np.log([1.5, 0.5, 1.5, 0.5])
  loss, grad, aux = surrogate(log_ratios, [1, 1, -1, -1], dtype, **DAPO)
  np.testing.assert_allclose(loss, [-1.28, -0.5, 1.5, 0.8], rtol=2e-7)
  np.testing.assert_allclose(grad, [0, -0.5, 1.5, 0], rtol=2e-7)
  assert aux["clipped"].tolist() == [True, False, False, True]
  assert aux["clipped_lower"].tolist() == [False] * 4
  np.testing.assert_allclose(aux["ratio"], [1.5, 0.5, 1.5, 0.5], rtol=2e-7)
  np.testing.assert_allclose(aux["log_ratio"], log_ratios, rtol=2e-7)


def test_bounds_are_asymmetric(dtype):
  """r = 1.25 is inside 1.28 and outside 1.2; r = 0.75 outside 0.8."""
  log_ratios, advantages = np.log([1.25, 0.75]), [2, -2]
  loss, grad, _ = surrogate(log_ratios, advantages, dtype, **DAPO)
  np.testing.assert_allclose(loss, [-2.5, 1.6], rtol=3e-7)
  np.testing.assert_allclose(grad, [-2.5, 0], rtol=3e-7)
  loss, grad, _ = surrogate(
      log_ratios, advantages, dtype, clip_low=0.3, clip_high=0.2
  )
  np.testing.assert_allclose(loss, [-2.4, 1.5], rtol=3e-7)
  np.testing.assert_allclose(grad, [0, 1.5], rtol=3e-7)


@pytest.mark.parametrize("dual_clip", [0.0, 3.0])
def test_on_policy_gradient_is_minus_advantage(dual_clip, dtype):
  """At r = 1 nothing clips, whatever the sign: plain REINFORCE.

  (Written with max for A < 0, as some write-ups do, it would be 0 there.)
  """
  advantages = [2.0, 0.5, 0.0, -0.5, -2.0]
  loss, grad, aux = surrogate(
      [0.0] * 5, advantages, dtype, dual_clip=dual_clip, **DAPO
  )
  np.testing.assert_array_equal(loss, -np.array(advantages))
  np.testing.assert_array_equal(grad, -np.array(advantages))
  assert not aux["clipped"].any() and not aux["clipped_lower"].any()


def test_dual_clip_caps_bad_tokens_only(dtype):
  """c = 3, A = -2: the loss r * 2 stops at 6 for r > 3.

  r = 4: 8 -> 6 without gradient; r = 2.5: 5 stays; r = 0.5: the lower bound,
  0.8 * 2 = 1.6; A = +2, r = 4: the upper bound, -1.28 * 2 = -2.56.
  """
  log_ratios, advantages = np.log([4, 2.5, 0.5, 4]), [-2, -2, -2, 2]
  loss, grad, aux = surrogate(
      log_ratios, advantages, dtype, dual_clip=3.0, **DAPO
  )
  np.testing.assert_allclose(loss, [6, 5, 1.6, -2.56], rtol=3e-7)
  np.testing.assert_allclose(grad, [0, 5, 0, 0], rtol=3e-7)
  assert aux["clipped_lower"].tolist() == [True, False, False, False]
  assert aux["clipped"].tolist() == [False, False, True, True]
  loss, grad, _ = surrogate(log_ratios, advantages, dtype, **DAPO)
  np.testing.assert_allclose(loss[0], 8, rtol=3e-7)  # off: no cap
  np.testing.assert_allclose(grad[0], 8, rtol=3e-7)


def test_log_ratio_is_clamped(dtype):
  """e^20 = 485165195.4 at most, e^-20 at least; no gradient beyond."""
  loss, grad, aux = surrogate([25, 19, -25], [-1, -1, 1], dtype)
  np.testing.assert_allclose(
      loss, [485165195.41, np.exp(19), -np.exp(-20)], rtol=2e-6
  )
  np.testing.assert_allclose(grad, [0, np.exp(19), 0], rtol=2e-6)
  np.testing.assert_array_equal(aux["log_ratio"], [25, 19, -25])  # as it was
  loss, grad, _ = surrogate(
      np.log([8.0, 16.0]), [-1, -1], dtype, log_ratio_max=np.log(10)
  )
  np.testing.assert_allclose(loss, [8, 10], rtol=1e-6)
  np.testing.assert_allclose(grad, [8, 0], rtol=1e-6)


def test_only_the_policy_learns():
  """Old log-probs and advantages come in as numbers: shapes are checked."""
  with pytest.raises(AssertionError):
    losses.policy_loss(jnp.zeros((1, 3)), jnp.zeros((1, 2)), jnp.zeros((1, 3)))
  with pytest.raises(AssertionError):
    losses.policy_loss(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3))


FLOATS = st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6)


@given(log_ratios=FLOATS, advantages=FLOATS)
@QUICK
def test_policy_loss_matches_numpy(log_ratios, advantages):
  clip = dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
  loss, grad, aux = surrogate(log_ratios, advantages, **clip)
  wanted = [
      reference.policy_loss(d, a, 0.2, 0.28, 3.0)
      for d, a in zip(log_ratios, advantages, strict=True)
  ]
  np.testing.assert_allclose(loss, wanted, rtol=1e-6, atol=1e-6)
  # A step down the gradient makes good tokens likelier and bad ones rarer.
  assert (np.asarray(grad) * np.array(advantages) <= 0).all()
  stopped = np.asarray(aux["clipped"] | aux["clipped_lower"])
  assert (np.asarray(grad)[stopped] == 0).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_extreme_log_probs_stay_finite(kind, dtype):
  """Log-probs of 0 and of a token that all but cannot happen."""
  logps, refs = [-1e4, 0, -1e4, -1e-30], [0, -1e4, -1e4, 0]
  advantages = tokens([5, -5, 5, -5], dtype)

  def total(logps_BT):
    loss_BT, _ = losses.policy_loss(
        logps_BT, tokens(refs, dtype), advantages, dual_clip=3.0
    )
    kl_BT = losses.kl(logps_BT, tokens(refs, dtype), kind=kind)
    return (loss_BT + kl_BT).sum()

  value, grad = jax.jit(jax.value_and_grad(total))(tokens(logps, dtype))
  assert np.isfinite(value) and np.isfinite(grad).all()


def divergence(diffs, kind, dtype=np.float32, **keywords):
  """KL and its gradient in logp at logp - ref = diffs."""
  logps_BT = tokens(diffs, dtype)

  def total(logps_BT):
    kl_BT = losses.kl(
        logps_BT, jnp.zeros_like(logps_BT), kind=kind, **keywords
    )
    return kl_BT.sum(), kl_BT

  grad_BT, kl_BT = jax.jit(jax.grad(total, has_aux=True))(logps_BT)
  assert kl_BT.dtype == grad_BT.dtype == dtype
  return kl_BT[0], grad_BT[0]


def test_kl_by_hand(dtype):
  """d = logp - ref of 0.1, -1, 0.

  k1 = d                 0.1            -1              gradient 1
  k2 = d^2 / 2           0.005          0.5             gradient d
  k3 = e^-d + d - 1      0.90483742     2.71828183
                         - 0.9          - 2             gradient 1 - e^-d
                         = 0.00483742   = 0.71828183
  """
  diffs = [0.1, -1, 0]
  value, grad = divergence(diffs, "k1", dtype)
  np.testing.assert_allclose(value, [0.1, -1, 0], rtol=2e-7)
  np.testing.assert_allclose(grad, [1, 1, 1], rtol=2e-7)
  value, grad = divergence(diffs, "k2", dtype)
  np.testing.assert_allclose(value, [0.005, 0.5, 0], rtol=2e-7)
  np.testing.assert_allclose(grad, diffs, rtol=2e-7)
  value, grad = divergence(diffs, "k3", dtype)
  np.testing.assert_allclose(
      value, [0.004837418036, 0.718281828459, 0], rtol=1e-6, atol=3e-8
  )
  np.testing.assert_allclose(grad, [0.0951625820, -1.718281828, 0], rtol=2e-6)


def test_k3_is_capped_on_both_sides(dtype):
  """e^2 - 3 = 4.389056 is free; e^3 - 4 = 16.1 and 11 + e^-12 are not."""
  value, grad = divergence([-2, -3, 12, 10.5, -25, 25], "k3", dtype)
  np.testing.assert_allclose(
      value, [4.3890561, 10, 10, 9.5 + np.exp(-10.5), 10, 10], rtol=1e-6
  )
  np.testing.assert_allclose(
      grad, [1 - np.exp(2), 0, 0, 1 - np.exp(-10.5), 0, 0], rtol=1e-6
  )


def test_k3_clamps_its_log_ratio(dtype):
  """With the cap out of the way: d is clamped to +- 20, flat beyond."""
  value, grad = divergence([-25, 25, 3], "k3", dtype, k3_max=1e30)
  np.testing.assert_allclose(
      value, [np.exp(20) - 21, 19 + np.exp(-20), 2 + np.exp(-3)], rtol=1e-6
  )
  np.testing.assert_allclose(grad, [0, 0, 1 - np.exp(-3)], rtol=1e-6)


def test_k3_is_never_negative():
  """Also where exp(d) - d - 1 would lose every digit to rounding."""
  small = np.geomspace(1e-12, 5, 400, dtype=np.float32)
  value, _ = divergence([*small, *-small, 0.0], "k3")
  assert (np.asarray(value) >= 0).all()
  near = np.array([1e-3, -1e-3], np.float32)
  value, _ = divergence(near, "k3")  # d^2 / 2 = 5e-7 to leading order
  np.testing.assert_allclose(value, [5e-7, 5e-7], rtol=1e-3)


@given(logps=FLOATS, refs=FLOATS)
@QUICK
def test_k3_matches_numpy(logps, refs):
  got = losses.kl(tokens(logps), tokens(refs))[0]  # the default is k3
  wanted = [reference.k3(a, b) for a, b in zip(logps, refs, strict=True)]
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_the_gradients_are_on_policy():
  """E[grad k1] = 0; E[grad k2] = grad KL(pi || ref); that of k3 is neither."""
  with jax.enable_x64(True):
    logits_V, ref_V = jnp.array([0.3, -0.8, 1.1]), jnp.log(
        jnp.array([0.2, 0.5, 0.3])
    )

    def exact(logits_V):
      logp_V = jax.nn.log_softmax(logits_V)
      return jnp.sum(jnp.exp(logp_V) * (logp_V - ref_V))

    def expected(logits_V, kind):
      logp_V = jax.nn.log_softmax(logits_V)
      prob_V = jax.lax.stop_gradient(jnp.exp(logp_V))
      return jnp.sum(prob_V * losses.kl(logp_V[None], ref_V[None], kind=kind))

    wanted = jax.grad(exact)(logits_V)
    grads = {k: jax.grad(expected)(logits_V, k) for k in ("k1", "k2", "k3")}
  np.testing.assert_allclose(grads["k1"], 0, atol=1e-15)
  np.testing.assert_allclose(grads["k2"], wanted, rtol=1e-12)
  assert np.abs(grads["k3"] - wanted).max() > 0.05


def test_unknown_kl():
  with pytest.raises(ValueError, match="kl kind 'k4': one of 'k1', 'k2', 'k3'"):
    losses.kl(jnp.zeros((1, 1)), jnp.zeros((1, 1)), kind="k4")
