"""Credit by turn: hand-worked numbers."""

import functools
import inspect

import numpy as np
import pytest
from by_hand import public, quick_jit

from rl_reason.algorithms import credit, rewards
from rl_reason.features.environments import turns

# Two rows of one group with two and three turns, and padding. Turns of row 0
# have rewards 1 and 2 and the values 1/2 and 3/4 before them; row 1 has 1, 1, 4
# and 0, 1, 2. 9 stands where nothing may look.
TURNS = np.array([[1, 1, 0, 2, 2, 0], [1, 0, 0, 2, 3, 0], [1, 1, 2, 2, 2, 2]])
ROWS = dict(
    turns_BT=TURNS,
    rewards_BT=np.array(
        [[0.0, 1, 9, 0, 2, 9], [1, 9, 9, 1, 4, 9], [0, 7, 0, 0, 0, 7]]
    ),
    values_BT=np.array(
        [[0.5, 9, 9, 0.75, 9, 9], [0, 9, 9, 1, 2, 9], [0, 0, 0, 0, 0, 0]]
    ),
    groups_B=np.array([7, 7, -1]),
)


def by_turn(*rows):
  """The number of each token's turn."""
  return [
      [0 if n == 0 else row[n - 1] for n in turns_T]
      for turns_T, row in zip(TURNS.tolist(), rows, strict=False)
  ]


BY_HAND = [
    # gamma = lam = 1/2. Row 0: delta_2 = 2 - 3/4 = 5/4, delta_1 = 1 + 3/8 - 1/2
    # = 7/8; A_1 = 7/8 + 5/16 = 19/16. Row 1: deltas 3/2, 1 + 1 - 1 = 1, 2;
    # A_2 = 1 + 1/2 = 3/2, A_1 = 3/2 + 3/8 = 15/8.
    (
        "gae_by_turn",
        dict(gamma=0.5, lam=0.5),
        by_turn([19 / 16, 5 / 4], [15 / 8, 3 / 2, 2]),
    ),
    # Two turns: lam = 1/2, as above. Three: lam = 2/3, gamma lam = 1/3:
    # A_2 = 1 + 2/3 = 5/3, A_1 = 3/2 + 5/9.
    (
        "gae_by_turn_length_adaptive",
        dict(gamma=0.5, alpha=1.0),
        by_turn([19 / 16, 5 / 4], [3 / 2 + 5 / 9, 5 / 3, 2]),
    ),
    # Returns: row 0 has 1 + 1 = 2 and 2; row 1 1 + 3/2 = 5/2, 1 + 2 = 3 and 4.
    # Means: 9/4 and 5/2; only row 1 has a third turn.
    (
        "returns_by_turn",
        dict(gamma=0.5),
        by_turn([-1 / 4, -1 / 2], [1 / 4, 1 / 2, 0]),
    ),
]


def called(name, arrays, **keywords):
  function = getattr(turns, name)
  named = inspect.signature(function).parameters
  return quick_jit(function)(
      *(arrays[x] for x in named if x in arrays), **keywords
  )


@pytest.mark.parametrize(
    ("name", "keywords", "wanted"), BY_HAND, ids=[x[0] for x in BY_HAND]
)
def test_by_hand(name, keywords, wanted):
  got = called(name, ROWS, **keywords)
  np.testing.assert_allclose(got[:2], wanted, rtol=1e-6)
  assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("gae_by_turn", dict(gamma=1.0, lam=0.95)),
        ("gae_by_turn_length_adaptive", dict(gamma=1.0, alpha=1.0)),
        ("returns_by_turn", dict(gamma=1.0)),
    ],
)
def test_defaults(name, defaults):
  wanted = called(name, ROWS, **defaults)
  np.testing.assert_array_equal(called(name, ROWS), wanted)


def test_each_token_may_be_a_turn():
  """Returns are 7, 6, 4; 8, 2; 2, 2, 2 in group 0, and of two rows of padding.

  Means of the turns of group 0: 17/3, 10/3, and 3 of the two rows with a third.
  """
  rows = dict(
      turns_BT=np.array(
          [[1, 2, 3], [1, 1, 2], [1, 2, 3], [1, 0, 0], [1, 0, 0]]
      ),
      rewards_BT=np.array(
          [[1.0, 2, 4], [0, 6, 2], [0, 0, 2], [5, 9, 9], [3, 9, 9]]
      ),
      values_BT=np.zeros((5, 3)),
      groups_B=np.array([0, 0, 0, -1, -1]),
  )
  got = called("gae_by_turn", rows, gamma=1.0, lam=1.0)
  wanted = [[7, 6, 4], [8, 8, 2], [2, 2, 2], [5, 0, 0], [3, 0, 0]]
  np.testing.assert_allclose(got, wanted, rtol=1e-6)
  first = {name: x[:1] for name, x in rows.items()}
  got = called("gae_by_turn", first, gamma=1.0, lam=1.0)
  np.testing.assert_allclose(got, wanted[:1], rtol=1e-6)
  wanted = (
      np.array([[4, 8, 3], [7, 7, -4], [-11, -4, -3], [0] * 3, [0] * 3]) / 3
  )
  for order in ([0, 1, 2, 3, 4], [1, 0, 2, 4, 3]):
    got = called("returns_by_turn", {k: x[order] for k, x in rows.items()})
    np.testing.assert_allclose(got, wanted[order], atol=1e-6)


def test_every_function_has_numbers_by_hand():
  assert {x[0] for x in BY_HAND} | {"total"} == public(turns)
  got = turns.total(np.float32([[0, 1, 0, 2]]))
  np.testing.assert_array_equal(got, [3])


def test_rewards_stay_at_the_ends_of_turns():
  """A penalty of -1/2 for the whole response is at its last token."""
  got = rewards.per_token(
      np.float32([2.5, 1.0]),
      TURNS[:2] > 0,
      np.zeros((2, 6), np.float32),
      0.0,
      np.float32([[0, 1, 0, 0, 2, 0], [-1, 0, 0, 2, 0, 0]]),
  )
  np.testing.assert_array_equal(
      got, [[0, 1, 0, 0, 1.5, 0], [-1, 0, 0, 2, 0, 0]]
  )


def test_returns_of_the_critic_count_the_turns_that_follow():
  """Rewards 1 and 2, and nothing else: 3 in the first turn, 2 in the second."""
  rows = dict(
      mask_BT=TURNS[:1] > 0,
      values_BT=np.zeros((1, 6), np.float32),
      rewards_B=np.float32([3]),
      turn_rewards_BT=np.float32([[0, 1, 0, 0, 2, 0]]),
  )
  got = quick_jit(functools.partial(credit.monte_carlo, gamma=1.0))(rows)
  np.testing.assert_array_equal(got["returns_BT"], [[3, 3, 0, 2, 2, 0]])
