"""Learning rates, at the steps where an off-by-one would show."""

import jax
import numpy as np
import pytest

from rl_reason.algorithms import schedules
from rl_reason.training import optimizer


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
  """From the peak at step 2 (warm-up over) to 0 at step 10."""
  got = rates("linear", [0, 1, 2, 6, 10, 50], peak=0.1, warmup=2, total=10)
  np.testing.assert_allclose(got, [0.05, 0.1, 0.1, 0.05, 0, 0], rtol=1e-6)


def test_cosine():
  """peak * (1 + cos(pi * x)) / 2 at x = 0, 1/4, 1/2, 1.

  x = 1/4: (1 + 0.70710678) / 2 = 0.85355339.
  """
  got = rates("cosine", [2, 4, 6, 10, 50], peak=1.0, warmup=2, total=10)
  np.testing.assert_allclose(got, [1, 0.85355339, 0.5, 0, 0], atol=1e-7)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
def test_rates_of_a_table_are_those_inside_of_a_program(kind):
  """To the last bit: programs that read a table change no number of a run."""
  rate = dict(warmup=3, total=47)
  table_S = optimizer.learning_rates(60, lr=4e-3, schedule=kind, **rate)
  scheduled = jax.jit(schedules.learning_rate(kind, peak=4e-3, **rate))
  np.testing.assert_array_equal(table_S, [scheduled(t) for t in range(60)])
  assert table_S.dtype == np.float32 and len(set(table_S.tolist())) > 2


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
def test_warmup_longer_than_the_stage(kind):
  """No division by zero; the run ends while it still warms up."""
  got = rates(kind, range(3), peak=1.0, warmup=5, total=3)
  np.testing.assert_allclose(got, [0.2, 0.4, 0.6], rtol=1e-6)


def test_unknown_kind():
  with pytest.raises(ValueError, match="schedule 'step': one of .*constant"):
    schedules.learning_rate("step", peak=1.0, warmup=0, total=1)
