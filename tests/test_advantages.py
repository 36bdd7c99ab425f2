"""Advantages: hand-worked numbers, an independent version, and invariances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st

from rl_reason import advantages

NAMES = ["group_mean", "group_norm", "leave_one_out"]
QUICK = settings(max_examples=30, deadline=None, derandomize=True)
# Eighths are exact in fp32, so two equal means are equal to the last bit.
REWARDS = st.lists(
    st.integers(-16, 16).map(lambda n: n / 8), min_size=8, max_size=8
)
# Few ids, so that groups repeat; negative and extreme ones, in any order.
GROUPS = st.lists(
    st.sampled_from([0, 5, -1, -7, 2**31 - 1, -(2**31)]),
    min_size=8,
    max_size=8,
)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
  with jax.enable_x64(request.param == "float64"):
    yield np.dtype(request.param)


@functools.cache
def program(name, **keywords):
  return jax.jit(functools.partial(getattr(advantages, name), **keywords))


def call(name, rewards, groups, dtype=np.float32, **keywords):
  """One advantage function on up to 16 rows.

  Groups of one fill it up: with one shape there is one program to compile.
  """
  rows, fill = len(rewards), range(16 - len(rewards))
  rewards_B = jnp.array([*rewards, *fill], dtype)
  groups_B = jnp.array([*groups, *(10**6 + n for n in fill)], jnp.int32)
  out_B = np.asarray(program(name, **keywords)(rewards_B, groups_B))
  assert out_B.dtype == dtype
  return out_B[:rows]


# Two prompts with four samples each.
#   rewards 1, 0, 0, 1:   mean 1/2, deviations +-1/2; squares add up to 1,
#                         std (ddof 1) = sqrt(1 / 3) = 0.57735027
#   rewards 1, -1, -1, -1: mean -1/2, deviations 3/2, -1/2 (x3); squares add up
#                         to 9/4 + 3/4 = 3, std = sqrt(3 / 3) = 1
REWARDS_B = [1, 0, 0, 1, 1, -1, -1, -1]
GROUPS_B = [4, 4, 4, 4, -2, -2, -2, -2]
BY_HAND = {
    "group_mean": [0.5, -0.5, -0.5, 0.5, 1.5, -0.5, -0.5, -0.5],
    # 0.5 / (0.57735027 + 1e-6) = 0.86602390; 1.5 / 1.000001 = 1.49999850
    "group_norm": [
        *[0.86602390, -0.86602390, -0.86602390, 0.86602390],
        *[1.49999850, -0.49999950, -0.49999950, -0.49999950],
    ],
    # 1 - (0+0+1)/3 = 2/3; 0 - (1+0+1)/3 = -2/3;
    # 1 - (-1) = 2; -1 - (1-1-1)/3 = -2/3
    "leave_one_out": [2 / 3, -2 / 3, -2 / 3, 2 / 3, 2, -2 / 3, -2 / 3, -2 / 3],
}


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name, dtype):
  got = call(name, REWARDS_B, GROUPS_B, dtype)
  np.testing.assert_allclose(got, BY_HAND[name], rtol=2e-7)


def test_group_norm_conventions(dtype):
  """TRL adds 1e-4; ddof 0 divides by G: std of 1, 0, 0, 1 is then 1/2."""
  some = ("group_norm", [1, 0, 0, 1], [0] * 4, dtype)
  trl = call(*some, eps=1e-4)
  # 0.5 / (0.57735027 + 0.0001) = 0.86587543
  np.testing.assert_allclose(trl[0], 0.86587543, rtol=2e-7)
  population = call(*some, eps=0.0, ddof=0)
  np.testing.assert_allclose(population, [1, -1, -1, 1], rtol=2e-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, -1.0, 0.7, 0.1, 1e15])
def test_equal_rewards_have_no_signal(name, value, dtype):
  """Exactly 0: float32 sums sixteen 0.7 to a mean other than 0.7."""
  assert (call(name, [value] * 16, [3] * 16, dtype) == 0).all()


def test_sixteen_rewards_are_a_trap():
  """The formula alone fails on the rewards above, so the guard is needed."""
  rewards_B = jnp.full(16, 0.7, jnp.float32)
  assert jnp.abs(rewards_B - rewards_B.mean()).max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_group_of_one_has_no_signal(name, dtype):
  got = call(name, [3, 1, 0, -4], [8, 9, 9, -8], dtype)
  assert np.isfinite(got).all()
  assert got[0] == got[3] == 0
  assert got[1] > 0 > got[2]


@pytest.mark.parametrize("name", NAMES)
def test_groups_need_not_be_adjacent_or_equal(name):
  """Group 1 is rows 0, 3, 6; group -5 rows 1, 2, 4, 5; row 7 is alone."""
  got = call(name, [1, 2, 3, 4, 5, 6, 7, 8], [1, -5, -5, 1, -5, -5, 1, 0])
  one = call(name, [1, 4, 7], [1] * 3)
  other = call(name, [2, 3, 5, 6], [1] * 4)
  np.testing.assert_array_equal(got[[0, 3, 6]], one)
  np.testing.assert_array_equal(got[[1, 2, 4, 5]], other)
  assert got[7] == 0
  assert (np.abs(one) + 1 > 1).tolist() == [True, False, True]  # 1, 4, 7


@pytest.mark.parametrize("name", NAMES)
@given(rewards=REWARDS, groups=GROUPS)
@QUICK
def test_matches_numpy(name, rewards, groups):
  got = call(name, rewards, groups)
  wanted = getattr(reference, name)(rewards, groups)
  np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_matches_numpy_in_float64(name):
  """Ragged groups of awkward numbers: rounding is the only difference."""
  rng = np.random.default_rng(0)
  rewards_B, groups_B = rng.normal(3, 2, 16), rng.integers(-3, 3, 16)
  with jax.enable_x64(True):
    got = call(name, rewards_B, groups_B, np.float64)
  wanted = getattr(reference, name)(rewards_B, groups_B)
  np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@given(rewards=REWARDS, groups=GROUPS, data=st.data())
@QUICK
def test_invariances(name, rewards, groups, data):
  rewards, groups = np.array(rewards), np.array(groups)
  got = call(name, rewards, groups)
  near = dict(rtol=1e-5, atol=1e-6)

  for group in set(groups):
    assert abs(got[groups == group].sum()) < 1e-5, "sums to 0 in each group"
  np.testing.assert_allclose(
      call(name, rewards + 2.5, groups), got, **near, err_msg="shift"
  )
  factor = 1 if name == "group_norm" else 4  # up to eps of the normaliser
  np.testing.assert_allclose(
      call(name, 4 * rewards, groups), factor * got, **near, err_msg="scale"
  )
  np.testing.assert_allclose(
      call(name, -rewards, groups), -got, **near, err_msg="sign"
  )
  order = np.array(data.draw(st.permutations(range(8))))
  np.testing.assert_allclose(
      call(name, rewards[order], groups[order]),
      got[order],
      **near,
      err_msg="order of the rows",
  )
  relabel = {g: 17 - 3 * n for n, g in enumerate(sorted(set(groups)))}
  np.testing.assert_allclose(
      call(name, rewards, [relabel[g] for g in groups]),
      got,
      **near,
      err_msg="names of the groups",
  )


def test_better_is_better():
  """Within a group advantages keep the order of the rewards."""
  rewards = [-1, 0.5, 2, 0.25, 1, 1.5, -2, 0]
  for name in NAMES:
    got = call(name, rewards, [0] * 8)
    np.testing.assert_array_equal(np.argsort(got), np.argsort(rewards))


def test_shapes_are_checked():
  with pytest.raises(AssertionError):
    advantages.group_mean(jnp.zeros(4), jnp.zeros(3, int))
  with pytest.raises(AssertionError):
    advantages.group_mean(jnp.zeros((2, 2)), jnp.zeros((2, 2), int))
