"""Wrong verdicts: which ones, by hand, and what reads them."""

import types

import jax
import numpy as np
import pytest
import tiny_session
from test_checks import with_fields
from tiny_session import (
    call,
    digest,
    half_correct,
    interrupted,
    shared_programs,
)

from rl_reason.base.errors import ConfigError
from rl_reason.checkpointing.resumable import Stopped
from rl_reason.checks import config_checks
from rl_reason.collect import collector
from rl_reason.configs import base, guess
from rl_reason.features.noisy_verdicts import FEATURE, flipping_collector
from rl_reason.stages import rl

flips = flipping_collector.flips
__all__ = ["half_correct", "shared_programs"]  # fixtures


def test_a_flip_belongs_to_a_prompt_and_a_sample():
  """Other prompts, their order and the size of a group change none."""
  ids_B = np.repeat([7, 3, 12], 8)
  found_B = flips(ids_B, share=0.5, seed=1)
  other_B = flips(np.repeat([12, 7], 8), share=0.5, seed=1)
  np.testing.assert_array_equal(other_B[:8], found_B[16:])
  np.testing.assert_array_equal(other_B[8:], found_B[:8])
  short_B = flips(np.repeat([3], 5), share=0.5, seed=1)
  np.testing.assert_array_equal(short_B, found_B[8:13])
  assert (flips(ids_B, share=0.5, seed=2) != found_B).any()


def test_the_share_of_flips():
  """Within four standard deviations; more noise flips the same and others."""
  ids_B = np.repeat(np.arange(1000), 16)
  few_B, many_B = (flips(ids_B, share=x, seed=0) for x in (0.05, 0.2))
  for found_B, share in ((few_B, 0.05), (many_B, 0.2)):
    bound = 4 * np.sqrt(share * (1 - share) / len(ids_B))
    assert abs(found_B.mean() - share) < bound
  assert many_B[few_B].all()
  assert not flips(ids_B, share=0.0, seed=0).any()
  assert flips(ids_B, share=1.0, seed=0).all()


def test_which_verdicts_are_flipped(monkeypatch):
  """Of all that have one: not of truncated responses, failures, free text."""
  seen = []
  monkeypatch.setattr(
      collector.RolloutCollector,
      "_score",
      lambda self, rows, scores_UB, rows_B: seen.append(rows.correct_B),
  )
  monkeypatch.setattr(
      collector.RolloutCollector,
      "counts",
      lambda self: dict(failures={}, responses={"a": 1}),
  )
  one = object.__new__(flipping_collector.FlippingCollector)
  one._share, one._seed = 1.0, 0
  one._judged = one._flipped = one._right = one._responses = 0
  one._verified = lambda rows: np.array([x != "free" for x in rows])
  rows = types.SimpleNamespace(
      correct_B=np.array([1, 0, 0, -1, 0, 1], np.float32),
      rollouts=types.SimpleNamespace(
          ids_B=np.array([4, 4, 4, 5, 6, 7]),
          truncated_B=np.array([0, 0, 1, 0, 0, 0], bool),
      ),
  )
  rows.replace = lambda **x: types.SimpleNamespace(**vars(rows) | x)
  one._score(rows, None, ["a", "a", "a", "a", "free", "a"])
  assert seen[0].tolist() == [0, 1, 0, -1, 0, 0]
  assert seen[0].dtype == np.float32
  assert one.counts() == dict(
      failures={},
      responses={
          "a": 1,
          "noisy_verdicts/flipped": 1.0,
          "noisy_verdicts/accuracy": 2 / 6,
      },
  )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"reward.flip": 1.1}, "reward.flip = 1.1: must be"),
        ({"reward.flip": -0.1}, "reward.flip = -0.1: must be"),
        ({"reward.flip": 0.1, "reward.shuffle": True}, "permutes all verdicts"),
        (
            {
                "reward.flip": 0.1,
                "advantage.name": "vine",
                "reward.process": "rewards",
            },
            "prefix_values collects responses itself",
        ),
    ],
)
def test_what_cannot_work(changes, fault):
  with pytest.raises(ConfigError, match=fault):
    config_checks.fields(with_fields(changes, base.arithmetic()))


def test_an_environment_has_no_verdicts():
  c = guess.get_config()
  c.reward.flip = 0.1
  with pytest.raises(ConfigError, match="reward.flip = 0.1: does nothing"):
    config_checks.fields(c)


def test_the_report_says_so():
  assert FEATURE.notes([], {"reward.flip": 0.0}) == FEATURE.notes([], {}) == []
  (note,) = FEATURE.notes([], {"reward.flip": 0.05})
  assert note == "5% of the verdicts are wrong in training."


def train(workdir, stop_at=None, **changes):
  fields = dict(rl__steps=3, dynamic_sampling__max_rounds=1) | changes
  session = tiny_session.make_session(workdir, **fields)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    try:
      params = call(rl.train, interrupted(session, stop_at), params)
    finally:
      session.log.close()
  return digest(params), tiny_session.logged(workdir)


@pytest.mark.slow
@pytest.mark.usefixtures("half_correct", "shared_programs")
def test_runs(tmp_path):
  """Training sees the noise, evaluations do not, and a resume repeats it."""
  whole, lines = train(tmp_path / "whole", reward__flip=0.3)
  _, plain = train(tmp_path / "plain")
  steps, without = (
      [x for x in y if x["stage"] == "rl"] for y in (lines, plain)
  )
  assert all(0 < x["noisy_verdicts/flipped"] < 0.6 for x in steps)
  assert not any("noisy_verdicts/flipped" in x for x in without)
  first, clean = steps[0], without[0]
  assert first["noisy_verdicts/accuracy"] == pytest.approx(
      clean["train/accuracy"]
  )
  assert first["train/accuracy"] != pytest.approx(clean["train/accuracy"])
  scores = [
      {k: x for k, x in y[0].items() if k.startswith("val-core")}
      for y in (
          [x for x in z if x["stage"] == "evaluate"] for z in (lines, plain)
      )
  ]
  assert scores[0] and scores[0] == scores[1]
  with pytest.raises(Stopped):
    train(tmp_path / "parts", stop_at=2, reward__flip=0.3)
  parts, again = train(tmp_path / "parts", reward__flip=0.3)
  assert parts == whole and again == lines
