"""SFT beside RL: its gradient is added, and its rows resume where they were."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
import tiny_session

from configs import base
from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import TrainState
from rl_reason.checks import checked, replay_rules
from rl_reason.models import decoder
from rl_reason.stages import compile_ahead, streams
from rl_reason.training import imitation, step

CFG = dataclasses.replace(tiny.CFG, layers=1)
OBJECTIVE = objective.Objective(surrogates.reinforce, reductions.token_mean)
COEFS = dict(kl=jnp.float32(0), entropy=jnp.float32(0))
COEF = 0.3


def test_the_gradient_is_the_sum_of_both():
  """Each stream has rows, weights and a denominator of its own.

  Wanted, from padded rows: RL's mean of -A log p over its tokens at temperature
  0.8, and 0.3 times the mean of -log p over the tokens of 16 other rows at
  temperature 1. SGD at rate 1 moves by minus the gradient.
  """
  params = decoder.init(CFG, jax.random.key(0))
  batch_M, demos_M = tiny.batch(1, 8), tiny.batch(1, 16, seed=1)

  def mean(params, rows_M, weights_MBT, temperature):
    b = jax.tree.map(lambda x: x[0], rows_M)
    args = params, CFG, b.tokens_BL, b.start_B, tiny.T, temperature
    logps_BT, _ = padded.response_logps(*args)
    return -jnp.sum(logps_BT * weights_MBT[0]) / b.mask_BT.sum()

  def wanted(params):
    of_rl = mean(params, batch_M, batch_M.advantages_BT, 0.8)
    of_rows = mean(params, demos_M, demos_M.mask_BT, 1.0)
    return of_rl + COEF * of_rows, (of_rl, of_rows)

  grads, (of_rl, of_rows) = jax.jit(jax.grad(wanted, has_aux=True))(params)
  tx, zero = tiny.optimizer(name="sgd", lr=1.0), jnp.zeros((), jnp.int32)
  update = functools.partial(
      step.rl_update,
      cfg=CFG,
      tx=tx,
      temperature=0.8,
      objective=OBJECTIVE,
      stream=functools.partial(imitation.gradient, cfg=CFG, coef=COEF),
  )
  after, metrics = jax.jit(update)(
      TrainState(params, tx.init(params), zero, zero),
      batch_M,
      padded.packed(batch_M, 2),
      COEFS,
      rows_M=(padded.packed(demos_M, 2), demos_M.mask_BT),
  )
  moved = jax.tree.map(jnp.subtract, params, after.params)
  for x, y in zip(*map(jax.tree.leaves, (moved, grads)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())
  np.testing.assert_allclose(metrics["sft_loss"], of_rows, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"], of_rl, rtol=1e-4)


@pytest.fixture
def session(tmp_path):
  return tiny_session.make_session(
      tmp_path, streams__sft=0.5, streams__sft_batch=6, updates__minibatches=2
  )


def stream_of(session):
  found = streams.demonstrations(
      session.c,
      session.mesh,
      session.display,
      row_source=session.row_source,
      tok=session.tok,
      environments=None,
  )
  return found


def test_the_rows_resume_where_they_were(session):
  """Each step has rows of its own, as the update that compiles ahead wants."""
  with jax.set_mesh(session.mesh):
    stream = stream_of(session)
    first, saved = stream.take(), stream.get_state()
    second, again = stream.take(), stream_of(session)
    again.set_state(saved)
    resumed = again.take()
    shapes = compile_ahead.update_arguments(session.c, session.model)[-1]
  assert tiny_session.digest(resumed) == tiny_session.digest(second)
  assert tiny_session.digest(first) != tiny_session.digest(second)
  assert first[1].shape == (2, 6, session.c.rollout.max_tokens)
  assert jax.tree.structure(shapes) == jax.tree.structure(first)
  for x, y in zip(*map(jax.tree.leaves, (first, shapes)), strict=True):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def test_a_stream_is_off_by_default_and_is_not_replayed():
  c = base.arithmetic()
  assert c.streams.sft == 0
  with pytest.raises(ConfigError, match="streams.sft_batch = 8: does nothing"):
    checked.checked(c, {"streams.sft_batch": 8})
  other = c.copy_and_resolve_references()
  config.override(other, {"streams.sft": 0.1})
  with pytest.raises(ConfigError, match="has the gradient of RL alone"):
    replay_rules.check(other, other)
