"""Responses of earlier steps: what is remembered, and with which weights."""

import jax
import numpy as np
import pytest
from by_hand import DTYPES, NEAR, call, close
from test_checks import FILES, with_fields

from rl_reason.algorithms import advantage_variants
from rl_reason.base import functions
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_facts
from rl_reason.collect import experience
from rl_reason.features.earlier_steps import history

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
    ],
)
def test_earlier_steps_that_cannot_work_are_refused(changes, words):
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(with_fields(TEMPORAL | changes))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, "fewer than 10% of prompts"),
        ({"task.difficulties": (2,), "advantage.history": 3}, ""),
        (FILES, "only after a pass over data"),
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
