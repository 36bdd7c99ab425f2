"""Factors per token or row: by hand, against NumPy, and invariances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import corrections

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
LEVEL = pytest.mark.parametrize("level", corrections.LEVELS)
NEAR = {
    "float32": dict(rtol=1e-5, atol=1e-6),
    "float64": dict(rtol=1e-11, atol=1e-12),
}
QUICK = settings(max_examples=12, deadline=None, derandomize=True)
LN2 = np.log(2)
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
VALUES_BT = hnp.arrays(float, (4, 5), elements=EIGHTHS)
MASK_BT = hnp.arrays(bool, (4, 5))


@functools.cache
def program(name, static):
  return jax.jit(
      functools.partial(getattr(corrections, name), **dict(static)),
      compiler_options={"xla_backend_optimization_level": 0},
  )


def call(name, *arrays, dtype="float32", **keywords):
  """One function under jit, in one precision; only words are static."""
  words = {k: x for k, x in keywords.items() if isinstance(x, str)}
  numbers = {k: x for k, x in keywords.items() if k not in words}
  with jax.enable_x64(dtype == "float64"):
    arrays = (
        jnp.array(x, dtype if np.asarray(x).dtype.kind == "f" else None)
        for x in arrays
    )
    out = program(name, tuple(words.items()))(*arrays, **numbers)
  assert out.dtype in (dtype, bool)
  return np.asarray(out)


# --- the sampler's mismatch --------------------------------------------------

# pi_old / pi_sampler: 4, 1 and 1/16 in a row (product 1/4, geometric mean
# (1/4)^(1/3)), a hole in it, a row of one token and one of none.
RATIOS = np.array([[4, 1, 99, 1 / 16], [8, 99, 99, 99], [99, 99, 99, 99]])
RATIO_MASK = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]) > 0
GEOMETRIC = 0.25 ** (1 / 3)  # .63
BY_HAND = {  # level: (min(ratio, 2), the ratio if it is in [1/2, 5])
    "token": ([[2, 1, 0, 1 / 16], [2, 0, 0, 0]], [[4, 1, 0, 0], [0] * 4]),
    "sequence": ([[0.25, 0.25, 0, 0.25], [2, 0, 0, 0]], [[0] * 4, [0] * 4]),
    "geometric": (
        [[GEOMETRIC, GEOMETRIC, 0, GEOMETRIC], [2, 0, 0, 0]],
        [[GEOMETRIC, GEOMETRIC, 0, GEOMETRIC], [0] * 4],
    ),
}


@DTYPES
@LEVEL
def test_mismatch_by_hand(level, dtype):
  sampler = np.full(RATIOS.shape, -3.0)
  some = np.log(RATIOS) - 3, sampler, RATIO_MASK
  word = dict(correction_level=level, dtype=dtype)
  truncated, inside = BY_HAND[level]
  got = call("truncate", *some, correction_high=2.0, **word)
  np.testing.assert_allclose(got, [*truncated, [0] * 4], **NEAR[dtype])
  got = call(
      "two_sided", *some, correction_low=0.5, correction_high=5.0, **word
  )
  np.testing.assert_allclose(got, [*inside, [0] * 4], **NEAR[dtype])


@DTYPES
@LEVEL
@given(old_BT=VALUES_BT, sampler_BT=VALUES_BT, mask_BT=MASK_BT)
@QUICK
def test_mismatch_matches_numpy(level, dtype, old_BT, sampler_BT, mask_BT):
  some, word = (old_BT, sampler_BT, mask_BT), dict(correction_level=level)
  hidden = *(np.where(mask_BT, x, np.nan) for x in some[:2]), mask_BT
  truncated = call("truncate", *some, dtype=dtype, correction_high=1.7, **word)
  bounds = dict(correction_low=0.3, correction_high=3.1)
  inside = call("two_sided", *some, dtype=dtype, **bounds, **word)
  wanted = reference.truncate(*some, 1.7, level)
  np.testing.assert_allclose(truncated, wanted, **NEAR[dtype])
  wanted = reference.two_sided(*some, 0.3, 3.1, level)
  np.testing.assert_allclose(inside, wanted, **NEAR[dtype])
  # What the mask hides may be anything, and rows do not mix.
  got = call("truncate", *hidden, dtype=dtype, correction_high=1.7, **word)
  np.testing.assert_array_equal(got, truncated)
  back = call(
      "two_sided", *(x[::-1] for x in some), dtype=dtype, **bounds, **word
  )
  np.testing.assert_array_equal(back[::-1], inside)
  agreed = call("truncate", old_BT, old_BT, mask_BT, dtype=dtype, **word)
  np.testing.assert_array_equal(agreed, mask_BT)


@LEVEL
def test_mismatch_stays_finite(level):
  """|log ratio| is clamped to 20: e^20 passes no cap but one above it."""
  old, ones = np.array([[-1e4, 0.0]]), np.ones((1, 2))
  got = call(
      "truncate",
      old,
      0 * old,
      ones,
      correction_high=1e30,
      correction_level=level,
  )
  wanted = [np.exp(-20), 1 if level == "token" else np.exp(-20)]
  np.testing.assert_allclose(got[0], wanted, rtol=1e-5)
  got = call(
      "truncate",
      0 * old,
      old,
      ones,
      correction_high=1e30,
      correction_level=level,
  )
  np.testing.assert_allclose(got[0], 1 / np.array(wanted), rtol=1e-5)


@pytest.mark.parametrize("name", ["truncate", "two_sided"])
def test_unknown_level(name):
  with pytest.raises(ValueError, match="level 'row': one of token, sequence"):
    getattr(corrections, name)(*[jnp.ones((1, 1))] * 3, correction_level="row")
  with pytest.raises(AssertionError):
    getattr(corrections, name)(*map(jnp.ones, [(1, 2), (1, 1), (1, 2)]))


@DTYPES
def test_past_weights_by_hand(dtype):
  """Whole responses: 2 * 3/4 = 3/2; 4 * 2 = 8, capped at 2; an empty place."""
  now = np.log([[2, 0.75, 9], [4, 2, 9], [9, 9, 9]])
  mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]]) > 0
  got = call("past_weights", now, 0 * now, mask, dtype=dtype)
  np.testing.assert_allclose(got, [1.5, 2, 0], **NEAR[dtype])
  got = call("past_weights", now, 0 * now, mask, dtype=dtype, limit=10.0)
  np.testing.assert_allclose(got, [1.5, 8, 0], **NEAR[dtype])


@DTYPES
@given(now_HT=VALUES_BT, then_HT=VALUES_BT, mask_HT=MASK_BT)
@QUICK
def test_past_weights_match_numpy(dtype, now_HT, then_HT, mask_HT):
  got = call("past_weights", now_HT, then_HT, mask_HT, dtype=dtype, limit=3.0)
  wanted = reference.past_weights(now_HT, then_HT, mask_HT, 3.0)
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])


# --- some tokens only --------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        # Of 7 tokens: 0 is still one; 2/7 and less are two; .4 * 7 = 2.8 is
        # three, and so is the fourth, for it ties with the third.
        (0.0, [[9, 0, 0, 0], [0, 0, 0, 0]]),
        (0.1, [[9, 0, 0, 0], [0, 0, 0, 0]]),
        (0.25, [[9, 0, 0, 0], [0, 8, 0, 0]]),
        (0.4, [[9, 0, 3, 0], [0, 8, 3, 0]]),
        (1.0, [[9, -1, 3, 0], [-2, 8, 3, -5]]),
    ],
)
def test_top_share_by_hand(share, wanted):
  values = np.array([[9.0, -1, 3, 99], [-2, 8, 3, -5]])
  mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]) > 0
  got = call("top_share", values, mask, share=share)
  assert (values * got).tolist() == wanted


@DTYPES
@given(
    values_BT=VALUES_BT,
    mask_BT=MASK_BT,
    share=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
    distinct=st.booleans(),
)
@QUICK
def test_top_share_counts(dtype, values_BT, mask_BT, share, distinct):
  if distinct:  # no ties: the number is ceil(share * tokens), at least one
    values_BT = values_BT + np.arange(20).reshape(4, 5) / 1024
  got = call("top_share", values_BT, mask_BT, dtype=dtype, share=share)
  wanted = reference.top_share(values_BT, mask_BT, share)
  np.testing.assert_array_equal(got, wanted)
  assert not got[~mask_BT].any()
  if distinct and mask_BT.any():
    assert got.sum() == max(np.ceil(share * mask_BT.sum()), 1)
  hidden_BT = np.where(mask_BT, values_BT, np.nan)
  again = call("top_share", hidden_BT, mask_BT, dtype=dtype, share=share)
  np.testing.assert_array_equal(again, got)


@DTYPES
def test_covariance_by_hand(dtype):
  """log p -1, -2, -6 (mean -3), A 1, 0, 2 (mean 1): 2 * 0, 1 * -1, -3 * 1."""
  logps, advantage = [[-1.0, 99.0], [-2.0, -6.0]], [[1.0, 99.0], [0.0, 2.0]]
  mask = np.array([[1, 0], [1, 1]]) > 0
  got = call("covariance", logps, advantage, mask, dtype=dtype)
  np.testing.assert_allclose(got, [[0, 0], [-1, -3]], **NEAR[dtype])


@DTYPES
@given(logps_BT=VALUES_BT, advantages_BT=VALUES_BT, mask_BT=MASK_BT)
@QUICK
def test_covariance_matches_numpy(dtype, logps_BT, advantages_BT, mask_BT):
  some = logps_BT, advantages_BT
  got = call("covariance", *some, mask_BT, dtype=dtype)
  wanted = reference.covariance(*some, mask_BT)
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  hidden = [np.where(mask_BT, x, np.nan) for x in some]
  np.testing.assert_array_equal(
      call("covariance", *hidden, mask_BT, dtype=dtype), got
  )
  moved = call("covariance", logps_BT - 1, 2 * advantages_BT + 3, mask_BT)
  np.testing.assert_allclose(moved, 2 * wanted, rtol=1e-4, atol=1e-4)


@DTYPES
def test_clip_cov_by_hand(dtype):
  """Candidates are 2, 3, 4 of the mask (1 and 5 are bounds); .3 * 7 = 2.1.

  The two with the least uniforms are drawn: 4 (.1) and 2 (.4), not 3 (.8). A
  share of nothing still draws one; of everything, all candidates.
  """
  cov = [[2.0, 3.0, 4.0, 3.0], [1.0, 5.0, 0.0, -4.0]]
  mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]) > 0
  uniform = [[0.4, 0.8, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]]
  rest = [1, 1, 1, 1]
  for share, wanted in {
      0.3: [0, 1, 0, 1],
      0.0: [1, 1, 0, 1],
      1.0: [0, 0, 0, 1],
  }.items():
    got = call("clip_cov", cov, mask, uniform, dtype=dtype, cov_share=share)
    assert got.dtype == dtype and got.tolist() == [wanted, rest]


@DTYPES
@given(
    cov_BT=VALUES_BT,
    mask_BT=MASK_BT,
    share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@QUICK
def test_clip_cov_draws_candidates(dtype, cov_BT, mask_BT, share, seed):
  uniform_BT = np.random.default_rng(seed).permutation(20).reshape(4, 5) / 20
  keys = dict(cov_share=share, cov_low=-0.5, cov_high=1.25)
  got = call("clip_cov", cov_BT, mask_BT, uniform_BT, dtype=dtype, **keys)
  wanted = reference.clip_cov(cov_BT, mask_BT, uniform_BT, share, -0.5, 1.25)
  np.testing.assert_array_equal(got, wanted)
  able_BT = mask_BT & (cov_BT > -0.5) & (cov_BT < 1.25)
  assert set(got[~able_BT]) <= {1}, "others keep their gradient"
  count = max(int(share * mask_BT.sum() + 1e-9), 1)
  assert (got == 0).sum() == min(count, able_BT.sum())
  hidden_BT = np.where(mask_BT, cov_BT, np.nan)
  again = call("clip_cov", hidden_BT, mask_BT, uniform_BT, dtype=dtype, **keys)
  np.testing.assert_array_equal(again, got)


# --- lengths -----------------------------------------------------------------


@DTYPES
def test_length_factor_by_hand(dtype):
  """Lengths 4, 1, 2 and an empty row: median 2, factors (l / 2)^-1/2."""
  mask = np.arange(4) < np.array([4, 1, 2, 0])[:, None]
  got = call("length_factor", mask * 1.0, dtype=dtype, alpha=0.5)
  np.testing.assert_allclose(got, [2**-0.5, 2**0.5, 1, 1], **NEAR[dtype])


@DTYPES
@given(mask_BT=MASK_BT, alpha=st.sampled_from([0.0, 0.25, 0.5]))
@QUICK
def test_length_factor_matches_numpy(dtype, mask_BT, alpha):
  """Even counts, too: then the median lies between two lengths."""
  got = call("length_factor", mask_BT * 1.0, dtype=dtype, alpha=alpha)
  wanted = reference.length_factor(mask_BT, alpha)
  np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  assert alpha or (got == 1).all()
  back = call("length_factor", mask_BT[::-1] * 1.0, dtype=dtype, alpha=alpha)
  np.testing.assert_array_equal(back[::-1], got)
  # Padding is no response.
  longer_BT = np.concatenate([mask_BT, np.zeros((1, 5))]) * 1.0
  more = call("length_factor", longer_BT, dtype=dtype, alpha=alpha)
  np.testing.assert_array_equal(more, [*got, 1])
