"""Micro-batches of preference pairs."""

import functools

import jax
import numpy as np
import pytest
from test_reward_model_runs import trained
from tiny_session import call

from rl_reason.features.reward_model_stage import reward_model
from rl_reason.models import critic
from rl_reason.stages import demonstrations, optimizers
from rl_reason.training import optimizer, packing

pytestmark = pytest.mark.slow
__all__ = ["trained"]  # a fixture


def test_micro_batches_change_nothing(trained):
  """Loss and gradient of 16 packed rows are those of 3 at a time."""
  session, cfg = trained.session, trained.session.critic_cfg
  tx = optimizers.of_stage(
      session.config.optimizer, lr=1e-2, schedule="constant", total=1
  )
  with jax.set_mesh(session.mesh):
    stream, _ = call(
        demonstrations.pairs,
        session,
        "reward_model",
        session.row_source,
        evaluation=True,
    )
    rollout = session.config.rollout
    rows = demonstrations.pack_pairs(rollout, session.tok, next(stream)[:8])
    where = optimizer.state_shardings(critic.table(cfg), tx, session.mesh)
    params = jax.tree.map(jax.numpy.copy, trained.params)
    state = optimizer.new_state(params, tx, where)
    update = jax.jit(
        functools.partial(reward_model.preference_update, cfg=cfg, tx=tx)
    )
    a, b = (
        update(state, packing.pack(*rows, count, unit=2))[1]
        for count in (16, 3)
    )
  np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
  np.testing.assert_allclose(a["grad_norm"], b["grad_norm"], rtol=1e-5)
