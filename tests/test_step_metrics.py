"""Metrics of a step: credit, values by position, behaviours, learning rate."""

import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_reason import tasks
from rl_reason.algorithms import schedules
from rl_reason.monitoring import step_logger, step_metrics
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.resources import Clock
from rl_reason.training import optimizer


def quality(
    advantages_BT,
    rewards_B,
    values_BT=None,
    gamma=1.0,
    lengths=None,
    observed=None,
    counts_BT=True,
):
  """Of responses without padding, but for the slots that were observed."""
  advantages_BT = np.asarray(advantages_BT, np.float32)
  size, width = advantages_BT.shape
  length_B = np.array(lengths or [width] * size)
  mask_BT = np.arange(width) < length_B[:, None]
  if observed is not None:
    mask_BT &= ~np.array(observed)
  batch = types.SimpleNamespace(
      mask_BT=mask_BT & counts_BT,
      advantages_BT=advantages_BT,
      values_BT=values_BT,
  )
  rollouts = types.SimpleNamespace(
      lengths_B=length_B, mask_BT=mask_BT, policy_lengths_B=mask_BT.sum(1)
  )
  return step_metrics.credit_quality(
      types.SimpleNamespace(rollouts=rollouts),
      np.asarray(rewards_B, np.float32),
      batch,
      None if values_BT is None else object(),
      gamma,
  )


def test_correlation_of_advantage_and_return():
  name = "critic/advantage_return_corr"
  assert quality([[1, 1], [-1, -1]], [1, 0])[name] == pytest.approx(1)
  assert quality([[-1, -1], [1, 1]], [1, 0])[name] == pytest.approx(-1)
  # Tokens behind the end of a response do not count.
  one = quality([[1, 9], [-1, -1]], [1, 0], lengths=[1, 2])[name]
  assert one == pytest.approx(1)
  assert quality([[1, 1], [1, 1]], [1, 0]) == {}  # nothing to correlate
  assert quality([[1, 2], [3, 4]], [1, 1]) == {}


def test_value_bias_by_position():
  """Values of 8 tokens against a reward of 1, discounted by half a token."""
  values_BT = np.array([[1, 1, 2, 2, 3, 3, 0, 0], [5, 0, 0, 0, 9, 9, 9, 9.0]])
  out = quality(np.zeros((2, 8)), [1, 1], values_BT, lengths=[8, 4])
  bias = [out[f"critic/value_bias/q{q}"] for q in (1, 2, 3, 4)]
  np.testing.assert_allclose(bias, [(0 + 0 + 4) / 3, 1 / 3, 1, -1])
  out = quality(np.zeros((1, 4)), [1], np.zeros((1, 4)), gamma=0.5)
  bias = [out[f"critic/value_bias/q{q}"] for q in (1, 2, 3, 4)]
  np.testing.assert_allclose(bias, [-0.125, -0.25, -0.5, -1])


def test_observations_neither_discount_nor_move_a_token():
  """Two tokens, three of an observation, two tokens: returns 1/8 to 1.

  A response of four tokens without an observation has the same numbers.
  """
  observed = [[0, 0, 1, 1, 1, 0, 0]]
  values_BT = np.array([[1, 2, 9, 9, 9, 3, 4.0]])
  with_turns = quality(
      [[1, 2, 0, 0, 0, 4, 8]], [1], values_BT, 0.5, observed=np.bool_(observed)
  )
  wanted = [1 - 0.125, 2 - 0.25, 3 - 0.5, 4 - 1]
  bias = [with_turns[f"critic/value_bias/q{q}"] for q in (1, 2, 3, 4)]
  np.testing.assert_allclose(bias, wanted)
  assert with_turns["critic/advantage_return_corr"] == pytest.approx(1)
  one_turn = quality([[1, 2, 4, 8]], [1], np.array([[1, 2, 3, 4.0]]), 0.5)
  assert one_turn == with_turns
  # A token that the loss leaves out is one of the response nevertheless.
  left_out = quality(
      [[1, 2, 4, 8]], [1], np.ones((1, 4)), 0.5, counts_BT=[0, 1, 1, 1]
  )
  assert left_out["critic/value_bias/q2"] == 1 - 0.25


def test_behaviours_of_a_task():
  source = types.SimpleNamespace(problem=len, BEHAVIOURS={"retries": r"\?"})
  task = tasks.Task("mine", source)
  stats = step_metrics.ResponseStats(lambda *_: "", task.BEHAVIOURS)
  rows = types.SimpleNamespace(
      rollouts=types.SimpleNamespace(
          truncated_B=np.zeros(2, bool),
          mask_BT=np.ones((2, 1), bool),
          ids_B=np.zeros(2, int),
          logps_BT=np.zeros((2, 1)),
      ),
      correct_B=np.ones(2),
  )
  stats.add(rows, ["1?2?3", "4"], ["", ""])
  assert stats.metrics()["behaviour/retries"] == 1
  stats.clear()
  assert "behaviour/retries" not in stats.metrics()  # a step without a round
  source.BEHAVIOURS = {"checks": "("}
  with pytest.raises(ValueError, match="'checks'. is no pattern"):
    tasks.Task("mine", source)
  source.BEHAVIOURS, said = {"retries": "2"}, []
  tasks.Task("mine", source, said.append)._failures.add("why")
  assert said[0].startswith("task mine failed; ")


def test_a_batch_without_rows_has_neither_length_nor_entropy(tmp_path):
  rows = types.SimpleNamespace(rollouts=None, age_B=np.array([-1, -1]))
  found = step_metrics.rollout_metrics(
      rows, np.zeros(2), None, terms=(), on_policy=True
  )
  assert found.keys() == {"train/rows_kept", "train/age_max"}
  lines = []
  logger = step_logger.StepLogger(
      types.SimpleNamespace(metrics=lambda *x: lines.append(x)),
      Display(False),
      Clock(),
      types.SimpleNamespace(check=lambda *_: {}),
      tmp_path,
  )
  for step, trained in ((1, 8), (2, 0)):
    counts = {"tokens/step": 9, "tokens/generated": 9, "flops/total": 1}
    counts |= {"tokens/trained": trained, "train/accuracy": 0.5}
    logger.dispatched(step, counts, dict(entropy=0.3 * (trained > 0)), {})
  logger.flush()
  (_, _, first), (_, _, second) = lines
  assert first["actor/entropy"] == 0.3 and "actor/entropy" not in second


def test_the_learning_rate_is_that_of_the_last_update():
  """A step whose updates are skipped leaves it as it was."""
  keywords = dict(schedule="linear", warmup=2, total=6)
  rate = schedules.learning_rate("linear", peak=1.0, warmup=2, total=6)
  tx = optax.chain(optax.clip(1.0), optax.adamw(rate))

  def update(state, made):
    opt_state, params = state.opt_state, jnp.ones(2)
    for _ in range(made):
      _, opt_state = tx.update(params, opt_state, params)
    return types.SimpleNamespace(opt_state=opt_state), dict(loss=0.0)

  call, rates = optimizer.with_rate(update, lr=1.0, **keywords), []
  state = types.SimpleNamespace(opt_state=tx.init(jnp.ones(2)))
  for made in (1, 1, 2, 0, 1):
    state, metrics = call(state, made)
    rates.append(float(metrics["lr"]))
  np.testing.assert_allclose(rates, [0.5, 1, 0.75, 0.75, 0.5], rtol=1e-6)
