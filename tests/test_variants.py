"""Variants beside the advantages: by hand, against NumPy, and invariances."""

import functools

import jax
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
    ids,
    public,
)
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import (
    advantage_variants,
    advantages,
    variants,
)
from rl_reason.base.structs import NO_SCORE, call_by_name
from rl_reason.checks import config_facts


def variant(name, *inputs, **keywords):
  return call(getattr(variants, name), *inputs, **keywords)


def test_every_variant_has_numbers_by_hand():
  tested = {x[5:-8] for x in globals() if x.endswith("_by_hand")}
  assert public(variants) <= tested


# --- rewards -----------------------------------------------------------------


@DTYPES
def test_logquad_by_hand(dtype):
  """L = 40, lambda = .1 up to a reward of 1/2, and falling by half per unit."""
  rows = [  # reward, correct, length, penalty
      (0.5, 1, 0, 0.0),
      (-1.0, 0, 0, 0.0),
      (0.5, 1, 40, -0.1),
      (-1.0, 0, 40, -0.1),
      (0.5, 1, 20, -0.1 * np.log2(1.5)),
      (-1.0, 0, 20, -0.025),
      (0.5, 1, 80, -0.1 * np.log2(3)),
      (1.5, 1, 40, -0.05),
      (1.5, 0, 20, -0.0125),
  ]
  rewards_B, correct_B, lengths_B, wanted = map(
      np.array, zip(*rows, strict=True)
  )
  inputs = rewards_B, correct_B, lengths_B, 40
  keys = dict(coef=0.1, decay=np.log(2), threshold=0.5)
  got = variant("logquad", *inputs, dtype=dtype, **keys)
  close(got, wanted, rtol=1e-6)
  # Defaults: lambda .1, falling by 1 / e from a reward of 0 on.
  got = variant("logquad", [-3.0, 1.0], [1, 1], [40, 40], 40, dtype=dtype)
  close(got, [-0.1, -0.1 / np.e], rtol=1e-6)


@DTYPES
def test_the_arguments_of_logquad_by_hand(dtype):
  """alpha log(1 + l / L) where R > threshold, else beta (l / L)^2; L = 100.

  lambda is 1/2 exp(-2 max(0, R - 1)): 1/2 up to R = 1, 1/2 e^-2 at R = 2. The
  verdict is not read, and rollout.max_tokens, 40, is not L.
  """
  rows = [  # reward, correct, length, penalty
      (2.0, 0, 100, -0.5 * np.exp(-2) * 3 * np.log(2)),
      (2.0, 1, 50, -0.5 * np.exp(-2) * 3 * np.log(1.5)),
      (1.0, 1, 100, -0.5 * 0.25),
      (1.0, 0, 50, -0.5 * 0.25 / 4),
      (-1.0, 1, 200, -0.5 * 0.25 * 4),
      (2.0, 1, 0, 0.0),
  ]
  rewards_B, correct_B, lengths_B, wanted = map(
      np.array, zip(*rows, strict=True)
  )
  keys = dict(coef=0.5, decay=2.0, threshold=1.0, alpha=3.0, beta=0.25)
  penalty = functools.partial(
      variant, "logquad", dtype=dtype, static=("length",), **keys
  )
  inputs = rewards_B, correct_B, lengths_B, 40
  close(penalty(*inputs, length=100.0, good="reward"), wanted, rtol=1e-6)
  # By the verdict, with the same L: the rows where both agree are equal.
  got = penalty(*inputs, length=100.0)
  same_B = (correct_B > 0) == (rewards_B > 1)
  close(got[same_B], wanted[same_B], rtol=1e-6)
  assert not np.isclose(got[~same_B], wanted[~same_B]).any()
  # L is rollout.max_tokens without an argument: 40 tokens are the whole of it.
  close(penalty([2.0], [1], [40], 40), [wanted[0]], rtol=1e-6)


@given(
    rewards_B=floats(6),
    correct_B=bools(6),
    lengths_B=hnp.arrays(np.int32, 6, elements=st.integers(0, 60)),
)
@QUICK
def test_logquad_matches_numpy(rewards_B, correct_B, lengths_B):
  keys = dict(coef=0.3, decay=1.5, threshold=-0.5, alpha=1.2, beta=0.7)
  got = variant("logquad", rewards_B, correct_B, lengths_B, 40, **keys)
  wanted = [
      reference.logquad(*row, 40, *keys.values())
      for row in zip(rewards_B, correct_B, lengths_B, strict=True)
  ]
  close(got, wanted, rtol=1e-5)
  longer = variant("logquad", rewards_B, correct_B, lengths_B + 1, 40, **keys)
  assert (longer < got).all() and (got <= 0).all()


