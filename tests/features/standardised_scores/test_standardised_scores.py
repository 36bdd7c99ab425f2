"""Standardised scores of reward models: by hand, in training only, resumed."""

import functools
import json
import types

import numpy as np
import pytest
import tiny

from rl_reason.algorithms import credit
from rl_reason.base import errors
from rl_reason.base.structs import Rollouts
from rl_reason.checkpointing.resumable import NetworkState
from rl_reason.checkpointing.rl_state import RLState
from rl_reason.checks import config_checks
from rl_reason.collect.reward_runner import RewardRunner, Rewards
from rl_reason.configs import base
from rl_reason.features.standardised_scores.running_scores import RunningScores
from rl_reason.tasks import Row, reward_terms

near = dict(rtol=1e-6)
ALL = np.ones(2, bool)


def test_scores_by_hand():
  """1, 3: mean 2, std 1. Then 1, 3, 2, 8: mean 3.5, variance 29 / 4."""
  running = RunningScores("rm", clip=1.5)
  np.testing.assert_allclose(running(np.array([1.0, 3.0]), ALL), [-1, 1])
  assert running.metrics() == {
      "reward/rm/mean": 2,
      "reward/rm/std": 1,
      "reward/rm/running_mean": 2,
      "reward/rm/running_std": 1,
      "reward/rm/clipped": 0,
  }
  running.reset()
  assert running.metrics() == {}  # nothing was scored yet
  scores_B = np.array([2, 8, np.nan, 1e6])  # the last row is padding
  found_B = running(scores_B, np.array([True, True, True, False]))
  std = np.sqrt(29 / 4)
  np.testing.assert_allclose(found_B[:2], [-1.5 / std, 1.5], **near)
  assert found_B.dtype == np.float32 and np.isnan(found_B[2])
  metrics = running.metrics()
  assert metrics.pop("reward/rm/running_std") == pytest.approx(std)
  assert metrics == {  # of raw scores: 2 and 8; one of them is clipped
      "reward/rm/mean": 5,
      "reward/rm/std": 3,
      "reward/rm/running_mean": 3.5,
      "reward/rm/clipped": 0.5,
  }


def test_rounds_of_any_size_have_the_moments_of_all_scores():
  scores = np.random.default_rng(0).normal(1e3, 2.0, 97)
  running = RunningScores("rm", clip=0)
  for part in np.split(scores, [1, 1, 40, 64]):
    out = running(part, np.ones(len(part), bool))
  assert running.count == 97
  np.testing.assert_allclose(running.mean, scores.mean(), rtol=1e-14)
  np.testing.assert_allclose(running.std, scores.std(), rtol=1e-12)
  wanted = (scores[64:] - scores.mean()) / scores.std()
  np.testing.assert_allclose(out, wanted, rtol=1e-5)
  assert "reward/rm/clipped" not in running.metrics()  # without a bound


def test_the_first_scores_may_be_equal():
  running = RunningScores("rm", clip=5.0)
  assert running(np.array([7.0, 7.0]), ALL).tolist() == [0, 0]
  assert running(np.zeros(2), ~ALL).tolist() == [-5, -5]  # padding only
  assert running.count == 2


@pytest.mark.parametrize("clip", [0.0, 5.0])
def test_an_infinite_score_is_no_reward(clip):
  """It stays infinite, and its response has no reward, as with NaN."""
  running = RunningScores("rm", clip)
  scores_B = np.array([1, 3, np.inf, -np.inf, np.nan])
  found_B = running(scores_B, np.ones(5, bool))
  np.testing.assert_allclose(found_B, [-1, 1, *scores_B[2:]], **near)
  assert running.count == 2 and not running.metrics().get("reward/rm/clipped")
  rows = dict(
      correct_B=np.ones(5, np.float32),
      lengths_B=np.ones(5, int),
      truncated_B=np.zeros(5, bool),
      groups_B=np.zeros(5, int),
      scores_EB=(found_B,),
      progress=np.float32(0.5),
  )
  got = credit.rewards_and_advantages(
      rows | dict(age_B=np.zeros(5, int), mask_BT=np.ones((5, 1), bool)),
      reward=functools.partial(
          credit.outcome, max_tokens=8, term_weights=((0.5, 0.5),)
      ),
      assign=lambda rows: dict(rewards_B=rows["rewards_B"]),
  )
  np.testing.assert_allclose(got["rewards_B"], [0.5, 1.5] + 3 * [np.nan])


