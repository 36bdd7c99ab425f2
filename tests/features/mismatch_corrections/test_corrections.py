"""Corrections of the sampler's mismatch: by hand, NumPy, and invariances."""

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
from hypothesis import given

from rl_reason.features.mismatch_corrections import corrections

LEVEL = pytest.mark.parametrize("level", ["token", "sequence", "geometric"])

# pi_old / pi_sampler: 4, 1 and 1/16 in a row (product 1/4, geometric mean
# (1/4)^(1/3)), a hole in it, a row of one token and one of none.
RATIOS = np.array([[4, 1, 99, 1 / 16], [8, 99, 99, 99], [99, 99, 99, 99]])
MASK = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]) > 0
MEAN = 0.25 ** (1 / 3)  # .63
BY_HAND = {  # level: (min(ratio, 2), the ratio if it is in [1/2, 5])
    "token": ([[2, 1, 0, 1 / 16], [2, 0, 0, 0]], [[4, 1, 0, 0], [0] * 4]),
    "sequence": ([[0.25, 0.25, 0, 0.25], [2, 0, 0, 0]], [[0] * 4, [0] * 4]),
    "geometric": (
        [[MEAN, MEAN, 0, MEAN], [2, 0, 0, 0]],
        [[MEAN, MEAN, 0, MEAN], [0] * 4],
    ),
}


@DTYPES
@LEVEL
def test_by_hand(level, dtype):
  inputs = np.log(RATIOS) - 3, np.full(RATIOS.shape, -3.0), MASK
  truncated, inside = BY_HAND[level]
  same_as = dict(level=level, dtype=dtype)
  got = call(corrections.truncate, *inputs, **same_as)  # 2 is the default
  close(got, [*truncated, [0] * 4], **NEAR[dtype])
  got = call(corrections.two_sided, *inputs, low=0.5, high=5.0, **same_as)
  close(got, [*inside, [0] * 4], **NEAR[dtype])


def test_every_correction_has_numbers_by_hand():
  names = {"truncate", "two_sided", "second_moment"}
  assert public(corrections) == {*names, "corrected"}


@DTYPES
def test_second_moment_by_hand(dtype):
  """log r where a clip could stop a token: .1, .2, .3, .5 (A < 0: minus that).

  Squares .01, .04, .09, .25 have the running means .01, .025, .0467, .0975: at
  .05 the last one goes, at .04 (the default) the last two, at .005 all. The
  others stay, however large: log r against the sign of A, A of 0, masked.
  """
  log = np.array([[0.1, -0.5, 0.2, 3], [-0.3, 2, -3, 9]])
  sign = np.array([[1, -1, 1, -1], [-1, 0, 1, 1]])
  mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]]) > 0
  inputs = log - 3, np.full(log.shape, -3.0), mask, sign * 1.0
  for more, dropped in [
      (dict(threshold=0.05), [-0.5]),
      ({}, [-0.5, -0.3]),
      (dict(threshold=0.005), [-0.5, -0.3, 0.1, 0.2]),
      (dict(threshold=1.0), []),
  ]:
    got = call(corrections.second_moment, *inputs, dtype=dtype, **more)
    wanted = np.exp(log) * mask * ~np.isin(log, dropped)
    close(got, wanted, **NEAR[dtype])


@given(old_BT=floats(4, 5), sampler_BT=floats(4, 5), mask_BT=bools(4, 5))
@QUICK
def test_second_moment_keeps_as_many_as_it_may(old_BT, sampler_BT, mask_BT):
  """One token more, and the mean of the squares exceeds the threshold."""
  sign_BT = np.where(np.arange(20).reshape(4, 5) % 3, 1.0, -1.0)
  got_BT = call(corrections.second_moment, old_BT, sampler_BT, mask_BT, sign_BT)
  log_BT = old_BT - sampler_BT
  active_BT = mask_BT & (log_BT * sign_BT > 0)
  kept = np.sort(log_BT[active_BT & (got_BT > 0)] ** 2)
  gone = np.sort(log_BT[active_BT & (got_BT == 0)] ** 2)
  if kept.size:
    assert kept.mean() <= 0.04
  if gone.size:
    assert gone[0] >= kept.max(initial=0)
    assert np.append(kept, gone[0]).mean() > 0.04
  rest_BT = mask_BT & ~active_BT
  close(got_BT[rest_BT], np.exp(log_BT[rest_BT]), **NEAR["float32"])


def test_bounds_belong_to_the_interval():
  """The defaults are [1/2, 2], of each token."""
  ratios = jnp.array([[0.45, 0.5, 2.0, 2.1]])
  some = jnp.log(ratios), jnp.zeros((1, 4)), jnp.ones((1, 4))
  close(corrections.two_sided(*some), [[0, 0.5, 2, 0]], rtol=1e-6)
  close(corrections.truncate(*some), [[0.45, 0.5, 2, 2]], rtol=1e-6)


@LEVEL
@given(old_BT=floats(4, 5), sampler_BT=floats(4, 5), mask_BT=bools(4, 5))
@QUICK
def test_matches_numpy(level, old_BT, sampler_BT, mask_BT):
  inputs, same_as = (old_BT, sampler_BT, mask_BT), dict(level=level)
  bounds = dict(low=0.3, high=3.1)
  truncated = call(corrections.truncate, *inputs, high=1.7, **same_as)
  inside = call(corrections.two_sided, *inputs, **bounds, **same_as)
  wanted = reference.truncate(*inputs, 1.7, level)
  close(truncated, wanted, **NEAR["float32"])
  wanted = reference.two_sided(*inputs, 0.3, 3.1, level)
  close(inside, wanted, **NEAR["float32"])
  # Masked positions may hold anything, and rows do not mix.
  hidden = *(np.where(mask_BT, x, np.nan) for x in inputs[:2]), mask_BT
  same(call(corrections.truncate, *hidden, high=1.7, **same_as), truncated)
  reversed_inputs = (x[::-1] for x in inputs)
  back = call(corrections.two_sided, *reversed_inputs, **bounds, **same_as)
  same(back[::-1], inside)
  agreed = call(corrections.truncate, old_BT, old_BT, mask_BT, **same_as)
  same(agreed, mask_BT)


@LEVEL
def test_extreme_ratios_stay_finite(level):
  """|log ratio| is clamped to 20: e^20 passes no bound but a larger one."""
  old, ones = np.array([[-1e4, 0.0]]), np.ones((1, 2))
  wide = dict(high=1e30, level=level)
  got = call(corrections.truncate, old, 0 * old, ones, **wide)
  wanted = [np.exp(-20), 1 if level == "token" else np.exp(-20)]
  close(got[0], wanted, rtol=1e-5)
  got = call(corrections.truncate, 0 * old, old, ones, **wide)
  close(got[0], 1 / np.array(wanted), rtol=1e-5)


@pytest.mark.parametrize("name", ["truncate", "two_sided"])
def test_wrong_levels_and_shapes(name):
  function = getattr(corrections, name)
  with pytest.raises(ValueError, match="level 'row': one of token, sequence"):
    function(*[jnp.ones((1, 1))] * 3, level="row")
  with pytest.raises(AssertionError):
    function(*map(jnp.ones, [(1, 2), (1, 1), (1, 2)]))
