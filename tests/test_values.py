"""Losses of the critic and its quality: by hand and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from by_hand import (
    DTYPES,
    NEAR,
    QUICK,
    bools,
    call,
    close,
    floats,
    public,
    same,
)
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import values

STATIC = ("clip", "bins", "low", "high")  # numbers that shape the program


def critic(name, *inputs, dtype="float32", **keywords):
  function = getattr(values, name)
  return call(function, *inputs, dtype=dtype, static=STATIC, **keywords)


def slopes(name, *inputs, **keywords):
  """Gradient in the first array of the sum, in float64."""

  def total(*arrays):
    return jnp.sum(getattr(values, name)(*arrays, **keywords))

  with jax.enable_x64(True):
    return np.asarray(jax.grad(total)(*(jnp.array(x, float) for x in inputs)))


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
  got = critic("value_loss", V, old, R, dtype=dtype, clip=0.5)
  close(got, [[0.28125, 0.5, 3.125, 2, 3.125]], **NEAR[dtype])
  grad = slopes("value_loss", V, old, R, clip=0.5)
  close(grad, [[-0.75, 1, 0, -2, 0]], rtol=1e-12)
  default = critic("value_loss", V, old, R, dtype=dtype)
  same(default, got)
  off = critic("value_loss", V, old, R, dtype=dtype, clip=0.0)
  close(off, [[0.28125, 0.5, 0.5, 2, 0.5]], **NEAR[dtype])


@DTYPES
@given(values_BT=floats(3, 4), old_BT=floats(3, 4), returns_BT=floats(3, 4))
@QUICK
def test_value_loss_matches_numpy(dtype, values_BT, old_BT, returns_BT):
  some = values_BT, old_BT, returns_BT
  by_token = np.vectorize(reference.value_loss)
  for clip in (0.3, 0.0):
    got = critic("value_loss", *some, dtype=dtype, clip=clip)
    close(got, by_token(*some, clip), **NEAR[dtype])


def test_every_function_has_numbers_by_hand():
  """Each has a test of that name; `support` is in that of `two_hot`."""
  tested = {x[5:-8] for x in globals() if x.endswith("_by_hand")}
  assert public(values) <= tested | {"support"}


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
  got = critic("two_hot", returns, dtype=dtype, bins=5, low=-1.0, high=3.0)
  close(got, wanted, **NEAR[dtype])
  assert values.support(5, -1.0, 3.0).tolist() == [-1, 0, 1, 2, 3]


@DTYPES
@given(
    returns=hnp.arrays(float, 6, elements=st.floats(-4, 4, width=16)),
    bins=st.sampled_from([2, 7, 51]),
)
@QUICK
def test_two_hot_keeps_the_mean(dtype, returns, bins):
  low, high = -2.0, 3.0
  got = critic("two_hot", returns, dtype=dtype, bins=bins, low=low, high=high)
  near = dict(rtol=1e-4, atol=2e-5) if dtype == "float32" else NEAR[dtype]
  wanted = [reference.two_hot(r, bins, low, high) for r in returns]
  close(got, wanted, **near)
  close(got.sum(-1), 1, **near)
  seen = np.abs(got) > near["atol"]
  assert (got[seen] > 0).all() and (seen.sum(-1) <= 2).all()
  with jax.enable_x64(dtype == "float64"):
    points = np.asarray(values.support(bins, low, high))
  close(got @ points, np.clip(returns, low, high), **near)


@DTYPES
def test_categorical_loss_by_hand(dtype):
  """Points 0, 1, 2 with softmax 1/2, 1/4, 1/4; R = 1/2 is half 0, half 1.

  (ln 2 + ln 4) / 2 = 1.5 ln 2, and d loss / d logits = softmax - target.
  """
  logits, returns = np.log([[[2.0, 1.0, 1.0]]]), [[0.5]]
  some = dict(low=0.0, high=2.0)
  got = critic("categorical_loss", logits, returns, dtype=dtype, **some)
  close(got, [[1.5 * np.log(2)]], **NEAR[dtype])
  grad = slopes("categorical_loss", logits, returns, **some)
  close(grad, [[[0, -0.25, 0.25]]], atol=1e-15)


@DTYPES
@given(returns_BT=floats(3, 4), seed=st.integers(0, 99))
@QUICK
def test_categorical_loss_matches_numpy(dtype, returns_BT, seed):
  logits_BTJ = np.random.default_rng(seed).normal(0, 2, (3, 4, 5))
  some = dict(low=-2.0, high=2.5)
  got = critic("categorical_loss", logits_BTJ, returns_BT, dtype=dtype, **some)
  wanted = [
      [
          reference.categorical_loss(*token, -2.0, 2.5)
          for token in zip(*row, strict=True)
      ]
      for row in zip(logits_BTJ, returns_BT, strict=True)
  ]
  close(got, wanted, **NEAR[dtype])


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
    got = critic("explained_variance", guess, returns, mask, dtype=dtype)
    close(got, wanted, **NEAR[dtype])


@DTYPES
@given(values_BT=floats(3, 4), returns_BT=floats(3, 4), mask_BT=bools(3, 4))
@QUICK
def test_explained_variance_matches_numpy(
    dtype, values_BT, returns_BT, mask_BT
):
  some = values_BT, returns_BT, mask_BT
  got = critic("explained_variance", *some, dtype=dtype)
  wanted = reference.explained_variance(*some)
  near = dict(rtol=1e-4, atol=1e-4) if dtype == "float32" else NEAR[dtype]
  close(got, wanted, **near)
  assert got <= 1
  hidden = [np.where(mask_BT, x, np.nan) for x in some[:2]]
  same(critic("explained_variance", *hidden, mask_BT, dtype=dtype), got)
  moved = [2 * x[::-1] for x in some[:2]]
  again = critic(
      "explained_variance",
      moved[0] + 1,
      moved[1] - 3,
      mask_BT[::-1],
      dtype=dtype,
  )
  close(again, wanted, **near)


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
    got = critic(
        "explained_variance", guess, np.full((3, 4), value), mask, dtype=dtype
    )
    assert got == 0
