"""Responses of earlier steps: what is remembered, and with which weights."""

import jax
import numpy as np
import pytest
import tiny_session
from by_hand import DTYPES, NEAR, call, close
from test_checks import FILES, with_fields

from rl_reason.algorithms import advantage_variants
from rl_reason.base import feature, functions
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_facts
from rl_reason.collect import experience
from rl_reason.features.earlier_steps import history, prompt_history

shared_programs = tiny_session.shared_programs
half_correct = tiny_session.half_correct
B, T = 32, 6
NO_ROWS = experience.no_rows(B, max_prompt=4, max_tokens=T, num_terms=0)


def rows_of(mark, problems):
  """A batch whose every number is `mark`; the second half is padding."""
  real_B = np.arange(B) < B // 2
  mask_BT = np.zeros((B, T), bool)
  mask_BT[real_B, :2] = True
  return NO_ROWS.replace(
      rollouts=NO_ROWS.rollouts.replace(
          tokens_BL=np.full_like(NO_ROWS.rollouts.tokens_BL, mark),
          mask_BT=mask_BT,
      ),
      old_logps_BT=np.full_like(NO_ROWS.old_logps_BT, -mark),
      age_B=np.where(real_B, 0, -1).astype(np.int32),
      problems_B=np.resize(problems, B).astype(np.int32),
  )


