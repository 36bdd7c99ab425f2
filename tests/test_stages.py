"""What keeps the loop fast: one compilation, and donated buffers."""

import importlib
import threading
import types

import jax
import numpy as np
import pytest
import test_config
import test_credit

from rl_reason import config
from rl_reason.evaluation import evaluate
from rl_reason.models import decoder
from rl_reason.monitoring import display
from rl_reason.rollout import decode_loop, sampler
from rl_reason.training import experience, rl, session, step
from rl_reason.training.session import Once


def test_another_shape_is_an_error_not_a_recompilation():
  once = Once("f", jax.jit(lambda x: x + 1), display.Display(False))
  assert once(np.zeros(3, np.float32)).shape == (3,)
  once(np.ones(3, np.float32))
  with pytest.raises(TypeError):
    once(np.zeros(4, np.float32))


def update_args(run, rows, advantages_BT=0.0):
  """What the RL update takes beside its state."""
  zeros_BT = np.zeros_like(rows.old_logps_BT)
  assigned = dict(advantages_BT=advantages_BT + zeros_BT, returns_BT=zeros_BT)
  batch = experience.batch(run, rows, assigned)
  cut = experience.Maker.layout(types.SimpleNamespace(_run=run), rows.rollouts)
  coefs = run.put(dict(kl=np.float32(0), entropy=np.float32(0)))
  return *experience.minibatches(run, batch, cut), coefs


def test_the_update_donates_its_state(tmp_path):
  c = config.smoke(importlib.import_module("configs.dapo").get_config())
  c.log.tensorboard = False
  run = session.make_run(c, tmp_path, display.Display(False), threading.Event())
  with jax.set_mesh(run.mesh):
    tx, where = rl._optimizer(run)
    table = decoder.table(run.cfg)
    state = step.init_state(table, tx, where, run.key("parameters"))
    args = update_args(run, experience.no_rows(run))
    compiled = rl._update(run, tx, where).lower(state, *args).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    # A batch of padding alone changes nothing, and says so.
    before = jax.device_get(state.params)
    state, metrics = compiled(state, *args)
    jax.tree.map(
        np.testing.assert_array_equal, before, jax.device_get(state.params)
    )
    assert metrics["actor/update_skipped"] == c.updates.minibatches


def test_the_first_update_starts_at_a_ratio_of_one(tmp_path, monkeypatch):
  """Old log-probs come from the same products as the update's own."""
  monkeypatch.setattr(config, "on_policy", lambda c: False)  # or 1 is no news
  c = config.smoke(importlib.import_module("configs.dapo").get_config())
  c.log.tensorboard = False
  c.updates.minibatches = 1
  c.updates.token_budget = 60
  run = session.make_run(c, tmp_path, display.Display(False), threading.Event())
  rng = np.random.default_rng(0)
  rows = experience.no_rows(run)
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
    state = step.init_state(decoder.table(run.cfg), tx, where, key)
    maker = experience.Maker(run, "test")
    cut = maker.layout(rows.rollouts)
    assert cut.packed_M.segments_RL.any((-2, -1)).sum() > 2
    rows, _ = maker.with_old_logps(state.params, rows, cut)
    args = update_args(run, rows, rng.normal(size=rows.old_logps_BT.shape))
    _, metrics = rl._update(run, tx, where)(state, *args)
  assert metrics["actor/first_log_ratio_max"] <= 1e-5
  assert metrics["actor/grad_norm"] > 0


def test_minibatches_deal_out_whole_groups(tmp_path):
  """Padding comes last, and every minibatch gets its share of it."""
  c = config.smoke(importlib.import_module("configs.dapo").get_config())
  c.updates.minibatches, c.updates.epochs = 4, 2
  run = types.SimpleNamespace(config=c, seed=lambda purpose: 0, packed_rows=8)
  rows = experience.no_rows(types.SimpleNamespace(config=c)).rollouts
  size = c.rollout.group_size
  groups = c.rollout.batch // size
  ids_B = np.repeat(np.arange(groups), size)
  maker = types.SimpleNamespace(_run=run)
  cut = experience.Maker.layout(maker, rows.replace(ids_B=ids_B))
  ids_MB = ids_B[cut.order_MB]
  assert ids_MB.shape == (8, groups // 4 * size)
  np.testing.assert_array_equal(
      ids_MB[0], np.repeat([0, 4], size)
  )  # groups 0, 4 | 1, 5 | 2, 6 | 3, 7
  for epoch in (cut.order_MB[:4], cut.order_MB[4:]):
    np.testing.assert_array_equal(np.sort(epoch.ravel()), np.arange(len(ids_B)))
  assert (ids_MB[:4] != ids_MB[4:]).any()


def test_groups_of_all_sizes_are_dealt_out():
  groups = [np.arange(0, 3), np.arange(3, 4), np.arange(4, 9)]
  order = experience.deal(groups, 2)
  np.testing.assert_array_equal(order, [0, 1, 2, 4, 5, 6, 7, 8, 3])


def test_a_verdict_that_takes_long_keeps_no_token_waiting(
    tmp_path, monkeypatch
):
  """The first one ends only when all responses are there."""
  sampled, waited = threading.Event(), []
  begin = evaluate.begin_to_judge
  run = test_credit.make_run(tmp_path)
  stream = run.stream

  def slow(*args):
    waited.append(sampled.wait(60))
    return begin(*args)

  def all_of(*args, **more):
    yield from stream(*args, **more)
    sampled.set()

  monkeypatch.setattr(evaluate, "begin_to_judge", slow)
  monkeypatch.setattr(run, "stream", all_of)
  monkeypatch.setattr(decode_loop, "CHUNK", 1)
  sampler.program.cache_clear()
  with jax.set_mesh(run.mesh):
    experience.Maker(run, "rollout").generate(test_config.run_params(run))
  sampler.program.cache_clear()
  assert len(waited) > 1 and all(waited)


def test_verdicts_begin_while_others_are_sampled(tmp_path, monkeypatch):
  """Tokens, verdicts and their order do not depend on when one begins."""
  found = []
  for share, chunk in ((1 / 8, 1), (1.0, 2)):
    sizes, begin = [], evaluate.begin_to_judge

    def spy(task, tok, rollouts, rows, sizes=sizes, begin=begin):
      sizes.append(len(rows))
      return begin(task, tok, rollouts, rows)

    with monkeypatch.context() as patch:
      patch.setattr(evaluate, "begin_to_judge", spy)
      patch.setattr(sampler, "YIELD_SHARE", share)
      patch.setattr(decode_loop, "CHUNK", chunk)
      sampler.program.cache_clear()
      run = test_credit.make_run(tmp_path)
      with jax.set_mesh(run.mesh):
        maker = experience.Maker(run, "rollout")
        found.append(maker.generate(test_config.run_params(run)))
    assert sum(sizes) == run.config.rollout.batch
    assert (sum(map(bool, sizes)) > 1) == (share < 1)
  sampler.program.cache_clear()
  for name in ("tokens_BL", "lengths_B", "ids_B"):
    one, other = (getattr(x.rollouts, name) for x in found)
    np.testing.assert_array_equal(one, other)
  for name in ("correct_B", "types_B", "problems_B"):
    one, other = (getattr(x, name) for x in found)
    np.testing.assert_array_equal(one, other)
