"""Clip-higher as a law: the formula by hand, the bandit, and the task."""

import argparse
import math

import numpy as np
import pytest

from bench import results
from rl_reason import tasks
from studies.clip_law import (
    bandit as clip_bandit,
    run as clip_law,
    task as clip_task,
)
from studies.clip_law.bandit import FREE, Bandit

pytestmark = pytest.mark.slow


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


@pytest.mark.slow
def test_bandits():
  """One program: the line, negative samples, one step, and state sharing."""
  bound = math.log1p(0.5)
  small = dict(minibatches=16, epochs=2)
  lr = 3.1 * bound / 10
  found = clip_bandit.curves(
      [
          Bandit(0.5, 0.01, lr, positive=True, **small),
          Bandit(FREE, 0.01, lr, positive=True, **small),
          Bandit(0.5, 0.01, lr, **small),
          Bandit(0.1, 0.05, 0.5, minibatches=1),
          Bandit(FREE, 0.05, 0.5, minibatches=1),
          Bandit(0.1, 0.05, 9.0, minibatches=4, sharing=0.0),
          Bandit(FREE, 0.05, 9.0, minibatches=4, sharing=0.0),
      ],
      range(2),
      rule="sgd",
      rollouts=4,
  )
  log_p, ratio = found["log_p"], found["ratio"]
  # Small steps: each rollout reaches the bound, and goes a step beyond it.
  speed, free = np.diff(log_p[:2], axis=-1) / bound
  assert np.all(speed >= 1) and np.all(speed <= 1.2)
  assert np.all(free[:, 0] > 2)
  # Negative samples push further: their push has no bound.
  assert np.all(log_p[2, :, -1] > log_p[0, :, -1] + 0.1)
  # One step has no clip.
  np.testing.assert_array_equal(log_p[3], log_p[4])
  assert np.all(np.diff(log_p[3]) > 0)
  assert np.all(ratio[3, :, 0, 0] == ratio[3, :, 0, -1])
  # Neither has one epoch of prompts that share nothing; new prompts learn
  # nothing from them.
  np.testing.assert_array_equal(ratio[5], ratio[6])
  assert np.all(ratio[5, ..., -1] > math.log1p(0.1))
  np.testing.assert_allclose(log_p[5], math.log(0.05))


def test_a_bandit_that_cannot_be_is_refused():
  keywords = dict(rule="adamw", rollouts=1)
  with pytest.raises(ValueError, match="minibatches = 3: must divide 16"):
    clip_bandit.curves([Bandit(0.1, 0.1, 1, 3)], range(1), **keywords)
  with pytest.raises(ValueError, match="must be 'sgd' where sharing < 1"):
    clip_bandit.curves([Bandit(0.1, 0.1, 1, sharing=0.5)], range(1), **keywords)


def test_the_decisive_token_is_right_and_rare():
  task, rng = tasks.get("studies.clip_law.task"), np.random.default_rng(0)
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
      x for x in runs if x.key == (clip_law.LAW, 0.5, 0.02, clip_law.SEEDS[0])
  )
  fields = clip_law.fields(run)
  assert fields["surrogate.args.clip_high"] == 0.5
  assert fields["optimizer.lr"] == pytest.approx(
      clip_law.SMALL_RATE * math.log(1.5)
  )
  assert fields["sft.reuse"].endswith("sft-1-0.02")


def test_runs_of_a_changed_checkout_are_made_again(monkeypatch):
  """Runs of a clean commit stay."""
  runs = clip_law.wanted(clip_law.SEEDS[:1])
  commits = ["b", "a-dirty"] + ["b"] * (len(runs) - 2)
  before = [
      x._asdict() | dict(commit=commit)
      for x, commit in zip(runs, commits, strict=True)
  ]
  data = dict(runs=before, bandit=dict(commit="b"))
  made = []

  def train(run):
    made.append(run)
    return run._asdict() | dict(commit="c")

  monkeypatch.setattr(results, "read", lambda name: data)
  monkeypatch.setattr(results, "environment", dict)
  monkeypatch.setattr(clip_law, "finished", lambda run: False)
  monkeypatch.setattr(clip_law, "train", train)
  given = argparse.Namespace(runs=True, seeds=1)
  found = clip_law.measure(given)
  assert made == [runs[1]]
  assert [x["commit"] for x in found["runs"]] == ["b", "c", *commits[2:]]
  made.clear()
  kept = clip_law.measure(argparse.Namespace(runs=False, seeds=1))
  assert kept["runs"] == before and not made