def test_the_newest_batches_are_remembered():
  """Of three batches the last two, the oldest first."""
  past = history.empty(NO_ROWS, steps=2)
  assert past.rewards_H.shape == (2 * B,) and not past.mask_HT.any()
  for mark in (1, 2, 3):
    rows = rows_of(mark, problems=[5, 6])
    past = history.append(past, rows, np.full(B, mark, np.float32))
  half = B // 2
  assert past.rewards_H.tolist() == [2.0] * B + [3.0] * B
  assert past.tokens_HL[[0, -1], 0].tolist() == [2, 3]
  assert past.logps_HT[0, :3].tolist() == [-2, -2, 0]
  assert past.problems_H.tolist() == ([5, 6] * (half // 2) + [-1] * half) * 2
  assert past.mask_HT.any(1).tolist() == ([True] * half + [False] * half) * 2


def test_a_reward_that_is_not_finite_is_an_empty_place():
  rewards_B = np.ones(B, np.float32)
  rewards_B[1] = np.nan
  past = history.append(
      history.empty(NO_ROWS, steps=1), rows_of(1, [5, 6]), rewards_B
  )
  assert past.rewards_H[:3].tolist() == [1, 0, 1]
  assert past.problems_H[:3].tolist() == [5, -1, 5]
  assert past.mask_HT[:3].any(1).tolist() == [True, False, True]


def test_weights_of_old_responses():
  """min(pi / pi_then, 2) over both tokens of a response; 0 for padding."""
  past = history.append(
      history.empty(NO_ROWS, steps=2), rows_of(3, [5, 6]), np.ones(B)
  )
  # pi_then is exp(-3) a token; pi is now exp(-3.25), then exp(-2).
  for logp, wanted in ((-3.25, np.exp(-0.5)), (-2.0, 2.0)):
    got = history.credit_inputs(
        past,
        None,
        logps=lambda params, rollouts, logp=logp: np.full((B, T), logp),
        batch=B,
        ratio_limit=2.0,
    )
    half = B // 2
    np.testing.assert_allclose(
        got["past_weights_H"], [0] * B + [wanted] * half + [0] * half, 1e-5
    )
  # Problem 5 was correct in the past: eight responses of reward 1 and weight
  # 2, and one other response of now. Problem 7 has no other response.
  got = advantage_variants.temporal(
      np.array([-1.0, 1, -1, 1]),
      problems_B=np.array([5, 5, 6, 7]),
      **got,
  )
  wanted = [-1 - (16 + 1) / 17, 1 - (16 - 1) / 17, -1 - 16 / 16, 0]
  np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_restored_history_goes_on():
  def of_step_0():
    return history.EarlierSteps(
        history.empty(NO_ROWS, steps=2), logps=None, batch=B, ratio_limit=2.0
    )

  whole, restored = of_step_0(), of_step_0()
  credit = dict(rewards_B=np.ones(B, np.float32))
  whole.after(None, rows_of(1, [5, 6]), credit, None)
  restored.restore(jax.tree.map(np.copy, whole.arrays()), {})
  for part in (whole, restored):
    part.after(None, rows_of(2, [5, 6]), credit, None)
  assert whole.history.tokens_HL[[0, -1], 0].tolist() == [1, 2]
  jax.tree.map(np.testing.assert_array_equal, whole.arrays(), restored.arrays())


# --- the responses to each prompt ---------------------------------------------


def batch(mark, problems):
  """A batch of four rows whose numbers are `mark`; problem -1 is padding."""
  rows, problems_B = rows_of(mark, problems), np.array(problems, np.int32)
  age_B = np.where(problems_B < 0, -1, 0).astype(np.int32)
  cut = jax.tree.map(lambda x: x[:4] if np.shape(x)[:1] == (B,) else x, rows)
  mask_BT = np.zeros((4, T), bool)
  mask_BT[problems_B >= 0, :2] = True
  return cut.replace(
      rollouts=cut.rollouts.replace(mask_BT=mask_BT),
      problems_B=problems_B,
      age_B=age_B,
  )


def remembered(batches, prompts=2, responses=3):
  """What is remembered of batches, whose rewards are mark + row / 10."""
  past = prompt_history.empty(NO_ROWS, prompts, responses)
  for mark, problems in batches:
    rewards_B = np.float32(mark) + np.arange(4, dtype=np.float32) / 10
    past = prompt_history.append(past, batch(mark, problems), rewards_B)
  return past


def test_a_prompt_keeps_its_newest_responses():
  """Of two prompts three responses each, the oldest first; padding is none."""
  past = remembered([(1, [5, 5, 6, -1]), (2, [5, 5, 5, 6])])
  assert past.problems_P.tolist() == [5, 6] and past.used_P.tolist() == [2, 2]
  np.testing.assert_allclose(
      past.responses.rewards_H, [2, 2.1, 2.2, 1.2, 2.3, 0], rtol=1e-6
  )
  assert past.responses.problems_H.tolist() == [5, 5, 5, 6, 6, -1]
  assert past.responses.tokens_HL[:, 0].tolist() == [2, 2, 2, 1, 2, 0]
  assert past.responses.logps_HT[:, 0].tolist() == [-2, -2, -2, -1, -2, 0]
  assert past.responses.mask_HT.any(1).tolist() == [True] * 5 + [False]


def test_the_prompt_that_was_drawn_longest_ago_is_forgotten():
  """Prompt 7 replaces 6, since 5 came again; nothing of 6 is left."""
  past = remembered([(1, [5, 5, 6, 6]), (2, [5, 5, 5, 5]), (3, [7, 7, -1, -1])])
  assert past.problems_P.tolist() == [5, 7]
  assert past.responses.problems_H.tolist() == [5, 5, 5, 7, 7, -1]
  np.testing.assert_allclose(past.responses.rewards_H[3:], [3, 3.1, 0], 1e-6)


def test_no_array_that_a_checkpoint_may_still_write_changes():
  past = remembered([(1, [5, 5, 6, 6])])
  before = jax.tree.map(np.copy, past)
  prompt_history.append(past, batch(2, [5, 6, 6, 7]), np.ones(4, np.float32))
  jax.tree.map(np.testing.assert_array_equal, past, before)


def test_only_responses_to_prompts_of_the_batch_are_read():
  """Four places: the three responses to prompt 6, and an empty one."""
  past = remembered([(1, [5, 5, 6, 6]), (2, [5, 6, 6, 6])])
  found = prompt_history.of_batch(past, np.array([6, 6, 8, -1]), 4)
  assert found.problems_H.tolist() == [6, 6, 6, -1]
  np.testing.assert_allclose(found.rewards_H, [2.1, 2.2, 2.3, 0], rtol=1e-6)
  assert found.mask_HT.any(1).tolist() == [True] * 3 + [False]


def part(past, logp=-1.0):
  """The part of a run of four rows; pi is now exp(logp) at each token."""
  return prompt_history.EarlierResponses(
      past,
      4,
      logps=lambda params, rollouts: np.full((4, T), logp),
      batch=4,
      ratio_limit=2.0,
  )


def test_the_group_of_a_response_has_earlier_ones_of_its_prompt():
  """By hand: pi_then is exp(-1) at both tokens, and pi is now exp(-1.25).

  Prompt 6 had the rewards 1.2 and 1.3 in step 1, at the weight exp(-.5). Of the
  batch it has one response, of reward 4; prompt 8 is new, with 1 and 3.
  """
  run = part(remembered([(1, [5, 5, 6, 6])]), logp=-1.25)
  rows = batch(9, [6, 8, 8, -1])
  assert run.exchange(rows, 2) == {"train/prompts_known": 1 / 2}
  got = run.inputs(None, None)
  w = np.exp(-0.5)
  np.testing.assert_allclose(got["past_weights_H"], [w, w, 0, 0], rtol=1e-6)
  advantages = advantage_variants.temporal(
      np.array([4.0, 1, 3, 0]), problems_B=rows.problems_B, **got
  )
  mean = (1.2 * w + 1.3 * w) / (2 * w)
  np.testing.assert_allclose(advantages, [4 - mean, -2, 2, 0], rtol=1e-5)


def test_a_long_memory_of_prompts_equals_a_long_memory_of_steps():
  """With room for all responses, the advantages of both are equal."""
  whole = history.EarlierSteps(
      history.empty(batch(0, [-1] * 4), steps=3),
      logps=lambda params, rollouts: np.full((4, T), -1.5),
      batch=4,
      ratio_limit=2.0,
  )
  run = part(prompt_history.empty(NO_ROWS, 4, 12), logp=-1.5)
  run._count = 12
  rng = np.random.default_rng(0)
  for mark in (1, 2, 3):
    rows = batch(mark, rng.integers(5, 8, 4).tolist())
    credit = dict(rewards_B=rng.normal(size=4).astype(np.float32))
    for x in (whole, run):
      x.after(None, rows, credit, None)
  rows = batch(4, [5, 6, 7, 7])
  rewards_B = rng.normal(size=4)
  both = []
  for x in (whole, run):
    x.exchange(rows, 4)
    inputs = x.inputs(None, None)
    both.append(
        advantage_variants.temporal(
            rewards_B, problems_B=rows.problems_B, **inputs
        )
    )
  np.testing.assert_allclose(*both, rtol=1e-5)
  assert np.abs(both[0]).max() > 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs", "half_correct")
def test_a_run_with_responses_of_prompts_resumes(tmp_path, monkeypatch):
  """The same bits as without the interruption, and prompts come again."""
  import test_resume

  monkeypatch.setattr(test_resume.interim, "run", lambda *_: 0.0)
  changes = test_resume.RARE | dict(
      task__difficulties=(2,),
      advantage__name="temporal",
      advantage__history_responses=5,
      advantage__history_prompts=12,
  )
  _, (metrics, _) = test_resume.assert_same(
      tmp_path,
      test_resume.run_rl,
      "rl",
      changes,
      dict(die_at=4),
      KeyboardInterrupt,
  )
  known = [line["train/prompts_known"] for line in metrics]
  assert known[0] == 0 and max(known) > 0


# --- the config --------------------------------------------------------------

TEMPORAL = {"advantage.name": "temporal"}


def test_earlier_steps_need_log_probs_before_the_update():
  assert "temporal" in functions.names("advantage")
  one = {"updates.minibatches": 1}
  assert config_facts.on_policy(with_fields(one))
  assert not config_facts.on_policy(with_fields(one | TEMPORAL))


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"kl.kind": "k1", "kl.coef": 0.1, "kl.place": "reward"},
            "temporal compares rewards with rewards of earlier",
        ),
        (
            {"model.experts": 8, "rollout.replay_routing": True},
            "no routes are kept of earlier steps",
        ),
        (
            {"advantage.history_responses": 8, "advantage.history": 3},
            "it looks back at all steps",
        ),
        (
            {"advantage.history_responses": 8, "advantage.history_prompts": 1},
            "advantage.history_prompts = 1: must be at least",
        ),
    ],
)
def test_earlier_steps_that_cannot_work_are_refused(changes, words):
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(with_fields(TEMPORAL | changes))


