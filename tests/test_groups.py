"""Statistics of groups, rows and batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import groups

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
NEAR = {
    "float32": dict(rtol=1e-5, atol=1e-6),
    "float64": dict(rtol=1e-12, atol=1e-13),
}
QUICK = settings(max_examples=15, deadline=None, derandomize=True)
# Eighths: their sums are exact in fp32.
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
VALUES_B = hnp.arrays(float, 6, elements=EIGHTHS)
IDS_B = hnp.arrays(
    np.int32, 6, elements=st.sampled_from([0, 9, -1, 2**31 - 1, -(2**31)])
)
VALUES_BT = hnp.arrays(float, (4, 5), elements=EIGHTHS)
MASK_BT = hnp.arrays(bool, (4, 5))


@functools.cache
def program(name):
  return jax.jit(
      getattr(groups, name),
      compiler_options={"xla_backend_optimization_level": 0},
  )


def call(name, values, where, dtype="float32", **keywords):
  """One function under jit, in one precision."""
  with jax.enable_x64(dtype == "float64"):
    out = program(name)(jnp.array(values, dtype), jnp.array(where), **keywords)
  assert out.dtype == dtype
  return np.asarray(out)


@DTYPES
def test_groups_by_hand(dtype):
  """Group 7 is rows 0, 2, 3 (1, 5, -2); group -4 is row 1 alone."""
  some = [1, 8, 5, -2], [7, -4, 7, 7]
  for name, wanted in {
      "group_sum": [4, 8, 4, 4],
      "group_max": [5, 8, 5, 5],
      "group_min": [-2, 8, -2, -2],
  }.items():
    assert call(name, *some, dtype).tolist() == wanted


@DTYPES
@pytest.mark.parametrize("name", ["group_sum", "group_max", "group_min"])
@given(values_B=VALUES_B, ids_B=IDS_B, data=st.data())
@QUICK
def test_groups_match_numpy(name, dtype, values_B, ids_B, data):
  got = call(name, values_B, ids_B, dtype)
  np.testing.assert_array_equal(got, getattr(reference, name)(values_B, ids_B))
  order = np.array(data.draw(st.permutations(range(6))))
  moved = call(name, values_B[order], ids_B[order], dtype)
  np.testing.assert_array_equal(moved, got[order])
  # Names of groups mean nothing, nor does the sign of an id.
  _, other_B = np.unique(-ids_B.astype(np.int64), return_inverse=True)
  np.testing.assert_array_equal(
      call(name, values_B, np.int32(50 - other_B), dtype), got
  )


@DTYPES
def test_means_by_hand(dtype):
  """Row means 2 (of 1 and 3), 8 and, of nothing, 0; (1 + 3 + 8) / 3 = 4."""
  values = [[1, 99, 3], [8, 99, 99], [99, 99, 99]]
  mask = [[1, 0, 1], [1, 0, 0], [0, 0, 0]]
  assert call("row_mean", values, mask, dtype).tolist() == [2, 8, 0]
  assert call("token_mean", values, mask, dtype) == 4
  assert call("token_mean", values, np.zeros((3, 3)), dtype) == 0


@DTYPES
def test_whiten_by_hand(dtype):
  """1, 3, 8: mean 4, squares 9 + 1 + 16 = 26, unbiased variance 13.

  eps is added to the variance: with eps 3 the divisor is sqrt(16) = 4.
  """
  values, mask = [[1, 99, 3], [8, 99, 99]], [[1, 0, 1], [1, 0, 0]]
  got = call("whiten", values, mask, dtype)
  wanted = np.array([[-3, 0, -1], [4, 0, 0]]) / np.sqrt(13 + 1e-8)
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  got = call("whiten", values, mask, dtype, eps=3.0)
  assert got.tolist() == [[-0.75, 0, -0.25], [1, 0, 0]]


@DTYPES
@given(values_BT=VALUES_BT, mask_BT=MASK_BT, data=st.data())
@QUICK
def test_rows_and_batches_match_numpy(dtype, values_BT, mask_BT, data):
  order = np.array(data.draw(st.permutations(range(4))))
  for name in ("row_mean", "token_mean", "whiten"):
    got = call(name, values_BT, mask_BT, dtype)
    wanted = getattr(reference, name)(values_BT, mask_BT)
    np.testing.assert_allclose(got, wanted, **NEAR[dtype], err_msg=name)
    moved = call(name, values_BT[order], mask_BT[order], dtype)
    wanted = got if name == "token_mean" else got[order]
    np.testing.assert_allclose(moved, wanted, **NEAR[dtype], err_msg=name)
    # Padding, and whatever the mask hides.
    hidden_BT = np.where(mask_BT, values_BT, np.nan)
    np.testing.assert_array_equal(call(name, hidden_BT, mask_BT, dtype), got)


@DTYPES
@given(values_BT=VALUES_BT, mask_BT=MASK_BT)
@QUICK
def test_whitened(dtype, values_BT, mask_BT):
  """Mean 0, variance 1 (up to eps), whatever the origin and the unit."""
  got = call("whiten", values_BT, mask_BT, dtype)
  seen = values_BT[mask_BT]
  assert (got[~mask_BT] == 0).all()
  if len(set(seen)) < 2:
    assert (got == 0).all()
    return
  near = dict(rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(got[mask_BT].mean(), 0, **near)
  np.testing.assert_allclose(got[mask_BT].var(ddof=1), 1, **near)
  moved = call("whiten", 8 * values_BT - 3, mask_BT, dtype)
  np.testing.assert_allclose(moved, got, **near)


@DTYPES
@pytest.mark.parametrize("value", [0.7, 0.1, -1e10])
def test_whitening_equal_tokens_makes_no_signal(value, dtype):
  """The mean of seven float32 0.7 is not 0.7."""
  mask = np.arange(10).reshape(2, 5) < 7
  assert (call("whiten", np.full((2, 5), value), mask, dtype) == 0).all()