def rewards(running=None):
  """A reward model, whose score is the length of a response, and a function."""
  terms = reward_terms.terms("rm/model*1,length*1")
  runner = RewardRunner(terms, max_tokens=8)
  model = lambda rollouts: rollouts.lengths_B.astype(np.float32)  # noqa: E731
  running = running or {"rm/model": RunningScores("model", clip=5.0)}
  return Rewards(terms, runner, {"rm/model": model}, scales=running)


def two_responses():
  tokens_BL = np.zeros((2, 12), np.int32)
  return Rollouts(
      tokens_BL=tokens_BL,
      start_B=np.zeros(2, np.int32),
      ids_B=np.zeros(2, np.int32),
      mask_BT=np.arange(8) < np.array([[2], [4]]),
      logps_BT=np.zeros((2, 8), np.float32),
      lengths_B=np.array([2, 4]),
      truncated_B=np.zeros(2, bool),
  )


def test_training_reads_standardised_and_an_evaluation_raw_scores():
  found, rollouts = rewards(), two_responses()
  of_functions_UB = np.array([[0.25, 0.5]], np.float32)
  model_B, length_B = found.all_scores(of_functions_UB, rollouts)
  np.testing.assert_allclose(model_B, [-1, 1], **near)
  assert length_B.tolist() == [0.25, 0.5]  # a function keeps its scale
  assert found.counts()["reward/model/mean"] == 3
  rows = [Row("1+1=", "2")] * 2
  state = found.get_state()
  scores_EB, _, _ = found.scores_of_all(tiny.TOK, rollouts, rows, 2)
  assert scores_EB.tolist() == [[2, 4], [0.25, 0.5]]
  assert found.get_state() == state  # an evaluation is no part of them
  found.start_step()
  assert "reward/model/mean" not in found.counts()


def test_statistics_resume_bit_by_bit():
  """Through JSON, by the states of both stages that sample."""
  scores = np.random.default_rng(1).normal(3, 2, (4, 2))
  stream = types.SimpleNamespace(get_state=dict, set_state=lambda _: None)
  certificate = types.SimpleNamespace(host=dict, restore=lambda _: None)

  def states(found):
    """Of RL, and of value pretraining."""
    collector = types.SimpleNamespace(
        rewards=found, prompts=stream, unfinished=None
    )
    empty = dict.fromkeys(["policy", "critic"])
    yield RLState(
        **empty,
        collector=collector,
        coefs={},
        counters={},
        mesh=None,
        certificate=certificate,
    )
    yield NetworkState(None, stream, rewards=found)

  arrays = dict.fromkeys(["policy", "critic"])
  for index in (0, 1):
    whole, first, second = (RunningScores("model", clip=5.0) for _ in range(3))
    wanted = [whole(x, ALL) for x in scores][-1]
    for x in scores[:3]:
      first(x, ALL)
    saved = [*states(rewards({"rm/model": first}))][index].host()
    again = [*states(rewards({"rm/model": second}))][index]
    again.restore(arrays, json.loads(json.dumps(saved)))
    assert second(scores[3], ALL).tolist() == wanted.tolist()
    assert second.get_state() == whole.get_state()


def test_a_run_without_them_saves_nothing():
  terms = reward_terms.terms("length*1")
  found = Rewards(terms, RewardRunner(terms, max_tokens=8), {})
  assert (
      found.get_state() == []
      and "scores"
      not in (
          NetworkState(
              None, types.SimpleNamespace(get_state=dict), rewards=found
          )
      ).host()
  )
  assert found.counts().keys() == {"reward/length/failures"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_scale": "running"}, "names no reward model"),
        (
            {"model_clip": 2.0, "functions": "rm/model*1"},
            "reward.model_clip = 2.0: does nothing without reward.model_scale",
        ),
        (
            {
                "functions": "rm/model*1",
                "model_scale": "running",
                "model_clip": -1,
            },
            "must be at least 0",
        ),
    ],
)
def test_what_does_nothing_is_refused(fields, words):
  c = base.get_config()
  c.reward.update(fields)
  with pytest.raises(errors.ConfigError, match=words):
    config_checks.fields(c, tuple(f"reward.{x}" for x in fields))
