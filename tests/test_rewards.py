"""Rewards: correctness, the overlong punishment and truncated responses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from rl_reason import advantages, rewards

BOOTSTRAP = jax.jit(rewards.bootstrap_truncated)
GROUP_NORM = jax.jit(advantages.group_norm)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
  with jax.enable_x64(request.param == "float64"):
    yield np.dtype(request.param)


def test_correctness(dtype):
  correct_B = jnp.array([1, 0, 1], dtype)
  got = rewards.correctness(correct_B)
  assert got.dtype == dtype
  assert got.tolist() == [1, -1, 1]  # DAPO eq 7
  got = rewards.correctness(correct_B, right=1.0, wrong=0.0)
  assert got.tolist() == [1, 0, 1]
  got = rewards.correctness(correct_B, right=0.5, wrong=-0.25)
  assert got.tolist() == [0.5, -0.25, 0.5]


def test_soft_overlong_by_hand():
  """L_max 44, cache 8: free up to 36, then an eighth a token, -1 from 44 on."""
  lengths = [0, 1, 35, 36, 37, 38, 40, 43, 44, 45, 100]
  wanted = [0, 0, 0, 0, -1 / 8, -2 / 8, -4 / 8, -7 / 8, -1, -1, -1]
  got = rewards.soft_overlong(jnp.array(lengths), max_tokens=44, buffer=8)
  assert got.tolist() == wanted  # exact, boundaries too


@pytest.mark.parametrize("limit, buffer", [(20480, 4096), (10, 3), (7, 7)])
def test_soft_overlong_matches_the_cases_of_eq_13(limit, buffer):
  lengths = np.unique(np.linspace(0, limit + 5, 60).astype(int))
  got = rewards.soft_overlong(
      jnp.array(lengths), max_tokens=limit, buffer=buffer
  )
  wanted = [reference.soft_overlong(n, limit, buffer) for n in lengths]
  np.testing.assert_allclose(got, wanted, rtol=1e-6)
  assert (np.diff(got) <= 0).all()


def test_soft_overlong_off():
  got = rewards.soft_overlong(jnp.array([0, 44, 99]), max_tokens=44, buffer=0)
  assert got.tolist() == [0, 0, 0]


def test_bootstrap_truncated_by_hand(dtype):
  """Group 3: finished 1, -1, -1 with mean -1/3. Group -2: all truncated.

  Group 8: nothing truncated. Rows of a group are apart on purpose.
  """
  rewards_B = jnp.array([1, -1, -1, -1, -1, -1, 0.5, -1], dtype)
  groups_B = jnp.array([3, -2, 3, 3, -2, 3, 8, 8])
  truncated_B = jnp.array([0, 1, 0, 0, 1, 1, 0, 0], bool)
  got = BOOTSTRAP(rewards_B, truncated_B, groups_B)
  assert got.dtype == dtype
  wanted = [1, 0, -1, -1, 0, -1 / 3, 0.5, -1]
  np.testing.assert_allclose(got, wanted, rtol=2e-7)


def test_bootstrapped_rows_have_no_advantage(dtype):
  """Why the mean: a truncated row is then neither encouraged nor punished."""
  rewards_B = jnp.array([1, -1, -1, 1, -1, 7], dtype)
  truncated_B = jnp.array([0, 0, 0, 0, 0, 1], bool)
  groups_B = jnp.zeros(6, int)
  shaped_B = BOOTSTRAP(rewards_B, truncated_B, groups_B)
  got = GROUP_NORM(shaped_B, groups_B)
  np.testing.assert_allclose(got[-1], 0, atol=1e-7)
  assert (np.sign(got[:-1]) == np.sign(rewards_B[:-1])).all()


def test_bootstrap_of_equal_rewards_is_that_reward(dtype):
  """The mean of seven float32 0.7 is not 0.7: rounding must not be signal."""
  rewards_B = jnp.full(8, 0.7, dtype)
  truncated_B = jnp.arange(8) == 7
  groups_B = jnp.zeros(8, int)
  got = BOOTSTRAP(rewards_B, truncated_B, groups_B)
  assert (GROUP_NORM(got, groups_B) == 0).all()