def test_passes_are_those_over_responses_to_the_prompts_of_the_batch():
  """9 responses of each of N prompts, in groups of 8: two batches."""
  c = with_fields(TEMPORAL | {"advantage.history_responses": 9})
  (one,) = feature.used(c)
  size = c.rollout.group_size
  assert one.passes(c) == -(-9 // size)
  assert one.axes(c) == dict(H=one.passes(c) * c.rollout.batch)
  assert one.passes(with_fields(TEMPORAL | {"advantage.history": 7})) == 7


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, "fewer than 10% of prompts"),
        ({"task.difficulties": (2,), "advantage.history": 3}, ""),
        (FILES, "only after a pass over data"),
        (FILES | {"advantage.history_responses": 8}, ""),
        ({"advantage.history_responses": 8}, "fewer than 10% of prompts"),
        (
            {"advantage.history_responses": 8, "task.difficulties": (2,)},
            "",
        ),
    ],
)
def test_prompts_that_never_come_again(changes, words):
  found = config_checks.warnings(with_fields(TEMPORAL | changes))
  assert [x for x in found if words in x] if words else not found


@DTYPES
def test_past_weights_by_hand(dtype):
  """Whole responses: 2 * 3/4 = 3/2; 4 * 2 = 8, at most 2; an empty slot."""
  now = np.log([[2, 0.75, 9], [4, 2, 9], [9, 9, 9]])
  mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]]) > 0
  inputs = now, 0 * now, mask
  got = call(history.past_weights, *inputs, dtype=dtype)
  close(got, [1.5, 2, 0], **NEAR[dtype])
  got = call(history.past_weights, *inputs, dtype=dtype, limit=10.0)
  close(got, [1.5, 8, 0], **NEAR[dtype])
