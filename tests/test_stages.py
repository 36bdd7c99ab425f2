"""What keeps the loop fast: one compilation, donated buffers, even batches."""

import types

import jax
import numpy as np
import pytest
import tiny_session
from tiny_session import call

from rl_reason.collect import experience
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.monitoring import display
from rl_reason.stages import build_step, collectors, compile_ahead, optimizers
from rl_reason.training import optimizer, packing, step


def test_another_shape_is_an_error_not_a_recompilation():
  once = CompiledOnce("f", jax.jit(lambda x: x + 1), display.Display(False))
  assert once(np.zeros(3, np.float32)).shape == (3,)
  once(np.ones(3, np.float32))
  with pytest.raises(TypeError):
    once(np.zeros(4, np.float32))


class Lines(display.Display):
  """A silent screen that keeps its lines."""

  def __init__(self):
    super().__init__(False)
    self.lines = []

  def say(self, text):
    self.lines.append(text)


def compiled_for(fn, count):
  """What compiles a function for `count` numbers."""
  return lambda: fn.lower(jax.ShapeDtypeStruct((count,), np.float32)).compile()


def test_a_program_that_was_compiled_ahead_does_not_compile_again():
  screen, fn = Lines(), jax.jit(lambda x: x + 1)
  once = CompiledOnce("f", fn, screen)
  once.ahead(compiled_for(fn, 3))
  once.lower = None  # what compiles at a call
  assert once(np.zeros(3, np.float32)).tolist() == [1, 1, 1]
  assert once(np.ones(3, np.float32)).tolist() == [2, 2, 2]
  assert screen.lines == []
  with pytest.raises(TypeError):
    once(np.zeros(4, np.float32))


def test_what_fails_in_the_background_is_told_and_done_again():
  """A failure, and other arguments; the call itself raises as it always did."""
  screen, fn = Lines(), jax.jit(lambda x: x + 1)

  def fails():
    raise RuntimeError("no memory")

  for compile_it, why in ((fails, "no memory"), (compiled_for(fn, 4), "4")):
    screen.lines = []
    once = CompiledOnce("f", fn, screen)
    once.ahead(compile_it)
    assert once(np.zeros(3, np.float32)).tolist() == [1, 1, 1]
    told, compiled = screen.lines
    assert told.startswith("f was not compiled ahead: ") and why in told
    assert compiled.startswith("compiled f in ")
  wrong = jax.jit(lambda x: x + np.ones(2))
  once = CompiledOnce("f", wrong, screen)
  once.ahead(compiled_for(wrong, 3))
  with pytest.raises(TypeError, match="incompatible shapes"):
    once(np.zeros(3, np.float32))


def test_the_update_that_is_compiled_ahead_is_the_update_of_the_run(dapo):
  """The shapes, dtypes and shardings of all arguments are as in the loop."""
  session = dapo.session
  args = update_args(session, dapo.run, dapo.no_rows)
  args = new_state(session), *args, None, {}
  expected = compile_ahead.update_arguments(session.c, session.model)
  assert jax.tree.structure(args) == jax.tree.structure(expected)
  for one, other in zip(*map(jax.tree.leaves, (args, expected)), strict=True):
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.sharding.is_equivalent_to(other.sharding, one.ndim)


@pytest.fixture(scope="module")
def dapo(tmp_path_factory):
  """The session and programs of a DAPO run, and its compiled update."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build_step, "CompiledOnce", lambda name, fn, display: fn)
    session = tiny_session.make_session(
        tmp_path_factory.mktemp("dapo"),
        reduction__name="token_mean",
        updates__token_budget=60,
    )
    with jax.set_mesh(session.mesh):
      # On-policy the ratio of the only update is 1 by definition.
      run = call(tiny_session.programs, session, on_policy=False)
      no_rows = collectors.empty_rows(
          session.config, session.config.rollout.batch
      )
      args = new_state(session), *update_args(session, run, no_rows)
      compiled = run.update.lower(*args).compile()
      yield types.SimpleNamespace(
          session=session, run=run, update=compiled, no_rows=no_rows
      )


def new_state(session):
  params = tiny_session.random_params(session)
  return optimizer.new_state(params, *call(optimizers.of_policy, session))


def update_args(session, run, rows, advantages_BT=0.0):
  """What the update reads besides its state."""
  zeros_BT = np.zeros_like(rows.old_logps_BT)
  credit = dict(advantages_BT=advantages_BT + zeros_BT, returns_BT=zeros_BT)
  batch = step.train_batch(rows, credit)
  coefs = dict(kl=np.float32(0), entropy=np.float32(0))
  minibatches = step.minibatches(session.mesh, batch, run.plan(rows.rollouts))
  return *minibatches, sharding.put(session.mesh, coefs)


def test_the_update_donates_its_state(dapo):
  state = new_state(dapo.session)
  size = sum(x.nbytes for x in jax.tree.leaves(state))
  assert dapo.update.memory_analysis().alias_size_in_bytes >= size
  # A batch of padding alone changes nothing, and is counted as skipped.
  before = jax.device_get(state.params)
  args = update_args(dapo.session, dapo.run, dapo.no_rows)
  after, metrics = dapo.update(state, *args)
  jax.tree.map(np.testing.assert_array_equal, before, after.params)
  assert metrics["update_skipped"] == 1


def test_the_first_update_starts_at_a_ratio_of_one(dapo):
  """Old log-probs come from the same matrix products as the update's own."""
  rng = np.random.default_rng(0)
  r = dapo.no_rows.rollouts
  rollouts = r.replace(
      tokens_BL=rng.integers(2, 17, r.tokens_BL.shape).astype(np.int32),
      mask_BT=np.ones_like(r.mask_BT),
  )
  state = new_state(dapo.session)
  plan = dapo.run.plan(rollouts)
  assert plan.packed_M.segments_RL.any((-2, -1)).sum() > 2
  logps_BT, *_ = dapo.run.logps(state.params, plan)
  rows = experience.with_old_logps(
      dapo.no_rows.replace(rollouts=rollouts), logps_BT
  )
  advantages_BT = rng.normal(size=logps_BT.shape).astype(np.float32)
  args = update_args(dapo.session, dapo.run, rows, advantages_BT)
  _, metrics = dapo.update(state, *args)
  assert metrics["first_log_ratio_max"] <= 1e-5
  assert metrics["grad_norm"] > 0


def test_minibatches_are_made_of_whole_groups(dapo):
  """Round-robin: padding, which comes last, is spread over the minibatches."""
  group, groups, minibatches = 4, 8, 4
  ids_B = np.repeat(np.arange(groups), group)
  plan = packing.plan(
      dapo.no_rows.rollouts.replace(ids_B=ids_B),
      packed_rows=8,
      minibatches=minibatches,
      epochs=2,
  )
  ids_MB = ids_B[plan.order_MB]
  assert ids_MB.shape == (8, groups // minibatches * group)
  # Groups 0, 4 | 1, 5 | 2, 6 | 3, 7.
  np.testing.assert_array_equal(ids_MB[0], np.repeat([0, 4], group))
  for epoch in (plan.order_MB[:4], plan.order_MB[4:]):
    np.testing.assert_array_equal(np.sort(epoch.ravel()), np.arange(len(ids_B)))
  assert (ids_MB[:4] != ids_MB[4:]).any(), "the second epoch is shuffled"


def test_round_robin_of_unequal_groups():
  groups = [np.arange(0, 3), np.arange(3, 4), np.arange(4, 9)]
  order = experience.round_robin(groups, 2)
  np.testing.assert_array_equal(order, [0, 1, 2, 4, 5, 6, 7, 8, 3])
