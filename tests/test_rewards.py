"""Rewards: correctness, scores, the overlong punishment and the KL penalty."""

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
from hypothesis import given

from rl_reason.algorithms import rewards


@DTYPES
def test_correctness_by_hand(dtype):
  for correct, incorrect in [(1.0, -1.0), (1.0, 0.0), (0.5, -0.25)]:
    args = [1.0, 0.0, 1.0], correct, incorrect
    got = call(rewards.correctness, *args, dtype=dtype)
    assert got.tolist() == [correct, incorrect, correct]
  assert rewards.correctness(jnp.array([1, 0]), 1.0, -1.0).dtype == "float32"


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
  close(got, wanted, rtol=1e-6)
  assert (np.diff(got) <= 0).all()


def test_soft_overlong_off():
  got = rewards.soft_overlong(jnp.array([0, 44, 99]), max_tokens=44, buffer=0)
  assert got.tolist() == [0, 0, 0]


@DTYPES
def test_per_token_by_hand(dtype):
  """beta 1/2. The last token of the mask has the outcome, after a hole, too."""
  kl = [[2.0, -4, 9, 6], [2, 9, 9, 9], [9, 9, 9, 9]]
  mask = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]) > 0
  got = call(rewards.per_token, [1.0, -1, 5], mask, kl, 0.5, dtype=dtype)
  assert got.tolist() == [[-1, 2, 0, -2], [-2, 0, 0, 0], [0, 0, 0, 0]]


@given(rewards_B=floats(6), mask_BT=bools(6, 4), kl_BT=floats(6, 4))
@QUICK
def test_per_token_adds_up(rewards_B, mask_BT, kl_BT):
  """To R - beta * (sum of the KL), in rows that have a token."""
  got, hidden = (
      call(rewards.per_token, rewards_B, mask_BT, x, 0.3)
      for x in (kl_BT, np.where(mask_BT, kl_BT, np.nan))
  )
  wanted = reference.per_token(rewards_B, mask_BT, kl_BT, 0.3)
  close(got, wanted, **NEAR["float32"])
  sums_B = (rewards_B - 0.3 * (kl_BT * mask_BT).sum(1)) * mask_BT.any(1)
  close(got.sum(1), sums_B, **NEAR["float32"])
  same(hidden, got)


@DTYPES
def test_weighted_by_hand(dtype):
  """Weights 1 to 0 and -1 to -1, at the start, half-way, and at the end."""
  weights_E = (1.0, 0.0), (-1.0, -1.0)
  with jax.enable_x64(dtype == "float64"):
    scores_EB = jnp.array([1, 0], dtype), jnp.array([0.5, 2], dtype)
    for progress, wanted in ((0, [0.5, -2]), (0.5, [0, -2]), (1, [-0.5, -2])):
      got = rewards.weighted(scores_EB, weights_E, progress)
      close(got, wanted, atol=1e-6)
      assert got.dtype == dtype
  assert rewards.weighted((), (), 0.5) == 0


def test_every_reward_has_numbers_by_hand():
  tested = {x[5:-8] for x in globals() if x.endswith("_by_hand")}
  assert public(rewards) <= tested
