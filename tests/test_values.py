"""What a critic learns, and how well it is said to do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import values

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
NEAR = {
    "float32": dict(rtol=1e-5, atol=2e-6),
    "float64": dict(rtol=1e-11, atol=1e-12),
}
QUICK_JIT = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
QUICK = settings(max_examples=12, deadline=None, derandomize=True)
VALUES_BT = hnp.arrays(
    float, (3, 4), elements=st.integers(-24, 24).map(lambda n: n / 8)
)
MASK_BT = hnp.arrays(bool, (3, 4))
STATIC = ("clip", "bins", "low", "high")  # numbers that shape the program


@functools.cache
def program(name, static):
  return QUICK_JIT(functools.partial(getattr(values, name), **dict(static)))


def call(name, *arrays, dtype="float32", **keywords):
  static = tuple((k, x) for k, x in keywords.items() if k in STATIC)
  numbers = {k: x for k, x in keywords.items() if k not in STATIC}
  with jax.enable_x64(dtype == "float64"):
    arrays = (
        x if np.asarray(x).dtype == bool else jnp.array(x, dtype)
        for x in arrays
    )
    out = program(name, static)(*arrays, **numbers)
  assert out.dtype == dtype
  return np.asarray(out)


@functools.cache
def gradient(name, static):
  f = functools.partial(getattr(values, name), **dict(static))
  return QUICK_JIT(jax.grad(lambda *arrays: jnp.sum(f(*arrays))))


def slopes(name, *arrays, **static):
  """Gradient in the first array of the sum, in float64."""
  with jax.enable_x64(True):
    arrays = [jnp.array(x, float) for x in arrays]
    return np.asarray(gradient(name, tuple(static.items()))(*arrays))


# --- regression --------------------------------------------------------------

# clip 1/2, V_old = 0, so V counts as at most 1/2 from 0 where that is worse:
#   V    R   (V-R)^2  (clip V - R)^2
#   .25  1   .5625    .5625            free: half of it, gradient V - R
#   2    1   1        .25              V is past R: the larger one, free
#   2    3   1        6.25             clipped: the larger one, no gradient
#   -2   0   4        .25              free
#   -2  -3   1        6.25             clipped
V, R = [[0.25, 2, 2, -2, -2]], [[1.0, 1, 3, 0, -3]]


@DTYPES
def test_value_loss_by_hand(dtype):
  old = np.zeros((1, 5))
  got = call("value_loss", V, old, R, dtype=dtype, clip=0.5)
  np.testing.assert_allclose(
      got, [[0.28125, 0.5, 3.125, 2, 3.125]], **NEAR[dtype]
  )
  grad = slopes("value_loss", V, old, R, clip=0.5)
  np.testing.assert_allclose(grad, [[-0.75, 1, 0, -2, 0]], rtol=1e-12)
  off = call("value_loss", V, old, R, dtype=dtype, clip=0.0)
  np.testing.assert_allclose(off, [[0.28125, 0.5, 0.5, 2, 0.5]], **NEAR[dtype])


@DTYPES
@given(values_BT=VALUES_BT, old_BT=VALUES_BT, returns_BT=VALUES_BT)
@QUICK
def test_value_loss_matches_numpy(dtype, values_BT, old_BT, returns_BT):
  some = values_BT, old_BT, returns_BT
  by_token = np.vectorize(reference.value_loss)
  for clip in (0.3, 0.0):
    got = call("value_loss", *some, dtype=dtype, clip=clip)
    np.testing.assert_allclose(got, by_token(*some, clip), **NEAR[dtype])


def test_shapes_are_checked():
  with pytest.raises(AssertionError):
    values.value_loss(*map(jnp.zeros, [(2, 3), (2, 1), (2, 3)]))


# --- classification ----------------------------------------------------------


@DTYPES
def test_two_hot_by_hand(dtype):
  """Points -1, 0, 1, 2, 3: 1/4 is a quarter of the way from 0 to 1."""
  returns = [0.25, -1, 3, 2.5, 0, -7, 99]
  wanted = [
      [0, 0.75, 0.25, 0, 0],
      [1, 0, 0, 0, 0],
      [0, 0, 0, 0, 1],
      [0, 0, 0, 0.5, 0.5],
      [0, 1, 0, 0, 0],
      [1, 0, 0, 0, 0],  # clipped
      [0, 0, 0, 0, 1],
  ]
  got = call("two_hot", returns, dtype=dtype, bins=5, low=-1.0, high=3.0)
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  assert values.support(5, -1.0, 3.0).tolist() == [-1, 0, 1, 2, 3]


@DTYPES
@given(
    returns=hnp.arrays(float, 6, elements=st.floats(-4, 4, width=16)),
    bins=st.sampled_from([2, 7, 51]),
)
@QUICK
def test_two_hot_keeps_the_mean(dtype, returns, bins):
  low, high = -2.0, 3.0
  got = call("two_hot", returns, dtype=dtype, bins=bins, low=low, high=high)
  near = dict(rtol=1e-4, atol=2e-5) if dtype == "float32" else NEAR[dtype]
  wanted = [reference.two_hot(r, bins, low, high) for r in returns]
  np.testing.assert_allclose(got, wanted, **near)
  np.testing.assert_allclose(got.sum(-1), 1, **near)
  seen = np.abs(got) > near["atol"]
  assert (got[seen] > 0).all() and (seen.sum(-1) <= 2).all()
  with jax.enable_x64(dtype == "float64"):
    points = np.asarray(values.support(bins, low, high))
  np.testing.assert_allclose(got @ points, np.clip(returns, low, high), **near)


@DTYPES
def test_categorical_loss_by_hand(dtype):
  """Points 0, 1, 2 with softmax 1/2, 1/4, 1/4; R = 1/2 is half 0, half 1.

  (ln 2 + ln 4) / 2 = 1.5 ln 2, and d loss / d logits = softmax - target.
  """
  logits, returns = np.log([[[2.0, 1.0, 1.0]]]), [[0.5]]
  some = dict(low=0.0, high=2.0)
  got = call("categorical_loss", logits, returns, dtype=dtype, **some)
  np.testing.assert_allclose(got, [[1.5 * np.log(2)]], **NEAR[dtype])
  grad = slopes("categorical_loss", logits, returns, **some)
  np.testing.assert_allclose(grad, [[[0, -0.25, 0.25]]], atol=1e-15)


@DTYPES
@given(returns_BT=VALUES_BT, seed=st.integers(0, 99))
@QUICK
def test_categorical_loss_matches_numpy(dtype, returns_BT, seed):
  logits_BTN = np.random.default_rng(seed).normal(0, 2, (3, 4, 5))
  some = dict(low=-2.0, high=2.5)
  got = call("categorical_loss", logits_BTN, returns_BT, dtype=dtype, **some)
  wanted = [
      [
          reference.categorical_loss(*token, -2.0, 2.5)
          for token in zip(*row, strict=True)
      ]
      for row in zip(logits_BTN, returns_BT, strict=True)
  ]
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])


@given(returns_BT=VALUES_BT)
@QUICK
def test_categorical_loss_is_least_at_the_target(returns_BT):
  """Logits of the two-hot return itself: no gradient, in any direction."""
  some = dict(low=-2.0, high=2.5)
  target = call("two_hot", returns_BT, dtype="float64", bins=4, **some)
  logits_BTN = np.log(np.maximum(target, 1e-20))
  grad = slopes("categorical_loss", logits_BTN, returns_BT, **some)
  np.testing.assert_allclose(grad, 0, atol=1e-12)
  moved = slopes(
      "categorical_loss", logits_BTN * 0.9, returns_BT - 0.25, **some
  )
  np.testing.assert_allclose(moved.sum(-1), 0, atol=1e-12)


# --- how well it does --------------------------------------------------------


@DTYPES
def test_explained_variance_by_hand(dtype):
  """Returns 0, 1, 2: variance 2/3 (the mask hides a wild token).

  V = 0, 1/2, 1: errors 0, 1/2, 1, variance 1/6: 1 - 1/4 = 3/4.
  V = 2, 1, 0:   errors -2, 0, 2, variance 8/3: 1 - 4 = -3.
  """
  returns, mask = [[0.0, 1, 2, 99]], np.array([[1, 1, 1, 0]]) > 0
  for guess, wanted in [
      ([[0, 0.5, 1, -50]], 0.75),
      ([[2, 1, 0, -50]], -3),
      ([[0, 1, 2, -50]], 1),
      ([[7, 8, 9, -50]], 1),  # an offset does not count
      ([[5, 5, 5, -50]], 0),  # as good as a constant
  ]:
    got = call("explained_variance", guess, returns, mask, dtype=dtype)
    np.testing.assert_allclose(got, wanted, **NEAR[dtype])


@DTYPES
@given(values_BT=VALUES_BT, returns_BT=VALUES_BT, mask_BT=MASK_BT)
@QUICK
def test_explained_variance_matches_numpy(
    dtype, values_BT, returns_BT, mask_BT
):
  some = values_BT, returns_BT, mask_BT
  got = call("explained_variance", *some, dtype=dtype)
  wanted = reference.explained_variance(*some)
  near = dict(rtol=1e-4, atol=1e-4) if dtype == "float32" else NEAR[dtype]
  np.testing.assert_allclose(got, wanted, **near)
  assert got <= 1
  hidden = [np.where(mask_BT, x, np.nan) for x in some[:2]]
  np.testing.assert_array_equal(
      call("explained_variance", *hidden, mask_BT, dtype=dtype), got
  )
  moved = [2 * x[::-1] for x in some[:2]]
  again = call(
      "explained_variance",
      moved[0] + 1,
      moved[1] - 3,
      mask_BT[::-1],
      dtype=dtype,
  )
  np.testing.assert_allclose(again, wanted, **near)


@DTYPES
@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -1.0,
        0.7,
    ],
)
def test_equal_returns_explain_nothing(value, dtype):
  """Whatever the critic says: 0, not minus a number that rounding made up."""
  mask = np.arange(12).reshape(3, 4) < 7
  for guess in (np.full((3, 4), value), np.arange(12.0).reshape(3, 4)):
    got = call(
        "explained_variance", guess, np.full((3, 4), value), mask, dtype=dtype
    )
    assert got == 0


# --- the mixture -------------------------------------------------------------


@DTYPES
def test_mixture_by_hand(dtype):
  """w = .8 exp(-ln 2) / (1 + 3 * .5) = .16: .16 * 10 + .84 * 20 = 18.4.

  Reliability counts as 0 below (w = .4) and as 1 above (w = .1).
  """
  keys = dict(mix=0.8, mix_decay=np.log(2), mix_reliability=3.0)
  for reliability, wanted in [(0.5, 18.4), (-9.0, 16.0), (7.0, 19.0)]:
    got = call(
        "mixture", [[10.0]], [[20.0]], 1.0, reliability, dtype=dtype, **keys
    )
    np.testing.assert_allclose(got, [[wanted]], **NEAR[dtype])


@DTYPES
@given(
    old_BT=VALUES_BT,
    values_BT=VALUES_BT,
    progress=st.sampled_from([0.0, 0.5, 1.0]),
    reliability=st.sampled_from([-1.0, 0.0, 0.25, 1.0]),
)
@QUICK
def test_mixture_matches_numpy(dtype, old_BT, values_BT, progress, reliability):
  some = old_BT, values_BT, progress, reliability
  keys = dict(mix=0.75, mix_decay=2.0, mix_reliability=3.0)
  got = call("mixture", *some, dtype=dtype, **keys)
  wanted = reference.mixture(*some, *keys.values())
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  # The ends: none of the old critic, all of it.
  none = call("mixture", *some, dtype=dtype, mix=0.0)
  np.testing.assert_array_equal(none, values_BT)
  keys = dict(mix=1.0, mix_decay=0.0, mix_reliability=0.0)
  all_ = call("mixture", *some, dtype=dtype, **keys)
  np.testing.assert_array_equal(all_, old_BT)
