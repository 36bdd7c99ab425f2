"""Advantages: hand-worked numbers, an independent version, and invariances."""

import jax.numpy as jnp
import numpy as np
import pytest
from advantage_inputs import (
    GROUPS,
    OF_OTHERS,
    OF_RESPONSES,
    OF_TOKENS,
    B,
    H,
    call,
    example,
    expect,
    function,
    real,
    strategy,
)
from by_hand import DTYPES, NEAR, QUICK, public
from hypothesis import given, strategies as st

from rl_reason.algorithms import advantages

# --- by hand -----------------------------------------------------------------

HALF = np.sqrt(0.5)
DELTAS = dict(  # with gamma 1: 1/4 - 1/2 = -1/4, 3/4 - 1/4 = 1/2, 1 - 3/4 = 1/4
    rewards_BT=[[0.0, 0.0, 1.0]],
    values_BT=[[0.5, 0.25, 0.75]],
    mask_BT=[[True, True, True]],
)
# Two prompts with four samples each, rows of a prompt apart.
#   rewards 1, 0, 0, 1:    mean 1/2, deviations +-1/2; squares add up to 1,
#                          std (ddof 1) = sqrt(1 / 3)
#   rewards 1, -1, -1, -1: mean -1/2, deviations 3/2, -1/2 (x3); squares add up
#                          to 9/4 + 3/4 = 3, std = sqrt(3 / 3) = 1
TWO = dict(
    rewards_B=[1.0, 1.0, 0.0, -1.0, 0.0, -1.0, 1.0, -1.0],
    groups_B=[4, -2, 4, -2, 4, -2, 4, -2],
)
BATCH = dict(
    rewards_B=[1.0, 0.0, 3.0, 0.0, 50.0],
    groups_B=[1, 1, 2, 2, 3],
    valid_B=np.array([True, True, True, True, False]),
)
BY_HAND = [  # (name, arrays, keywords, wanted)
    ("group_mean", TWO, {}, [0.5, 1.5, -0.5, -0.5, -0.5, -0.5, 0.5, -0.5]),
    (
        "group_norm",
        TWO,
        {},
        np.array([0.5, 1.5, -0.5, -0.5, -0.5, -0.5, 0.5, -0.5])
        / (np.array([3**-0.5, 1] * 4) + 1e-6),
    ),
    # ddof 0: std of 1, 0, 0, 1 is 1/2, of 1, -1, -1, -1 sqrt(3 / 4).
    (
        "group_norm",
        TWO,
        dict(eps=0.5, ddof=0),
        np.array([0.5, 1.5, -0.5, -0.5, -0.5, -0.5, 0.5, -0.5])
        / np.array([1, 0.5 + 0.75**0.5] * 4),
    ),
    # Deviations +-1/2 and +-3/2. Without the padding row the batch has mean 1,
    # squares 0 + 1 + 4 + 1 = 6, variance 6 / 3 = 2.
    (
        "group_mean_batch_std",
        BATCH,
        dict(eps=1e-30),
        [0.5 * HALF, -0.5 * HALF, 1.5 * HALF, -1.5 * HALF, 0],
    ),
    # 1 - (0+0+1)/3 = 2/3; 0 - (1+0+1)/3 = -2/3;
    # 1 - (-1) = 2; -1 - (1-1-1)/3 = -2/3
    (
        "leave_one_out",
        TWO,
        {},
        [2 / 3, 2, -2 / 3, -2 / 3, -2 / 3, -2 / 3, 2 / 3, -2 / 3],
    ),
    # Mean 1/4: (1 - 1/4) / (1/4) = 3 and -1. All right, all wrong: nothing.
    (
        "max_rl",
        dict(
            rewards_B=[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0],
            groups_B=[1, 1, 1, 1, 2, 2, 3, 3],
        ),
        {},
        [3, -1, -1, -1, 0, 0, 0, 0],
    ),
    # From the end: 4; 2 + 4/2 = 4; 1 + 4/2 = 3. The hole costs no discount.
    (
        "returns_to_go",
        dict(
            rewards_BT=[[1.0, 2.0, 9.0, 4.0]],
            mask_BT=[[True, True, False, True]],
        ),
        dict(gamma=0.5),
        [[3, 4, 0, 4]],
    ),
    # 1/4; 1/2 + 1/8 = 5/8; -1/4 + 5/16 = 1/16
    ("gae", DELTAS, dict(lam=0.5), [[1 / 16, 5 / 8, 1 / 4]]),
    # gamma 1/2: deltas 1/8 - 1/2, 3/8 - 1/4, 1/4; gamma lam = 1/4:
    # 1/4; 1/8 + 1/16 = 3/16; -3/8 + 3/64 = -21/64
    ("gae", DELTAS, dict(gamma=0.5, lam=0.5), [[-21 / 64, 3 / 16, 1 / 4]]),
    # l = 3: lam = 1 - 1/(3/2) = 1/3: 1/4; 1/2 + 1/12 = 7/12; -1/4 + 7/36
    (
        "gae_length_adaptive",
        DELTAS,
        dict(alpha=0.5),
        [[-1 / 18, 7 / 12, 1 / 4]],
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


def test_every_advantage_has_numbers_by_hand():
  assert {x[0] for x in BY_HAND} == public(advantages)
  assert public(advantages) <= {*OF_RESPONSES, *OF_TOKENS}


# --- against NumPy -----------------------------------------------------------

CASES = [(name, {}) for name in sorted(public(advantages))] + [
    ("group_norm", dict(eps=1e-4, ddof=0)),
    ("group_mean_batch_std", dict(eps=1e-4, ddof=0)),
    ("returns_to_go", dict(gamma=0.75)),
    ("gae", dict(gamma=0.75, lam=0.5)),
    ("gae_length_adaptive", dict(gamma=0.75, alpha=0.5)),
]


@pytest.mark.parametrize(("name", "keywords"), CASES, ids=[x[0] for x in CASES])
@given(data=st.data())
@QUICK
def test_matches_numpy(name, keywords, data):
  rows = data.draw(strategy(name))
  wanted = expect(name, rows, **keywords)[real(rows)]
  got = call(name, rows, **keywords)[real(rows)]
  np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


# --- invariances -------------------------------------------------------------


def assert_moves(name, rows, moves, **keywords):
  """name(rows | change) == factor * name(rows)."""
  got = call(name, rows, **keywords)
  for label, change, factor in moves:
    moved = call(name, rows | change, **keywords)
    np.testing.assert_allclose(
        moved[real(rows)],
        factor * got[real(rows)],
        rtol=1e-4,
        atol=1e-4,
        err_msg=label,
    )


@pytest.mark.parametrize("name", OF_RESPONSES)
@given(data=st.data())
@QUICK
def test_origin_and_unit_of_the_rewards(name, data):
  rows = data.draw(strategy(name))
  both = {k: rows[k] for k in ("rewards_B", "past_rewards_H") if k in rows}
  normed = name in ("group_norm", "group_mean_batch_std", "hierarchical")
  free = normed or name in ("rank", "explore", "max_rl")
  moves = []
  if name not in ("max_rl", "confidence_weighted"):
    shifted = {k: x + 2.5 for k, x in both.items()}
    moves.append(("shift", shifted, 1))
  if name != "confidence_weighted":
    scaled = {k: 4 * x for k, x in both.items()}
    moves.append(("scale", scaled, 1 if free else 4))
  if name not in ("max_rl", "explore"):
    moves.append(("sign", {k: -x for k, x in both.items()}, -1))
  if name == "rank":
    moves.append(("monotone", dict(rewards_B=np.exp(rows["rewards_B"])), 1))
  # No eps in the way, short of dividing 0 by 0.
  eps = dict(eps=1e-30) if normed or name == "explore" else {}
  assert_moves(name, rows, moves, **eps)


@pytest.mark.parametrize("name", [*OF_RESPONSES, *OF_TOKENS])
@given(data=st.data())
@QUICK
def test_rows_have_no_order_and_groups_no_names(name, data):
  rows = data.draw(strategy(name))
  got = call(name, rows)
  order = np.array(data.draw(st.permutations(range(B))))
  past = np.array(data.draw(st.permutations(range(H))))
  moved = call(
      name,
      {
          k: x[order] if "_B" in k else x[past] if "_H" in k else x
          for k, x in rows.items()
      },
  )
  np.testing.assert_allclose(moved, got[order], rtol=2e-5, atol=1e-5)

  if name == "gae_exp_complexity":
    return  # its types are numbers, not names
  named = [k for k in rows if k in GROUPS | {"past_problems_H"}]
  every = sorted({i for k in named for i in rows[k].tolist()})
  names = {i: 17 - 3 * n for n, i in enumerate(every)}
  other = {k: np.int32([names[i] for i in rows[k]]) for k in named}
  moved = call(name, rows | other)
  np.testing.assert_allclose(
      moved[real(rows)], got[real(rows)], rtol=2e-5, atol=1e-5
  )


@pytest.mark.parametrize("name", [*OF_RESPONSES, *OF_TOKENS])
@given(data=st.data())
@QUICK
def test_padding_and_hidden_tokens_change_nothing(name, data):
  """Rows 6 and 7 are padding: no mask, a group of their own, any content."""
  rows, other = data.draw(strategy(name)), data.draw(strategy(name))
  pads = np.arange(B) >= 6
  empty = {}
  if "valid_B" in rows:
    empty["valid_B"] = rows["valid_B"] & ~pads
  for k in GROUPS & set(rows):
    # A type is that of some row; `valid_B` tells it from padding.
    keep = name == "hierarchical" or name == "gae_exp_complexity"
    empty[k] = rows[k] if keep else np.where(pads, 3, rows[k])
  if "mask_BT" in rows:
    empty["mask_BT"] = rows["mask_BT"] & ~pads[:, None]
  rows |= empty
  got = call(name, rows)
  for k in rows:
    if "_B" in k and k not in empty:
      shown = ~pads.reshape(B, *[1] * (rows[k].ndim - 1))
      rows[k] = np.where(shown, rows[k], other[k])
      if "_BT" in k and "mask_BT" in rows:
        rows[k] = np.where(rows["mask_BT"], rows[k], np.nan)
  moved = call(name, rows)
  keep = real(rows) & ~pads
  np.testing.assert_array_equal(moved[keep], got[keep])
  if name in OF_TOKENS:
    assert (moved[~rows["mask_BT"]] == 0).all()


@DTYPES
@pytest.mark.parametrize("name", OF_RESPONSES)
@pytest.mark.parametrize("value", [0.0, -1.0, 0.7, 0.1, 1e15])
def test_equal_rewards_have_no_signal(name, value, dtype):
  """Exactly 0: float32 sums seven 0.7 to a mean other than 0.7."""
  rows = example(name) | dict(rewards_B=np.full(B, value))
  assert (call(name, rows, dtype) == 0).all()


@pytest.mark.parametrize(
    "name", ["group_norm", "group_mean_batch_std", "hierarchical", "explore"]
)
def test_equal_rewards_have_no_signal_without_eps_either(name):
  rows = example(name) | dict(rewards_B=np.full(B, -1.0))
  assert (call(name, rows, eps=0.0) == 0).all()


@DTYPES
@pytest.mark.parametrize("name", OF_RESPONSES)
def test_a_group_of_one_has_no_signal(name, dtype):
  rows = example(name)
  if name == "max_rl":
    rows["rewards_B"] = np.float64([1, 0, 1, 0, 1, 1, 1, 0])
  got = call(name, rows, dtype, **dict(mix=1.0) if "types_B" in rows else {})
  assert np.isfinite(got).all()
  assert got[6] == 0 and np.count_nonzero(got) >= B - 2


@pytest.mark.parametrize("name", OF_OTHERS)
@given(data=st.data())
@QUICK
def test_the_baseline_does_not_know_the_reward(name, data):
  """R_b up by 5/8, all of it is advantage: nothing leaks into the baseline."""
  rows = data.draw(strategy(name))
  b = data.draw(st.integers(0, B - 1))
  higher_B = rows["rewards_B"] + 0.625 * (np.arange(B) == b)
  before, after = (
      call(name, x) for x in (rows, rows | dict(rewards_B=higher_B))
  )
  alone = before[b] == after[b] == 0
  assert alone or abs(after[b] - before[b] - 0.625) < 1e-4


@pytest.mark.parametrize("name", ["group_norm", "leave_one_out"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_of_a_thousand_keep_their_digits(name, dtype):
  """Row by row, sums of so many are off by 1e-5; counts in bf16 end at 256."""
  correct_B = np.random.default_rng(0).random(1024) < 0.4
  rewards_B = jnp.where(correct_B, 0.3, -0.7).astype(dtype)
  groups_B = np.zeros(1024, np.int32)
  got = function(name)(rewards_B, groups_B)
  assert got.dtype == dtype
  rows = dict(rewards_B=np.asarray(rewards_B, float), groups_B=groups_B)
  np.testing.assert_allclose(
      np.asarray(got, float),
      call(name, rows),
      atol=1e-6 if dtype == "float32" else 0.02,
  )


# --- of tokens ---------------------------------------------------------------


@pytest.mark.parametrize("name", OF_TOKENS)
@given(data=st.data())
@QUICK
def test_holes_are_skipped(name, data):
  """The same as with the tokens moved together."""
  rows = data.draw(strategy(name))
  order_BT = np.argsort(~rows["mask_BT"], axis=1, kind="stable")
  packed = {
      k: np.take_along_axis(x, order_BT, 1) if "_BT" in k else x
      for k, x in rows.items()
  }
  wanted = np.take_along_axis(call(name, rows), order_BT, 1)
  np.testing.assert_allclose(call(name, packed), wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("group_mean", [(4,), (3,)]),
        ("group_mean", [(2, 2), (2, 2)]),
        ("rank", [(4,), (3,)]),
        ("gae", [(2, 3), (2, 2), (2, 3)]),
        ("gae", [(3,), (3,), (3,)]),
    ],
)
def test_shapes_are_checked(name, shapes):
  with pytest.raises(AssertionError):
    function(name)(*map(jnp.zeros, shapes))


@pytest.mark.parametrize(
    "rewards, values", [("float32", "bfloat16"), ("int32", "float32")]
)
def test_gae_takes_arrays_of_two_dtypes(rewards, values):
  rewards_BT = jnp.array([[0, 0, 1]], rewards)
  values_BT = jnp.full((1, 3), 0.5, values)
  got = advantages.gae(rewards_BT, values_BT, jnp.ones((1, 3)), lam=1.0)
  assert got.dtype == "float32"
  np.testing.assert_array_equal(got, [[0.5, 0.5, 0.5]])
