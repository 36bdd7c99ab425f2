"""Variants of advantages: hand-worked numbers, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from advantage_inputs import B, H, T, call, expect, function, strategy
from by_hand import DTYPES, NEAR, QUICK, public
from hypothesis import given, strategies as st

from rl_reason.algorithms import (
    advantage_variants,
    advantages,
    surrogates,
)
from rl_reason.algorithms.reductions import whiten

SIGNS = st.sampled_from([1.0, -1.0])

# --- by hand -----------------------------------------------------------------

L3, HALF = np.log(3), np.sqrt(0.5)
DELTAS = dict(  # with gamma 1: 1/4 - 1/2 = -1/4, 3/4 - 1/4 = 1/2, 1 - 3/4 = 1/4
    rewards_BT=[[0.0, 0.0, 1.0]],
    values_BT=[[0.5, 0.25, 0.75]],
    mask_BT=[[True, True, True]],
)
BATCH = dict(
    rewards_B=[1.0, 0.0, 3.0, 0.0, 50.0],
    types_B=[0, 0, 1, 1, 1],
    valid_B=np.array([True, True, True, True, False]),
)
WEIGHED = dict(rewards_B=[1.0, 0.0, 3.0], groups_B=[0, 0, 0])
BY_HAND = [  # (name, arrays, keywords, wanted)
    # Lengths 1, 4, 3: the baseline is (1 + 0 + 9) / 8 = 5/4.
    (
        "opo",
        WEIGHED
        | dict(mask_BT=np.array([[0, 1, 0, 0], [1] * 4, [1, 1, 1, 0]]) > 0),
        {},
        [-1 / 4, -5 / 4, 7 / 4],
    ),
    # One success of 4, k = 2: P = 1 - C(3, 2) / C(4, 2) = 1/2, s = 1/2; the
    # success has (1/2) / (1/2), a failure 1/2 - C(2, 1) / C(3, 1) = -1/6 over
    # 1/2. Three successes of 4: every draw has one, and there is no signal.
    (
        "pass_at_k",
        dict(
            rewards_B=[1.0, -1, -1, -1, 1, 1, 0, 1],
            groups_B=[7, 7, 7, 7, 2, 2, 2, 2],
        ),
        dict(k=2, eps=0.0),
        [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0],
    ),
    (
        "weak_positives",
        dict(rewards_B=[1.0, -1.0, 0.0, 3.0, -2.0]),
        dict(weight=0.25),
        [0.25, -1, 0, 0.75, -2],
    ),
    # Ranks 4, 1, 2.5, 2.5, less 5/2, over 2; ranks 1, 2, 3 less 2, over 3/2.
    (
        "rank",
        dict(
            rewards_B=[10, -3, 0.5, 0.5, -9.0, 7.0, 8.0],
            groups_B=[0, 0, 0, 0, 1, 1, 1],
        ),
        {},
        [0.75, -0.75, 0, 0, -2 / 3, 0, 2 / 3],
    ),
    # Lengths 1, 4, 4 weigh 1, 1/2, 1/2: 1 - (0 + 3/2) / 1 = -1/2,
    # 0 - (1 + 3/2) / (3/2) = -5/3, 3 - (1 + 0) / (3/2) = 7/3.
    (
        "length_weighted",
        WEIGHED | dict(mask_BT=np.array([[0, 1, 0, 0], [1] * 4, [1] * 4]) > 0),
        {},
        [-1 / 2, -5 / 3, 7 / 3],
    ),
    # Means of log p: 0, -ln 2 (of 0 and -2 ln 2), -ln 2: the weights as above.
    (
        "quality_weighted",
        WEIGHED
        | dict(
            logps_BT=-np.log([[1, 5], [1, 4], [2, 2]]),
            mask_BT=np.array([[1, 0], [1, 1], [1, 1]]) > 0,
        ),
        {},
        [-1 / 2, -5 / 3, 7 / 3],
    ),
    # 2 sigmoid(ln 3) - 1 = 1/2, 2 sigmoid(ln 9) - 1 = 4/5. In units of ln 3:
    # 1 - (-.5 + 1.6) / 1.3, -1 - (.5 + 1.6) / 1.3, 0 - 1.6 / 1.8, 2 - 0 / 1.
    # Of 2, 0, 0 the others of the first are undecided: no baseline, no signal.
    (
        "confidence_weighted",
        dict(
            rewards_B=[L3, -L3, 0, 2 * L3, 2, 0, 0],
            groups_B=[0, 0, 0, 0, 1, 1, 1],
        ),
        {},
        [2 / 13 * L3, -34 / 13 * L3, -8 / 9 * L3, 2 * L3, 0, -2, -2],
    ),
    # By type +-1/2 over sqrt(1/2), +-3/2 over sqrt(9/2): +-sqrt(1/2). In the
    # batch (see above) 0, -1, 2, -1 over sqrt(2).
    (
        "hierarchical",
        BATCH,
        dict(mix=0.25, eps=1e-30),
        [0.25 * HALF, -HALF, 1.75 * HALF, -HALF, 0],
    ),
    # Problem 7, past rewards 1 (weight 1/2) and -1 (weight 0):
    # 1 - (0 + 1/2) / (3/2) = 2/3, 0 - (1 + 1/2) / (3/2) = -1. Problem 8 has
    # one response now and one of weight 2 before: 90 - 100. Problem 9: nothing.
    (
        "temporal",
        dict(
            rewards_B=[1.0, 0.0, 90.0, 4.0],
            problems_B=[7, 7, 8, 9],
            past_rewards_H=[1.0, 100.0, -1.0],
            past_problems_H=[7, 8, 7],
            past_weights_H=[0.5, 2.0, 0.0],
        ),
        {},
        [2 / 3, -1, -10, 0],
    ),
    # Surprise 1 and 3, reward 1 and 0: both normalise to +-sqrt(1/2); the bonus
    # is 1/2 exp(-2 ln 2 / 2) = 1/4. The other group has no signal, so no bonus.
    (
        "explore",
        dict(
            rewards_B=[1.0, 0.0, 1.0, 1.0],
            groups_B=[0, 0, 1, 1],
            logps_BT=[[-1.0, -1.0], [-2.0, -4.0], [-1.0, 9.0], [-3.0, 9.0]],
            mask_BT=np.array([[1, 1], [1, 1], [1, 0], [1, 0]]) > 0,
            progress=np.array(0.5),
        ),
        dict(bonus=0.5, decay=2 * np.log(2), eps=1e-30),
        [0.75 * HALF, -0.75 * HALF, 0, 0],
    ),
    # p = 1/2 of two tokens: 1 - 1 + 1/2 = 1/2; p = 3/4: 1 - 3/2 + 5/8 = 1/8;
    # p = 1/4: 1 - 1/2 + 5/8 = 9/8; p = 1: 0. W_0 = 1/2, 1/8, 9/8, of rewards 1,
    # 0 and 4: the mean is (1/2 + 9/2) / (7/4) = 20/7. W_1 = 1, 1/8, less the
    # third row, which has one token: 1 / (9/8) = 8/9. The first alone has a
    # third one, where W_2 = 1. In the other group all rewards are equal.
    *(
        (
            "optimal_token_baseline",
            dict(
                rewards_B=[1.0, 0.0, 4.0, 2.0, 2.0],
                rewards_BT=[
                    [0.0, 0.0, 1.0],
                    [0.0, 0.0, 9.0],
                    [4.0, 9.0, 9.0],
                    [2.0, 9.0, 9.0],
                    [2.0, 9.0, 9.0],
                ],
                groups_B=[0, 0, 0, 1, 1],
                logps_BT=np.log(
                    [
                        [1 / 2, 1 / 2, 1],
                        [3 / 4, 1, 1],
                        [1 / 4, 1, 1],
                        [1 / 2, 1, 1],
                        [1 / 4, 1, 1],
                    ]
                ),
                squares_BT=[
                    [1 / 2, 1 / 2, 1],
                    [5 / 8, 1, 9],
                    [5 / 8, 9, 9],
                    [1 / 2, 9, 9],
                    [5 / 8, 9, 9],
                ],
                mask_BT=np.arange(3) < np.array([[3], [2], [1], [1], [1]]),
            ),
            dict(zero_tail=zero_tail, eps=0.0),
            [
                [-13 / 7, 1 / 9, zero_tail],
                [-20 / 7, -8 / 9, 0],
                [8 / 7, 0, 0],
                [0, 0, 0],
                [0, 0, 0],
            ],
        )
        for zero_tail in (0, 1)
    ),
    # Decay 6 ln 2 over T = 6: lam_l = .8 * 2^-l * ease. Complexity 1 of 2:
    # ease 3/4, lam_1 = .3, lam_2 = .15; 7 counts as 2: ease 1/2, .2 and .1;
    # -1 counts as 0: ease 1, .4 and .2.
    # A_0 = -.25 + lam_1 .5 + lam_1 lam_2 .25, A_1 = .5 + lam_1 .25, A_2 = .25
    (
        "gae_exp_complexity",
        {k: x * 3 for k, x in DELTAS.items()} | dict(types_B=[1, 7, -1]),
        dict(lam=0.8, decay=6 * np.log(2), slope=0.5, hardest=2.0),
        [[-0.08875, 0.575, 0.25], [-0.145, 0.55, 0.25], [-0.03, 0.6, 0.25]],
    ),
    # One token each, so VAPO's is r - V: -1 and 0; GRPO's is +-sqrt(1/2).
    # Whitened they are opposite; VAPO's share is 1/2 exp(-2 ln 2 / 2) = 1/4.
    (
        "hybrid",
        dict(
            rewards_B=[1.0, 0.0],
            groups_B=[0, 0],
            rewards_BT=[[1.0, 5.0], [0.0, 5.0]],
            values_BT=[[2.0, 5.0], [0.0, 5.0]],
            mask_BT=[[True, False], [True, False]],
            progress=np.array(0.5),
        ),
        dict(decay=2 * np.log(2)),
        [[0.5 * HALF, 0], [-0.5 * HALF, 0]],
    ),
]


@DTYPES
@pytest.mark.parametrize(
    ("name", "rows", "keywords", "wanted"), BY_HAND, ids=[x[0] for x in BY_HAND]
)
def test_by_hand(name, rows, keywords, wanted, dtype):
  got = call(name, rows, dtype, **keywords) * rows.get("valid_B", 1)
  near = dict(rtol=1e-7, atol=1e-7) if name == "hybrid" else NEAR["float64"]
  if dtype == "float32":
    near = dict(rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(got, wanted, **near)


def test_defaults():
  norm = dict(eps=1e-6, ddof=1)
  wanted = dict(
      pass_at_k=dict(k=4, eps=1e-6),
      weak_positives=dict(weight=0.1),
      gdpo=norm,
      quality_weighted=dict(alpha=1.0),
      score_weighted=dict(alpha=1.0),
      hierarchical=dict(mix=0.5) | norm,
      explore=dict(bonus=0.1, decay=1.0) | norm,
      gae_exp_complexity=dict(
          gamma=1.0, lam=0.95, decay=1.0, slope=0.5, hardest=10.0
      ),
      optimal_token_baseline=dict(zero_tail=0, eps=1e-8),
      hybrid=dict(mix=0.5, decay=1.0, gamma=1.0, alpha=0.05) | norm,
  )
  for name in public(advantage_variants):
    found = getattr(advantage_variants, name).__kwdefaults__ or {}
    assert found == wanted.get(name, {}), name


def test_every_variant_has_numbers_by_hand():
  # Of those with parts, in tests below.
  others = {"gdpo", "score_weighted"}
  assert {x[0] for x in BY_HAND} | others == public(advantage_variants)


@DTYPES
def test_score_weighted_by_hand(dtype):
  """Scores 1, 4, 9 at strength 1/2 weigh 1, 2, 3; 1, 16, 81 at strength 2.

  1 - (0 * 2 + 3 * 3) / 5 = -4/5, 0 - (1 + 9) / 4 = -5/2, 3 - 1 / 3 = 8/3. The
  other group: a response without a score, or with a score of 0, weighs nothing.
  """
  rewards, scores = [1.0, 0, 3, 2, 4, 8], [1.0, 4, 9, np.nan, 0.5, 0]
  with jax.enable_x64(dtype == "float64"):
    rewards_B, scores_B = jnp.array(rewards, dtype), jnp.array(scores, dtype)
    parts = {"outcome": (9 * rewards_B, 1.0), "judge": (scores_B, 0.0)}
    groups_B = jnp.array([7, 7, 7, -1, -1, -1])

    def of(alpha, times=1.0):
      found = parts | {"judge": (times * scores_B, 0.0)}
      got_B = advantage_variants.score_weighted(
          rewards_B, groups_B, found, score="judge", alpha=alpha
      )
      assert got_B.dtype == dtype
      return np.asarray(got_B)

    near = dict(rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(
        of(0.5), [-4 / 5, -5 / 2, 8 / 3, -2, 0, 4], **near
    )
    np.testing.assert_allclose(
        of(2.0)[:3],
        [1 - 243 / 97, -(1 + 243) / 82, 3 - 1 / 17],
        **near,
    )
    # Any scale, also where a power would overflow; strength 0 is RLOO.
    np.testing.assert_allclose(of(2.0, 1e25), of(2.0), **near)
    loo_B = advantages.leave_one_out(rewards_B, groups_B)
    np.testing.assert_allclose(of(0.0), loo_B, **near)


def test_the_strength_of_quality():
  """Weights p^alpha of p = 1, 1/2, 1/4 at strength 2: 1, 1/4, 1/16."""
  rows = WEIGHED | dict(
      logps_BT=np.log([[1.0], [0.5], [0.25]]), mask_BT=np.ones((3, 1), bool)
  )
  got = call("quality_weighted", rows, "float64", alpha=2.0)
  wanted = [1 - 0.1875 / 0.3125, -(1 + 0.1875) / 1.0625, 3 - 1 / 1.25]
  np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_a_part_without_a_score_is_not_in_its_statistics():
  """The second part is of two responses; the third has no part at all."""
  nan = jnp.nan
  parts = {
      "a": (jnp.array([1.0, 0, nan, 1]), 1.0),
      "b": (jnp.array([nan, 4.0, nan, 2]), 1.0),
  }
  zeros_B = jnp.zeros(4)
  got_B, metrics = advantage_variants.gdpo(
      zeros_B, zeros_B.astype(int), jnp.ones(4, bool), parts, eps=0.0
  )
  third = 3**-0.5
  want_B = [third, -2 * third + HALF, 0, third - HALF]
  np.testing.assert_allclose(got_B, want_B, rtol=1e-5)
  assert metrics["reward/b/mean"] == 3


@pytest.mark.parametrize(
    "rewards_BT, silent",
    [
        ([[0, 0, 1], [0, 0, 1]], True),
        ([[0.5, 0, 1], [0.5, 0, 1]], True),
        ([[1, 0, 0], [0, 0, 1]], False),  # the same sum, elsewhere
        ([[0.5, 0, 1], [0, 0, 1]], False),  # equal outcomes, other steps
        ([[0, 0.1, 0], [0, 0, 0]], False),
    ],
)
def test_a_group_of_equal_returns_is_silent(rewards_BT, silent):
  """OTB: token by token, and not by the outcomes, which are equal here."""
  rewards_BT = jnp.array(rewards_BT, jnp.float32)
  got_BT = advantage_variants.optimal_token_baseline(
      jnp.ones(2),
      rewards_BT,
      jnp.zeros(2, int),
      jnp.log(jnp.full((2, 3), 0.5)),
      jnp.full((2, 3), 0.5),
      jnp.ones((2, 3), bool),
  )
  assert bool((got_BT == 0).all()) == silent
  if not silent:  # of equal weights the baseline is the mean
    returns_BT = jnp.cumsum(rewards_BT[:, ::-1], 1)[:, ::-1]
    wanted_BT = returns_BT - returns_BT.mean(0)
    np.testing.assert_allclose(got_BT, wanted_BT, atol=1e-6)


@DTYPES
def test_gdpo_by_hand(dtype):
  """Parts of deviations +-1/2 and +-5: both normalise to +-sqrt(1/2).

  The second one weighs 1/2 and has the other sign; in the other group only it
  differs. The fifth row is padding. Shares: 2 of 4 terms are 1, 4 are 1/2.
  """
  a, b = np.array([1.0, 0, 0, 0, 9]), np.array([0.0, 10, 30, 20, -50])
  with jax.enable_x64(dtype == "float64"):
    parts = {"a": (jnp.array(a, dtype), 1.0), "b": (jnp.array(b, dtype), 0.5)}
    got, metrics = advantage_variants.gdpo(
        jnp.array(a + b / 2, dtype),
        jnp.array([0, 0, 1, 1, -1]),
        jnp.array([True] * 4 + [False]),
        parts,
        eps=1e-30,
    )
  assert got.dtype == dtype
  want = np.array([0.5, -0.5, 0.5, -0.5]) * HALF
  np.testing.assert_allclose(got[:4], want, rtol=1e-6)
  wanted = {
      "reward/a/mean": 1 / 4,
      "reward/a/std": a[:4].std(),
      "reward/a/advantage_share": 1 / 2,
      "reward/b/mean": 15,
      "reward/b/std": b[:4].std(),
      "reward/b/advantage_share": 1 / 2,
  }
  assert metrics == pytest.approx(wanted, rel=1e-6)


@given(data=st.data())
@QUICK
def test_pass_at_k_is_the_mean_over_all_draws(data):
  """k = 1 is GRPO with the deviation of G and not of G - 1."""
  rewards_B = np.array(data.draw(st.lists(SIGNS, min_size=B, max_size=B)))
  groups_B = np.repeat([3, -1], B // 2).astype(np.int32)
  rows = dict(rewards_B=rewards_B, groups_B=groups_B)
  k = data.draw(st.integers(1, B // 2))
  wanted = reference.pass_at_k(rewards_B, groups_B, k)
  got = call("pass_at_k", rows, k=k)
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
  if k == 1:
    grpo = call("group_norm", rows, ddof=0)
    np.testing.assert_allclose(got, grpo, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero_tail", [0, 1])
@given(data=st.data())
@QUICK
def test_optimal_token_baseline_matches_numpy(zero_tail, data):
  rows = data.draw(strategy("optimal_token_baseline"))
  got = call("optimal_token_baseline", rows, zero_tail=zero_tail)
  wanted = expect("optimal_token_baseline", rows, zero_tail=zero_tail)
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


# --- one is another in the limit ---------------------------------------------


@pytest.mark.parametrize(
    ("name", "keywords", "other", "more"),
    [
        ("hierarchical", dict(mix=1.0), "group_norm", "types_B"),
        ("hierarchical", dict(mix=0.0), "group_norm", None),
        ("explore", dict(bonus=0.0), "group_norm", "groups_B"),
        ("temporal", {}, "leave_one_out", "problems_B"),
    ],
)
@given(data=st.data())
@QUICK
def test_limits(name, keywords, other, more, data):
  rows = data.draw(strategy(name))
  if name == "temporal":
    rows["past_weights_H"] = np.zeros(H)
  if "valid_B" in rows:
    rows["valid_B"] = np.ones(B, bool)
  ids_B = rows[more] if more else np.zeros(B, np.int32)
  np.testing.assert_allclose(
      call(name, rows, **keywords),
      call(other, rows | dict(groups_B=ids_B)),
      rtol=1e-4,
      atol=1e-4,
  )


@given(data=st.data())
@QUICK
def test_weighing_alike_is_leave_one_out(data):
  """Responses of one length, one probability."""
  rows = data.draw(strategy("quality_weighted"))
  rows |= dict(logps_BT=np.full((B, T), -0.5), mask_BT=np.ones((B, T), bool))
  wanted = call("leave_one_out", rows)
  for name in ("length_weighted", "quality_weighted"):
    np.testing.assert_allclose(call(name, rows), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("others", [-8.0, -14.0, -40.0, -120.0])
def test_a_likely_response_has_a_baseline_of_unlikely_ones(others):
  """Its weight is a million times theirs: in a difference they would vanish."""
  rows = dict(
      rewards_B=np.array([1.0, 1.0, 0.0, 1.0]),
      groups_B=np.zeros(4, np.int32),
      logps_BT=np.array([[-0.05], [others], [others - 1], [others - 2]]),
      mask_BT=np.ones((4, 1), bool),
  )
  weight = np.exp([0.0, -1, -2])  # of the three others
  got = call("quality_weighted", rows)
  if others > -80:  # below, e^-x is 0 beside 1 in fp32: they count as nothing
    wanted = 1 - (weight * [1, 0, 1]).sum() / weight.sum()
    assert got[0] == pytest.approx(wanted, abs=1e-6)
  # Of the others one response is nearly all of the weight.
  np.testing.assert_allclose(got[1:], [0, -1, 0], atol=1e-3)


def test_weights_by_quality_do_not_change_with_the_scale_of_probabilities():
  """Only their ratios matter, where exp underflows in float32, too."""
  logps_BT = np.array([[-1.0], [-2.0], [-1.5], [-3.0]])
  rows = dict(
      rewards_B=np.array([1.0, 1.0, 0.0, 0.5]),
      groups_B=np.zeros(4, np.int32),
      mask_BT=np.ones((4, 1), bool),
  )
  near, far = (
      call("quality_weighted", rows | dict(logps_BT=logps_BT - shift))
      for shift in (0, 100)
  )
  np.testing.assert_allclose(far, near, rtol=1e-4)


@given(data=st.data())
@QUICK
def test_limits_of_gae_exp_complexity(data):
  """No decay, no slope: GAE. The hardest problems at slope 1: TD errors."""
  rows = data.draw(strategy("gae_exp_complexity"))
  name, near = "gae_exp_complexity", dict(rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
      call(name, rows, gamma=0.75, lam=0.5, decay=0.0, slope=0.0),
      call("gae", rows, gamma=0.75, lam=0.5),
      **near,
  )
  rows["types_B"] = np.full(B, 3, np.int32)
  np.testing.assert_allclose(
      call(name, rows, slope=1.0, hardest=3.0),
      call("gae", rows, gamma=1.0, lam=0.0),
      **near,
  )


@given(data=st.data())
@QUICK
def test_limits_of_hybrid(data):
  """Share 1 without decay: VAPO's, whitened; share 0: GRPO's, whitened."""
  rows = data.draw(strategy("hybrid"))
  mask_BT = rows["mask_BT"]
  vapo_BT = call("gae_length_adaptive", rows, alpha=0.5)
  grpo_BT = call("group_norm", rows)[:, None] * mask_BT
  wanted = [np.asarray(whiten(x, mask_BT)) for x in (vapo_BT, grpo_BT)]
  vapo = dict(mix=1.0, decay=0.0, alpha=0.5)
  for keywords, want in zip((vapo, dict(mix=0.0)), wanted, strict=True):
    got = call("hybrid", rows, **keywords)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


# --- no bias -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("leave_one_out", 1),
        ("length_weighted", 1),
        ("quality_weighted", 1),
        ("confidence_weighted", 1),
        ("group_mean", 2 / 3),
    ],
)
def test_baselines_of_others_are_unbiased(name, factor):
  """Three samples of three answers, all 27 outcomes by their probability.

  The expected gradient of RLOO is minus that of E[R], exactly; with the mean of
  all three, own reward included, it is (G - 1) / G of it.
  """
  logits_V, rewards_V = np.array([0.3, -0.8, 1.1]), np.array([1.0, -2.0, 0.5])
  lengths_V = np.array([1, 4, 2])
  drawn = np.stack(np.meshgrid(*[range(3)] * 3), -1).reshape(-1)  # [81]
  groups_B = np.repeat(np.arange(27), 3)
  mask_BT = np.arange(4) < lengths_V[drawn][:, None]

  def expected(logits_V):
    logp_V = jax.nn.log_softmax(logits_V)
    # log p of an answer, in equal parts on its tokens.
    logps_BT = (logp_V / lengths_V)[drawn][:, None] * mask_BT
    old_BT = jax.lax.stop_gradient(logps_BT)
    arrays = dict(
        rewards_B=jnp.array(rewards_V)[drawn],
        groups_B=groups_B,
        logps_BT=old_BT,
        mask_BT=mask_BT,
    )
    needs = {
        "length_weighted": ["mask_BT"],
        "quality_weighted": ["logps_BT", "mask_BT"],
    }
    baseline = function(name)
    advantage_B = baseline(
        *(arrays[k] for k in ["rewards_B", "groups_B", *needs.get(name, [])])
    )
    loss_BT, _ = surrogates.reinforce(
        logps_BT,
        old_BT,
        jnp.broadcast_to(advantage_B[:, None], mask_BT.shape),
        mask_BT,
    )
    chance_B = jnp.exp(
        jax.lax.stop_gradient(logp_V)[drawn].reshape(27, 3).sum(1)
    )[groups_B]
    return jnp.sum(chance_B[:, None] / 3 * loss_BT * mask_BT)

  with jax.enable_x64(True):
    got = jax.jit(jax.grad(expected))(jnp.array(logits_V))
    wanted = jax.grad(lambda x: -jnp.sum(jax.nn.softmax(x) * rewards_V))(
        jnp.array(logits_V)
    )
  assert np.abs(wanted).max() > 0.1
  np.testing.assert_allclose(
      got, factor * np.asarray(wanted), rtol=1e-10, atol=1e-12
  )