@DTYPES
def test_bootstrap_truncated_by_hand(dtype):
  """Group 3: finished 1, -1, -1 with mean -1/3. Group -2: all truncated.

  Group 8: nothing truncated. Rows of a group are apart on purpose.
  """
  got = variant(
      "bootstrap_truncated",
      [1.0, -1, -1, -1, -1, -1, 0.5, -1],
      np.array([0, 1, 0, 0, 1, 1, 0, 0], bool),
      [3, -2, 3, 3, -2, 3, 8, 8],
      dtype=dtype,
  )
  close(got, [1, 0, -1, -1, 0, -1 / 3, 0.5, -1], rtol=2e-7)


@DTYPES
def test_bootstrapped_rows_have_no_advantage(dtype):
  """A truncated row is neither encouraged nor punished, to the last bit.

  The mean of seven float32 0.7 is not 0.7: rounding must not be a signal.
  """
  bootstrap = functools.partial(variant, "bootstrap_truncated", dtype=dtype)
  groups_B = [0] * 8
  got = bootstrap([0.7] * 8, np.arange(8) == 7, groups_B)
  norm = call(advantages.group_norm, got, groups_B, dtype=dtype)
  assert (norm == 0).all()
  got = bootstrap([1.0, -1, -1, 1, -1, 7, 1, 1], np.arange(8) == 5, groups_B)
  norm = call(advantages.group_norm, got, groups_B, dtype=dtype)
  close(norm[5], 0, atol=1e-6)
  assert np.sign(norm[[0, 1, 2, 3, 4, 6, 7]]).tolist() == [
      1,
      -1,
      -1,
      1,
      -1,
      1,
      1,
  ]


@given(rewards_B=floats(6), truncated_B=bools(6), groups_B=ids(6))
@QUICK
def test_bootstrap_matches_numpy(rewards_B, truncated_B, groups_B):
  bootstrap = functools.partial(variant, "bootstrap_truncated")
  got = bootstrap(rewards_B, truncated_B, groups_B)
  wanted = reference.bootstrap_truncated(rewards_B, truncated_B, groups_B)
  close(got, wanted, **NEAR["float32"])
  # The reward of a truncated response does not count.
  other_B = np.where(truncated_B, 77.0, rewards_B)
  close(bootstrap(other_B, truncated_B, groups_B), wanted, **NEAR["float32"])


# --- masks and weights of tokens ---------------------------------------------


def test_reward_parts_by_hand():
  """The outcome has weight 1; weights move from 2 to 0: 1.5 at a quarter."""
  scores_B = np.array([3.0, np.nan, NO_SCORE])
  rows = dict(scores_EB=(scores_B,), progress=0.25)
  seen = []

  def reward(rows, *, term_weights=((2.0, 0.0),)):
    seen.append(term_weights)
    return np.array([1.0, np.nan, 1.0])

  found = variants.reward_parts(
      rows, reward=reward, weights={"judge": (2.0, 0.0)}
  )
  assert [*found] == ["outcome", "judge"] and seen == [()]
  np.testing.assert_array_equal(found["outcome"][0], [1, 0, 1])
  np.testing.assert_array_equal(found["judge"][0], [3, 0, np.nan])
  assert (found["outcome"][1], found["judge"][1]) == (1, 1.5)


def test_spread_by_hand():
  valid_B = np.array([True, True, False])
  found = variants.spread("a", np.array([1.0, 3, 9]), valid_B)
  assert found == {"reward/a/mean": 2, "reward/a/std": 1}
  without = variants.spread("a", np.array([1.0, np.nan, 9]), valid_B)
  assert without == {"reward/a/mean": 1, "reward/a/std": 0}


def test_shares_by_hand():
  """Terms of 1 + 2 and of 0 + 1; the third row is padding."""
  terms = dict(a=np.array([1.0, -2, 9]), b=np.array([0.0, 1, 9]))
  found = variants.shares(terms, np.array([True, True, False]))
  assert found == {"reward/a/advantage_share": 3 / 4} | {
      "reward/b/advantage_share": 1 / 4
  }
  nothing = variants.shares(dict(a=np.zeros(2)), np.ones(2, bool))
  assert nothing == {"reward/a/advantage_share": 0}


