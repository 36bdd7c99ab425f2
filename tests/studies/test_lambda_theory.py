"""The moments of studies/lambda_theory against formulas worked by hand."""

import itertools

import numpy as np
import pytest

from studies.lambda_theory import run as theory

pytestmark = pytest.mark.slow


def exact(task):
  return theory.values(task, theory.outcomes(task)[0])


def test_values_are_the_chances_of_a_correct_response():
  task = theory.Task(tokens=12, decisive=3, accuracy=0.2)
  right_NK, chance_N = theory.outcomes(task)
  assert task.places().tolist() == [2, 6, 10]
  assert chance_N.sum() == pytest.approx(1)
  assert chance_N @ right_NK.all(1) == pytest.approx(0.2)
  for row_K, got_T in zip(right_NK, exact(task), strict=True):
    for t, value in enumerate(got_T):
      known = [x for x, at in zip(row_K, task.places(), strict=True) if at < t]
      same_N = (right_NK[:, : len(known)] == known).all(1)
      want = chance_N @ (same_N & (right_NK.all(1))) / (chance_N @ same_N)
      assert value == pytest.approx(want)


@pytest.mark.parametrize("lam", ["0.95", "1"])
def test_one_decision_and_an_exact_critic(lam):
  """The TD error is .7 or -.3 at the decision, and 0 elsewhere."""
  task = theory.Task(tokens=64, decisive=1)
  found = theory.moments(task, exact(task), lam)
  decisive = 0.3 * 0.49**2 + 0.7 * 0.09**2 - 0.21**2
  before = 0.21 * sum(float(lam) ** (2 * i) for i in range(1, 33)) / 4
  assert found["signal"] == pytest.approx(1)
  assert found["drift"] == pytest.approx(0)
  assert found["responses"] == pytest.approx((decisive + before) / 0.21**2)


def test_a_blind_critic_loses_the_signal_by_the_distance_to_the_end():
  task = theory.Task(tokens=64, decisive=1)
  critic_NT = theory.unseen(1.0, task, exact(task))
  assert np.ptp(critic_NT) == 0
  for lam, want in (("1", 1), ("0.95", 0.95**31), ("adaptive", 0.6875**31)):
    found = theory.moments(task, critic_NT, lam)
    assert found["signal"] == pytest.approx(want)


def test_values_that_are_too_high_make_eos_cost_their_excess():
  """With lambda 1 the rest of the response costs as much."""
  task = theory.Task(tokens=400, decisive=1)
  critic_NT = theory.offset(0.3, task, exact(task))
  left = task.tokens - (task.places()[0] + task.tokens) // 2
  want = -0.3 + 0.3 * 0.95 ** (left - 1)
  assert theory.ending(task, critic_NT, "0.95") == pytest.approx(want)
  assert theory.ending(task, critic_NT, "1") == pytest.approx(0, abs=1e-12)


def test_monte_carlo_targets_need_one_fit():
  for tokens, k in itertools.product((16, 48), (1, 3)):
    task = theory.Task(tokens, k)
    assert theory.fits(task, 1.0) == 1
    assert theory.fits(task, 0.9) <= theory.fits(task, 0.5)
  assert theory.fits(theory.Task(48, 3), 0.5) > 5
