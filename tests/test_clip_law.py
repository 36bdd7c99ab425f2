"""Clip-higher as a law: the formula by hand, the bandit, and the task."""

import math

import numpy as np
import pytest

from bench import clip_bandit, clip_law, clip_task
from bench.clip_bandit import FREE, Bandit
from rl_reason import tasks


def test_the_law_by_hand():
  """ln 50 = 3.912 over ln 1.2 = .1823, ln 1.28 = .2469 and ln 1.5 = .4055."""
  for e, rollouts in ((0.2, 21.456), (0.28, 15.847), (0.5, 9.648)):
    assert clip_law.line(e, 0.01) == pytest.approx(rollouts, abs=1e-3)
  # Five doublings: 1, 2, 4, 8, 16, 32%.
  assert clip_law.line(1.0, 0.01, 0.32) == pytest.approx(5)


def test_the_crossing_is_interpolated_in_the_log():
  log_p = np.log([0.1, 0.2, 0.4, 0.8])
  assert clip_law.crossing(log_p, 0.4) == pytest.approx(2)
  # Half of the way from ln .2 to ln .4 is ln sqrt(.08).
  assert clip_law.crossing(log_p, math.sqrt(0.08)) == pytest.approx(1.5)
  assert clip_law.crossing(log_p, 0.9) is None


def test_the_parts_of_a_rollout_by_hand():
  """e = e - 1, so that the bound is 1: below it, across it, and beyond it."""
  ratios = np.array([[0.2, 0.4, 0.6], [0.5, 1.5, 1.7], [9.0, 9.0, 9.0]])
  found = clip_law.parts(ratios, math.e - 1, 2)
  assert found == pytest.approx(((0.6 + 1) / 2, 0.5 / 2, 0.2 / 2))


def curves(b, *cells):
  return clip_bandit.curves(b, np.array(cells), range(2))


def test_a_bandit_with_small_steps_is_on_the_line_and_one_step_has_no_clip():
  """Positive samples and 32 small steps of SGD: five rollouts at e = .5."""
  bound = math.log1p(0.5)
  lr = 3.1 * bound / 10
  b = Bandit(5, minibatches=16, epochs=2, positive=True)
  log_p = curves(b, (0.5, 0.01, lr), (FREE, 0.01, lr))["log_p"]
  speed, free = np.diff(log_p, axis=-1) / bound
  # Each rollout reaches the bound, and goes beyond it by one step at most.
  assert np.all(speed >= 1) and np.all(speed <= 1.15)
  assert np.all(free[:, 0] > 2)
  # Negative samples push it further, because their push has no bound.
  with_negative = Bandit(5, minibatches=16, epochs=2)
  further = curves(with_negative, (0.5, 0.01, lr))["log_p"]
  assert np.all(further[0, :, -1] > log_p[0, :, -1] + 0.1)


def test_one_step_has_no_clip():
  found = curves(Bandit(3, minibatches=1), (0.1, 0.05, 0.5), (FREE, 0.05, 0.5))
  np.testing.assert_array_equal(found["log_p"][0], found["log_p"][1])
  assert np.all(np.diff(found["log_p"]) > 0)


def test_prompts_that_share_nothing_are_not_clipped_in_one_epoch():
  """And a new prompt has learned nothing from them."""
  cells = (0.1, 0.05, 2.0), (FREE, 0.05, 2.0)
  found = curves(Bandit(1, minibatches=4, groups=4, sharing=0.0), *cells)
  np.testing.assert_array_equal(found["ratio"][0], found["ratio"][1])
  assert np.all(found["ratio"][..., -1] > math.log1p(0.1))
  np.testing.assert_allclose(found["log_p"][..., 1], math.log(0.05))
  with pytest.raises(ValueError, match="must be 'sgd' where sharing < 1"):
    curves(Bandit(1, sharing=0.5, optimizer="adamw"), *cells)


def test_the_decisive_token_is_right_and_rare():
  task, rng = tasks.get("bench.clip_task"), np.random.default_rng(0)
  rows = [task.problem(rng, 8) for _ in range(200)]
  assert {row.answer for row in rows} == set(clip_task.LETTERS.upper())
  assert {task.problem(rng, 1).answer for _ in range(20)} == {"A"}
  for row in rows:
    assert set(row.prompt + row.answer) <= set(task.ALPHABET)
    right = task.demonstrate(row, "rare", rng)
    assert task.verify(right, row)
    assert not task.verify(task.demonstrate(row, "common", rng), row)


def test_every_run_has_fields_of_its_own():
  runs = clip_law.wanted(clip_law.SEEDS)
  assert len({x.key for x in runs}) == len(runs)
  assert len({clip_law.directory(x) for x in runs}) == len(runs)
  (run,) = (
      x for x in runs if x.key == (clip_law.SMALL, 0.5, 0.02, clip_law.SEEDS[0])
  )
  fields = clip_law.fields(run)
  assert fields["surrogate.args.clip_high"] == 0.5
  assert fields["optimizer.lr"] == pytest.approx(
      clip_law.SMALL_RATE * math.log(1.5)
  )
  assert fields["sft.reuse"].endswith("sft-1-0.02")