@DTYPES
@pytest.mark.parametrize(
    "name, share",
    [
        ("group_mean", 2 / 5),
        ("leave_one_out", 2 / 5),
        ("group_mean_batch_std", 2 / 5),
        ("group_norm", 1 / 2),
    ],
)
def test_with_shares_by_hand(dtype, name, share):
  """R is the verdict + b / 2, of sizes 1, 1, 0, 0 and 1/2, 1/2, 1, 1 off means.

  `group_norm` divides by standard deviations of R, sqrt(1/2) and sqrt(2), which
  gives 2 sqrt(2) for both. In the third group the parts differ, but their sum
  does not, and nothing is learned from it; the last two rows are padding.
  """
  outcome = np.array([1.0, -1, 1, 1, 1, -1, 9, 3])
  b = np.array([0.0, 2, 4, 0, 0, 4, 7, 7])
  groups_B = np.array([0, 0, 1, 1, 2, 2, -1, -1])
  valid_B = groups_B >= 0
  function = functools.partial(getattr(advantages, name))
  inputs = (outcome + b / 2).astype(dtype), groups_B
  inputs += (valid_B,) * (name == "group_mean_batch_std")
  with jax.enable_x64(dtype == "float64"):
    got, metrics = jax.jit(
        functools.partial(variants.with_shares, advantage=function)
    )(
        inputs[0],
        groups_B,
        valid_B,
        {"outcome": (np.zeros(8, dtype), 1.0), "b": (b.astype(dtype), 0.5)},
    )
    # The advantage itself is the same to the last bit.
    np.testing.assert_array_equal(got, jax.jit(function)(*inputs))
  wanted = {
      "reward/b/advantage_share": 1 - share,
      "reward/outcome/advantage_share": share,
      "reward/outcome/mean": 1 / 3,
      "reward/outcome/std": outcome[:6].std(),
  }
  assert metrics == pytest.approx(wanted, rel=1e-5)


@DTYPES
@pytest.mark.parametrize(
    "name, share",
    [
        # The verdict adds 1, 1 and -1, and b adds 0, 0 and 1: means of 1/3.
        ("returns_to_go", (8 / 3) / 4),
        ("opo", (8 / 3) / 4),
        # With lambda 1/2 the first token has half: 1/2, 1 and -1, of mean 1/6.
        ("gae", (7 / 3) / (11 / 3)),
    ],
)
def test_with_linear_shares_by_hand(dtype, name, share):
  """R is the verdict + b / 2; responses of two tokens and one, and padding.

  The critic's values change the advantage, and no share.
  """
  outcome, b = np.array([1, -1, 9], dtype), np.array([0, 2, 7], dtype)
  lengths_B = np.array([2, 1, 2])
  mask_BT = np.arange(2) < lengths_B[:, None]
  rewards_B = outcome + b / 2
  last_BT = np.arange(2) == lengths_B[:, None] - 1
  rows = dict(
      rewards_B=rewards_B,
      rewards_BT=(last_BT * rewards_B[:, None]).astype(dtype),
      values_BT=np.array([[0.3, 0.8], [0.1, 0], [5, 5]], dtype),
      mask_BT=mask_BT,
      valid_B=np.array([True, True, False]),
      groups_B=np.array([0, 0, -1]),
      parts={"outcome": (0 * outcome, 1.0), "b": (b, 0.5)},
  )
  where = advantages if hasattr(advantages, name) else advantage_variants
  args = dict(gamma=1.0, lam=0.5) if name == "gae" else {}
  function = functools.partial(getattr(where, name), **args)
  with jax.enable_x64(dtype == "float64"):
    got, metrics = jax.jit(
        functools.partial(variants.with_linear_shares, advantage=function)
    )(rows)
    alone = jax.jit(functools.partial(call_by_name, function))(rows)
    np.testing.assert_array_equal(got, alone)
  wanted = {
      "reward/b/advantage_share": 1 - share,
      "reward/outcome/advantage_share": share,
      "reward/outcome/mean": 0,
      "reward/outcome/std": 1,
  }
  assert metrics == pytest.approx(wanted, rel=1e-5)


LONG = ("gae_exp_complexity", "optimal_token_baseline")  # compile for seconds


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow) if x in LONG else x
        for x in config_facts.LINEAR
    ],
)
def test_the_listed_advantages_are_linear_in_the_reward(name):
  """A(x + y) + A(0) = A(x) + A(y); a group of equal rewards has none."""
  rng = np.random.default_rng(0)
  mask_BT = np.arange(5) < np.array([5, 3, 4, 1, 2, 5])[:, None]
  last_BT = np.cumsum(mask_BT, 1) == mask_BT.sum(1, keepdims=True)
  last_BT &= mask_BT
  rows = dict(
      values_BT=rng.normal(size=mask_BT.shape),
      logps_BT=np.log(rng.uniform(0.1, 0.9, mask_BT.shape)),
      squares_BT=rng.uniform(0.1, 0.9, mask_BT.shape),
      groups_B=np.array([0, 0, 0, 1, 1, 1]),
      types_B=np.array([0, 0, 0, 1, 1, 1]),
      mask_BT=mask_BT,
  )
  where = advantages if hasattr(advantages, name) else advantage_variants

  def of(reward_B):
    changed = dict(rewards_B=reward_B, rewards_BT=last_BT * reward_B[:, None])
    with jax.enable_x64(True):
      inputs = jax.tree.map(jax.numpy.asarray, rows | changed)
      return np.asarray(call_by_name(getattr(where, name), inputs))

  x_B, y_B = rng.normal(size=(2, 6))
  close(of(x_B + y_B) + of(0 * x_B), of(x_B) + of(y_B), atol=1e-9)
