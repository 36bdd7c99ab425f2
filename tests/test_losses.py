"""KL estimators at and beyond every clamp; the loss of reward models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from by_hand import DTYPES, QUICK, public, quick_jit
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import kl as kl_lib

KINDS = ["k1", "k2", "k3", "k3_unbiased", "abs"]


@functools.cache
def program(kind, **keywords):
  def total(logps_BT, ref_BT):
    kl_BT = kl_lib.ESTIMATORS[kind](logps_BT, ref_BT, **keywords)
    return kl_BT.sum(), kl_BT

  return quick_jit(jax.grad(total, has_aux=True))


def divergence(diffs, kind, dtype="float32", ref=0.0, **keywords):
  """KL and its gradient in logp at logp - ref = diffs."""
  with jax.enable_x64(dtype == "float64"):
    logps_BT = jnp.array([diffs], dtype) + ref
    grad_BT, kl_BT = program(kind, **keywords)(
        logps_BT, jnp.full_like(logps_BT, ref)
    )
  assert kl_BT.dtype == grad_BT.dtype == dtype
  return np.asarray(kl_BT[0]), np.asarray(grad_BT[0])


@DTYPES
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
  unbiased, grad = divergence(diffs, "k3_unbiased", dtype)
  np.testing.assert_array_equal(unbiased, value)
  np.testing.assert_allclose(grad, diffs, rtol=2e-7)
  value, grad = divergence(diffs[:2], "abs", dtype)
  np.testing.assert_allclose(value, [0.1, 1], rtol=2e-7)
  np.testing.assert_allclose(grad, [1, -1], rtol=2e-7)


@DTYPES
def test_unbiased_k3_by_hand(dtype):
  """d = -1, r = 3 and 1/2: r times .71828183, and the gradient r d."""
  with jax.enable_x64(dtype == "float64"):
    logps_BT = jnp.full((1, 2), -2.0, dtype)
    old_BT = logps_BT - jnp.log(jnp.array([[3.0, 0.5]], dtype))
    value, pull = jax.vjp(
        lambda x: kl_lib.k3_unbiased(x, logps_BT + 1, old_BT), logps_BT
    )
    (grad,) = pull(jnp.ones_like(value))
  want = np.array([[3, 0.5]]) * 0.718281828459
  np.testing.assert_allclose(value, want, rtol=1e-6)
  np.testing.assert_allclose(grad, [[-3, -0.5]], rtol=1e-6)


@DTYPES
def test_k3_is_capped_on_both_sides(dtype):
  """e^2 - 3 = 4.389056 is free; e^3 - 4 = 16.1 and 11 + e^-12 are not."""
  value, grad = divergence([-2, -3, 12, 10.5, -25, 25], "k3", dtype)
  np.testing.assert_allclose(
      value, [4.3890561, 10, 10, 9.5 + np.exp(-10.5), 10, 10], rtol=1e-6
  )
  np.testing.assert_allclose(
      grad, [1 - np.exp(2), 0, 0, 1 - np.exp(-10.5), 0, 0], rtol=1e-6
  )


@DTYPES
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


@DTYPES
@given(diffs=hnp.arrays(float, 8, elements=st.floats(-30, 30, width=16)))
@QUICK
def test_kl_matches_numpy(dtype, diffs):
  near = dict(rtol=1e-5, atol=1e-6)
  if dtype == "float64":
    near = dict(rtol=1e-12, atol=1e-14)
  for kind, wanted in {
      "k1": diffs,
      "k2": [d * d / 2 for d in diffs],
      "k3": [reference.k3(d, 0) for d in diffs],
  }.items():
    got, _ = divergence(diffs, kind, dtype)
    np.testing.assert_allclose(got, wanted, **near, err_msg=kind)
    got, _ = divergence(diffs, kind, dtype, ref=-4.0)
    np.testing.assert_allclose(got, wanted, **near, err_msg="only d counts")


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_log_probs_stay_finite(kind, dtype):
  for d in (-1e4, 1e4, -1e-30):
    value, grad = divergence([d], kind, dtype)
    assert np.isfinite(value) and np.isfinite(grad)
  value, grad = divergence([0.0], kind, dtype, ref=-1e4)
  assert value == 0 and grad == (kind in ("k1", "abs"))


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
      return jnp.sum(prob_V * kl_lib.estimate(kind, logp_V[None], ref_V[None]))

    wanted = jax.grad(exact)(logits_V)
    grads = {k: jax.grad(expected)(logits_V, k) for k in ("k1", "k2", "k3")}
  np.testing.assert_allclose(grads["k1"], 0, atol=1e-15)
  np.testing.assert_allclose(grads["k2"], wanted, rtol=1e-12)
  assert np.abs(grads["k3"] - wanted).max() > 0.05


@pytest.mark.parametrize("d", [-8.0, -3.0, -0.1, 0.2, 5.0])
def test_the_logged_unbiased_k3_is_the_trained_one(d):
  """Its gradient is the derivative of the value r k3, without bounds."""
  old, ref = -2.5, -2.0
  with jax.enable_x64(True):

    def value(logp):
      return jnp.exp(logp - old) * (jnp.exp(ref - logp) - 1 - (ref - logp))

    def got(logp):
      arrays = (jnp.full((1, 1), x) for x in (ref, old))
      return kl_lib.k3_unbiased(logp[None, None], *arrays).sum()

    logp = jnp.float64(ref + d)
    pairs = jax.value_and_grad(got)(logp), jax.value_and_grad(value)(logp)
    np.testing.assert_allclose(*pairs, rtol=1e-9)


@pytest.mark.parametrize("kind", ["k3_unbiased", "k2"])
def test_only_the_unbiased_k3_has_the_gradient_off_policy(kind):
  """Three tokens by their probability under another policy."""
  with jax.enable_x64(True):
    old_V = jnp.log(jnp.array([0.6, 0.1, 0.3]))
    ref_V = jnp.log(jnp.array([0.2, 0.5, 0.3]))

    def exact(logits_V):
      logp_V = jax.nn.log_softmax(logits_V)
      return jnp.sum(jnp.exp(logp_V) * (logp_V - ref_V))

    def expected(logits_V):
      logp_V = jax.nn.log_softmax(logits_V)
      some = (x[None] for x in (logp_V, ref_V, old_V))
      return jnp.sum(jnp.exp(old_V) * kl_lib.estimate(kind, *some))

    logits_V = jnp.array([0.3, -0.8, 1.1])
    gap_V = jax.grad(expected)(logits_V) - jax.grad(exact)(logits_V)
    gap = exact(logits_V) - expected(logits_V)
  if kind == "k3_unbiased":
    np.testing.assert_allclose([*gap_V, gap], 0, atol=1e-15)
  else:
    assert np.abs(gap_V).max() > 0.05


def test_wrong_kinds_and_shapes():
  with pytest.raises(AssertionError):
    kl_lib.estimate("k1", jnp.zeros((2, 1)), jnp.zeros((2, 3)))
  assert {*kl_lib.ESTIMATORS} == {*KINDS}  # all in test_kl_by_hand
  names = {*KINDS, "absolute", "estimate"} - {"abs"}
  assert public(kl_lib) == names
  with pytest.raises(ValueError, match="kl kind 'k4': one of k1, k2, k3"):
    kl_lib.estimate("k4", jnp.zeros((1, 1)), jnp.zeros((1, 1)))
