"""Learning rates, at the steps where an off-by-one would show; controllers."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rl_reason.algorithms import schedules


def rates(kind, steps, **keywords):
  schedule = schedules.learning_rate(kind, **keywords)
  return [float(schedule(t)) for t in steps]


def test_warmup_learns_from_the_first_update():
  """min(1, (t + 1) / 4) of the peak: 1/4, 2/4, 3/4, 4/4, and no step twice."""
  got = rates("constant", range(6), peak=8e-4, warmup=4, total=10)
  wanted = [2e-4, 4e-4, 6e-4, 8e-4, 8e-4, 8e-4]
  np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("warmup", [0, 1])
def test_no_warmup(warmup):
  got = rates("constant", range(3), peak=0.5, warmup=warmup, total=3)
  assert got == [0.5, 0.5, 0.5]


def test_linear():
  """From the peak at step 2 (warm-up over) to the floor at step 10.

  Step 6 is half-way: (0.1 + 0.02) / 2 = 0.06 with a floor of 20%.
  """
  got = rates(
      "linear", [0, 1, 2, 6, 10, 50], peak=0.1, warmup=2, total=10, floor=0.2
  )
  wanted = [0.05, 0.1, 0.1, 0.06, 0.02, 0.02]
  np.testing.assert_allclose(got, wanted, rtol=1e-6)
  assert rates("linear", [10], peak=0.1, warmup=2, total=10) == [0]


def test_cosine():
  """peak * (1 + cos(pi * x)) / 2 at x = 0, 1/4, 1/2, 1.

  x = 1/4: (1 + 0.70710678) / 2 = 0.85355339. With a floor of 10% of the peak
  half-way is (1 + 0.1) / 2 = 0.55.
  """
  got = rates("cosine", [2, 4, 6, 10, 50], peak=1.0, warmup=2, total=10)
  np.testing.assert_allclose(got, [1, 0.85355339, 0.5, 0, 0], atol=1e-7)
  got = rates("cosine", [0, 4, 8, 9], peak=1.0, warmup=0, total=8, floor=0.1)
  np.testing.assert_allclose(got, [1, 0.55, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
def test_warmup_longer_than_the_stage(kind):
  """No division by zero; the run ends while it still warms up."""
  got = rates(kind, range(3), peak=1.0, warmup=5, total=3)
  np.testing.assert_allclose(got, [0.2, 0.4, 0.6], rtol=1e-6)


def test_unknown_kind():
  with pytest.raises(ValueError, match="schedule 'step': one of .*constant"):
    schedules.learning_rate("step", peak=1.0, warmup=0, total=1)


@pytest.mark.parametrize(
    ("kl", "wanted"),
    [
        # rows / horizon = 1/4; errors 1.1 - 1 = .1, .9 - 1 = -.1, then +-.2.
        (5.5, 2 * 1.025),
        (4.5, 2 * 0.975),
        (5.0, 2),
        (500.0, 2 * 1.05),
        (0.0, 2 * 0.95),
        (-3.0, 2 * 0.95),  # an estimate may be negative
    ],
)
def test_adaptive_kl_by_hand(kl, wanted):
  got = schedules.adaptive_kl(2.0, kl, target=5.0, horizon=400, rows=100)
  assert got == pytest.approx(wanted, rel=1e-12)


def test_adaptive_entropy_by_hand():
  """.5 +- .2: up below the target of 1, down at it and above, not below 0."""
  after = [
      schedules.adaptive_entropy(coef, entropy, target=1.0, step=0.2)
      for coef, entropy in [(0.5, 0.9), (0.5, 1.0), (0.5, 3.0), (0.1, 3.0)]
  ]
  assert after == pytest.approx([0.7, 0.3, 0.3, 0.0])


def test_without_a_target_nothing_adapts():
  assert schedules.adaptive_kl(0.3, 9.0, target=0.0, horizon=1, rows=8) == 0.3
  assert schedules.adaptive_entropy(0.3, 0.0, target=0.0, step=0.1) == 0.3


@given(
    gain=st.floats(0.5, 5), target=st.floats(0.05, 2), coef=st.floats(0.1, 10)
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_adaptive_kl_holds_its_target(gain, target, coef):
  """A policy whose KL is gain / coefficient settles at the target."""
  for _ in range(400):
    kl = gain / coef
    before, coef = coef, schedules.adaptive_kl(
        coef, kl, target=target, horizon=1000, rows=250
    )
    assert abs(coef / before - 1) <= 0.05 + 1e-12
    assert (coef - before) * (kl - target) >= 0
  assert gain / coef == pytest.approx(target, rel=1e-3)
