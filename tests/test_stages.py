"""What keeps the loop fast: one compilation, and donated buffers."""

import functools
import importlib
import threading

import jax
import numpy as np
import pytest

from rl_reason import display, stages
from rl_reason.stages import Once, rl


def test_another_shape_is_an_error_not_a_recompilation():
  once = Once("f", jax.jit(lambda x: x + 1), display.Display(False))
  assert once(np.zeros(3, np.float32)).shape == (3,)
  once(np.ones(3, np.float32))
  with pytest.raises(TypeError):
    once(np.zeros(4, np.float32))


def test_the_update_donates_its_state(tmp_path):
  c = importlib.import_module("configs.dapo").get_config("smoke")
  c.log.tensorboard = False
  run = stages.make_run(c, tmp_path, display.Display(False), threading.Event())
  with jax.set_mesh(run.mesh):
    tx, where = rl._optimizer(run)
    init = functools.partial(rl.step.init_state, run.cfg, tx, where)
    state = init(run.key("parameters"))
    rows = rl._no_rows(run)
    batch = rl._batch(run, rows, rows.correct_B, rows.old_logps_BT)
    batch_MA = run.put(rl._minibatches(run, batch, 0), None, None, "batch")
    compiled = rl._update(run, tx, where).lower(state, batch_MA).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    # A batch of padding alone changes nothing, and says so.
    before = jax.device_get(state.params)
    state, metrics = compiled(state, batch_MA)
    jax.tree.map(
        np.testing.assert_array_equal, before, jax.device_get(state.params)
    )
    assert metrics["actor/update_skipped"] == c.updates.minibatches


def test_the_first_update_starts_at_a_ratio_of_one(tmp_path):
  """Old log-probs come from the same products as the update's own."""
  c = importlib.import_module("configs.dapo").get_config("smoke")
  c.log.tensorboard = False
  c.updates.minibatches, c.updates.micro_batches = 1, 2
  run = stages.make_run(c, tmp_path, display.Display(False), threading.Event())
  rng = np.random.default_rng(0)
  rows = rl._no_rows(run)
  r = rows.rollouts
  rows = rows.replace(
      rollouts=r.replace(
          tokens_BL=rng.integers(2, 17, r.tokens_BL.shape).astype(np.int32),
          mask_BT=np.ones_like(r.mask_BT),
      )
  )
  with jax.set_mesh(run.mesh):
    tx, where = rl._optimizer(run)
    key = run.key("parameters")
    state = rl.step.init_state(run.cfg, tx, where, key)
    old_BT, _ = rl._logps(run, rl._score(run), state.params, rows)
    rows = rows.replace(old_logps_BT=old_BT)
    batch = rl._batch(run, rows, rng.normal(size=len(old_BT)), 0 * old_BT)
    batch_MA = run.put(rl._minibatches(run, batch, 0), None, None, "batch")
    _, metrics = rl._update(run, tx, where)(state, batch_MA)
  assert metrics["actor/first_log_ratio_max"] <= 1e-5
  assert metrics["actor/grad_norm"] > 0


def test_minibatches_deal_out_whole_groups():
  """Padding comes last, and every minibatch gets its share of it."""
  c = importlib.import_module("configs.dapo").get_config("smoke")
  c.updates.minibatches, c.updates.epochs = 4, 2
  run = type("Run", (), dict(config=c, seed=lambda self, purpose: 0))()
  groups, size = c.rollout.prompts, c.rollout.group_size
  rows = dict(
      id=np.repeat(np.arange(groups), size), row=np.arange(groups * size)
  )
  cut = rl._minibatches(run, rows, at=0)
  assert cut["id"].shape == (8, 1, groups // 4 * size)
  np.testing.assert_array_equal(
      cut["id"][0, 0], np.repeat([0, 4], size)
  )  # groups 0, 4 | 1, 5 | 2, 6 | 3, 7
  for epoch in (cut["row"][:4], cut["row"][4:]):
    np.testing.assert_array_equal(np.sort(epoch.ravel()), rows["row"])
  assert (cut["id"][:4] != cut["id"][4:]).any()
