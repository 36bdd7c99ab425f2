"""Rewards: correctness, the overlong punishment and truncated responses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import advantages, rewards

QUICK_JIT = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
BOOTSTRAP = QUICK_JIT(rewards.bootstrap_truncated)
GROUP_NORM = QUICK_JIT(advantages.group_norm)
PER_TOKEN = QUICK_JIT(rewards.per_token)
LOGQUAD = QUICK_JIT(functools.partial(rewards.logquad, max_tokens=40))
NEAR = {
    "float32": dict(rtol=1e-5, atol=1e-6),
    "float64": dict(rtol=1e-12, atol=1e-13),
}
QUICK = settings(max_examples=12, deadline=None, derandomize=True)
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
REWARDS_B = hnp.arrays(float, 6, elements=EIGHTHS)
FLAGS_B = hnp.arrays(bool, 6)


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


@given(
    rewards_B=REWARDS_B,
    truncated_B=FLAGS_B,
    groups_B=hnp.arrays(np.int32, 6, elements=st.sampled_from([5, -9, 0])),
    data=st.data(),
)
@QUICK
def test_bootstrap_matches_numpy(rewards_B, truncated_B, groups_B, data):
  some = rewards_B, truncated_B, groups_B
  wanted = reference.bootstrap_truncated(*some)
  for dtype in NEAR:
    with jax.enable_x64(dtype == "float64"):
      got = np.asarray(BOOTSTRAP(jnp.array(rewards_B, dtype), *some[1:]))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, **NEAR[dtype])
  order = np.array(data.draw(st.permutations(range(6))))
  moved = BOOTSTRAP(*(jnp.array(x[order]) for x in some))
  np.testing.assert_allclose(moved, wanted[order], **NEAR["float32"])
  # The reward of a truncated response is not looked at.
  other_B = jnp.array(np.where(truncated_B, 77, rewards_B))
  np.testing.assert_allclose(
      BOOTSTRAP(other_B, *some[1:]), wanted, **NEAR["float32"]
  )


def test_logquad_by_hand(dtype):
  """L = 40, lambda = .1 up to a reward of 1/2, and falling by half per unit.

  l = 0 is free, l = 40 costs lambda. l = 20: log2(1.5) if right, 1/4 if wrong;
  l = 80: log2(3) and 4. A reward of 3/2 is one unit above: lambda = .05.
  """
  rows = [  # reward, right, length, wanted
      (0.5, 1, 0, 0.0),
      (-1.0, 0, 0, 0.0),
      (0.5, 1, 40, -0.1),
      (-1.0, 0, 40, -0.1),
      (0.5, 1, 20, -0.1 * np.log2(1.5)),
      (-1.0, 0, 20, -0.025),
      (0.5, 1, 80, -0.1 * np.log2(3)),
      (-1.0, 0, 80, -0.4),
      (1.5, 1, 40, -0.05),
      (1.5, 0, 20, -0.0125),
  ]
  reward, right, length, wanted = map(np.array, zip(*rows, strict=True))
  got = LOGQUAD(
      jnp.array(reward, dtype),
      jnp.array(right, dtype),
      length,
      length_coef=0.1,
      length_decay=np.log(2),
      length_threshold=0.5,
  )
  assert got.dtype == dtype
  np.testing.assert_allclose(got, wanted, rtol=1e-6)


@given(
    rewards_B=REWARDS_B,
    right_B=FLAGS_B,
    lengths_B=hnp.arrays(np.int32, 6, elements=st.integers(0, 60)),
)
@QUICK
def test_logquad_matches_numpy(rewards_B, right_B, lengths_B):
  keys = dict(length_coef=0.3, length_decay=1.5, length_threshold=-0.5)
  wanted = [
      reference.logquad(*row, 40, *keys.values())
      for row in zip(rewards_B, right_B, lengths_B, strict=True)
  ]
  for dtype in NEAR:
    with jax.enable_x64(dtype == "float64"):
      some = jnp.array(rewards_B, dtype), jnp.array(right_B, dtype), lengths_B
      got = np.asarray(LOGQUAD(*some, **keys))
      longer = np.asarray(LOGQUAD(*some[:2], lengths_B + 1, **keys))
      off = np.asarray(LOGQUAD(*some, length_coef=0.0))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-6)  # l / L is float32
    assert (longer < got).all() and (got <= 0).all() and (off == 0).all()


def test_per_token_by_hand(dtype):
  """beta 1/2. The last token of the mask has the outcome, after a hole, too."""
  kl = jnp.array([[2, -4, 9, 6], [2, 9, 9, 9], [9, 9, 9, 9]], dtype)
  mask = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]) > 0
  got = PER_TOKEN(jnp.array([1, -1, 5], dtype), mask, kl, 0.5)
  assert got.dtype == dtype
  assert got.tolist() == [[-1, 2, 0, -2], [-2, 0, 0, 0], [0, 0, 0, 0]]


@given(
    rewards_B=REWARDS_B,
    mask_BT=hnp.arrays(bool, (6, 4)),
    kl_BT=hnp.arrays(float, (6, 4), elements=EIGHTHS),
)
@QUICK
def test_per_token_adds_up(rewards_B, mask_BT, kl_BT):
  """To R - beta * (sum of the KL), in rows that have a token."""
  wanted = reference.per_token(rewards_B, mask_BT, kl_BT, 0.3)
  sums_B = (rewards_B - 0.3 * (kl_BT * mask_BT).sum(1)) * mask_BT.any(1)
  for dtype in NEAR:
    with jax.enable_x64(dtype == "float64"):
      got, hidden = (
          np.asarray(
              PER_TOKEN(
                  jnp.array(rewards_B, dtype), mask_BT, jnp.array(x, dtype), 0.3
              )
          )
          for x in (kl_BT, np.where(mask_BT, kl_BT, np.nan))
      )
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, **NEAR[dtype])
    np.testing.assert_allclose(got.sum(1), sums_B, **NEAR[dtype])
    np.testing.assert_array_equal(hidden, got)


def test_cosine_by_hand(dtype):
  """Of 40 tokens: at 0, a quarter, a half, and all of them."""
  lengths_B = jnp.array([0, 20, 40, 10, 0, 20, 39, 40])
  correct_B = jnp.array([1, 1, 1, 1, 0, 0, 0, 0], dtype)
  got = rewards.cosine(correct_B, lengths_B, max_tokens=40)
  assert got.dtype == dtype
  quarter = (1 + np.cos(np.pi / 4)) / 2
  last = -10 * (1 + np.cos(np.pi * 39 / 40)) / 2
  wanted = [2, 1.5, 1, 1 + quarter, -10, -5, last, -10]
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_cosine_of_equal_ends_is_correctness(dtype):
  correct_B = jnp.array([1, 0, 1, 0], dtype)
  ends = dict(right=1.0, right_long=1.0, wrong=-1.0, wrong_long=-1.0)
  got = rewards.cosine(correct_B, jnp.array([3, 5, 9, 9]), max_tokens=9, **ends)
  np.testing.assert_allclose(got, rewards.correctness(correct_B), rtol=1e-6)


def test_weights_of_scores_move_over_the_run(dtype):
  scores_NB = jnp.array([1, 0], dtype), jnp.array([0.5, 2], dtype)
  weights_N = (1.0, 0.0), (-1.0, -1.0)
  for progress, wanted in ((0, [0.5, -2]), (0.5, [0, -2]), (1, [-0.5, -2])):
    got = rewards.weighted(scores_NB, weights_N, progress)
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert got.dtype == dtype
  assert rewards.weighted((), (), 0.5) == 0
