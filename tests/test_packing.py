"""Packed rows: nothing is lost, and nothing but rounding changes."""

import dataclasses
import functools
import importlib
import threading
import types

import jax
import numpy as np
import padded
import pytest
import tiny
from hypothesis import given, settings, strategies as st

from rl_reason import (
    config,
    display,
    model,
    packing,
    sharding,
    stages,
    step,
    surrogates,
    weights,
)
from rl_reason.objective import Objective
from rl_reason.stages import experience
from rl_reason.structs import Packed, TrainState

P, T = tiny.P, tiny.T
SLOTS = P + T


# --- where sequences go ------------------------------------------------------


def test_first_fit_decreasing_by_hand():
  """Longest first: 7, 6, 4, 3, 3, 1 into rows of 10; none takes no place."""
  row_B, first_B = packing.place(np.array([3, 7, 0, 4, 6, 3, 1]), 10)
  np.testing.assert_array_equal(row_B, [0, 0, 0, 1, 1, 2, 2])
  np.testing.assert_array_equal(first_B, [7, 0, 0, 6, 0, 0, 3])


def test_a_sequence_that_is_too_long_is_an_error():
  with pytest.raises(ValueError, match="11 tokens in packed rows of 10"):
    packing.place(np.array([3, 11]), 10)


def test_lengths_of_reasoning_fill_the_rows():
  """Log-normal, 256 of them, up to 1024 tokens: at least 0.97."""
  rng = np.random.default_rng(0)
  length_B = np.minimum(rng.lognormal(5, 0.8, 256), 1024).astype(int)
  row_B, _ = packing.place(length_B, 1024)
  assert length_B.sum() / (1024 * (row_B.max() + 1)) >= 0.97


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_every_token_is_there_once(seed, count):
  """Tokens, positions and segments; a source is the token before."""
  rng = np.random.default_rng(seed)
  start_B = rng.integers(0, P, count)
  length_B = rng.integers(0, T + 1, count)
  mask_BT = np.arange(T) < length_B[:, None]
  mask_BT &= (np.arange(T) == length_B[:, None] - 1) | (rng.random(T) < 0.8)
  tokens_BL = rng.integers(2, 1000, (count, SLOTS))
  p = packing.pack(tokens_BL, start_B, mask_BT)
  seen = 0
  for b, (start, length) in enumerate(zip(start_B, length_B, strict=True)):
    where = p.segments_RL == b + 1
    assert len(set(np.nonzero(where)[0])) == (length > 0)
    if not length:
      continue
    wanted = tokens_BL[b, start : P + length]
    np.testing.assert_array_equal(p.tokens_RL[where], wanted)
    np.testing.assert_array_equal(p.positions_RL[where], np.arange(len(wanted)))
    following = p.tokens_RL.reshape(-1)[p.source_BT[b, :length] + 1]
    np.testing.assert_array_equal(following, tokens_BL[b, P : P + length])
    assert (p.source_BT[b, length:] == p.source_BT[b, 0]).all()
    seen += len(wanted)
  assert (p.segments_RL > 0).sum() == seen
  assert p.source_BT.min() >= 0 and p.source_BT.max() < p.tokens_RL.size
  again = packing.pack(tokens_BL, start_B, mask_BT, len(p.tokens_RL) + 3)
  np.testing.assert_array_equal(again.source_BT, p.source_BT)
  assert not again.segments_RL[-3:].any()


def test_too_few_rows_are_an_error():
  tokens_BL, none_B = np.ones((3, SLOTS), int), np.zeros(3, int)
  with pytest.raises(ValueError, match="3 packed rows needed, 2 given"):
    packing.pack(tokens_BL, none_B, np.ones((3, T), bool), 2)


# --- in which shapes ---------------------------------------------------------


def test_ladders():
  eighths = [(4, 2), (4, 4), (4, 6), (4, 8), (4, 10), (4, 12), (4, 14), (4, 16)]
  assert config.ladder(64, 4) == eighths
  assert config.ladder(64, 4, ways=8) == [(4, 8), (4, 16)]
  assert config.ladder(8, 8) == [(8, 1)]
  # At most 10 packed rows: 8, then 2 x 8, ... up to 8 x 8 of all 64.
  wanted = [(1, 8), (2, 8), (4, 6), (4, 8), (4, 10), (8, 6), (8, 7), (8, 8)]
  assert config.ladder(64, 0, most=10.5) == wanted
  assert config.ladder(64, 0, most=0.9) == []
  assert config.ladder(64, 3) == []


def test_hands_hold_like_many_tokens():
  """8, 7, ... 1 to two hands, to and fro; pairs stay together."""
  length_B = np.array([1, 8, 2, 7, 3, 6, 4, 5])
  hands = packing.deal(length_B, np.arange(8), 2)
  np.testing.assert_array_equal(length_B[hands], [[8, 5, 4, 1], [7, 6, 3, 2]])
  pairs = packing.deal(length_B, np.arange(8), 2, together=2)
  np.testing.assert_array_equal(length_B[pairs], [[1, 8, 4, 5], [2, 7, 3, 6]])


def test_a_cut_takes_the_first_shape_that_holds():
  """Two minibatches of four rows; each sequence fills half of a row."""
  tokens_BL, start_B = np.ones((8, SLOTS), int), np.full(8, P - 6)
  mask_BT = np.broadcast_to(np.arange(T) < SLOTS // 2 - 6, (8, T))
  order_MB = np.arange(8).reshape(2, 4)
  shapes = [(2, 1), (2, 2)]
  order_MAB, packed = packing.cut(tokens_BL, start_B, mask_BT, order_MB, shapes)
  assert packed.tokens_RL.shape == (2, 2, 1, SLOTS)
  np.testing.assert_array_equal(np.sort(order_MAB.reshape(2, 4)), order_MB)
  assert packing.fill(packed) == 1
  longer_BT = mask_BT.copy()
  longer_BT[5] = True
  _, packed = packing.cut(tokens_BL, start_B, longer_BT, order_MB, shapes)
  assert packed.tokens_RL.shape == (2, 2, 2, SLOTS)
  with pytest.raises(ValueError, match="tokens in shapes"):
    packing.cut(tokens_BL, start_B, longer_BT, order_MB, shapes[:1])


# --- and nothing changes -----------------------------------------------------


@functools.cache
def padded_answer():
  """16 rows; log-probs, entropy and a gradient by the padded rows."""
  batch = jax.tree.map(lambda x: x[0, 0], tiny.batch(1, 1, 16))

  def score(params, tokens_BL, start_B):
    return padded.response_logps(params, tiny.CFG, tokens_BL, start_B, T)

  return batch, *graded(score, batch, batch.tokens_BL, batch.start_B)


def graded(score, batch, *args):
  """Scored tokens, and the gradient of a sum that weighs each differently."""

  def total(params, args):
    logps_BT, entropy_BT = score(params, *args)
    sums = batch.advantages_BT * logps_BT + batch.values_BT * entropy_BT
    return (batch.mask_BT * sums).sum(), (logps_BT, entropy_BT)

  fn = jax.jit(jax.grad(total, has_aux=True))
  grad, scored = jax.device_get(fn(tiny.params(), args))
  return [np.where(batch.mask_BT, x, 0) for x in scored], grad


def pack(batch, rows=None):
  return packing.pack(batch.tokens_BL, batch.start_B, batch.mask_BT, rows)


def near(got, wanted, relative=1e-5):
  """To so much of the largest."""
  largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=relative * largest),
      got,
      wanted,
  )


@pytest.mark.parametrize("rows, chunk", [(None, 16), (14, 10_000), (16, 50)])
def test_packed_rows_are_the_padded_ones(rows, chunk):
  batch, wanted, wanted_grad = padded_answer()
  cfg = dataclasses.replace(tiny.CFG, logprob_chunk=chunk)
  packed = pack(batch, rows)
  assert rows or len(packed.tokens_RL) < 14, "16 sequences share rows"
  got, grad = graded(
      lambda params, packed: model.packed_logps(params, cfg, packed),
      batch,
      packed,
  )
  near(got, wanted)
  near(grad, wanted_grad)


def test_eight_devices_pack_as_one_does():
  """Each shard has packed rows of its own, some of them empty."""
  batch, wanted, wanted_grad = padded_answer()
  mesh = sharding.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    got, grad = graded(
        lambda params, packed: model.packed_logps(params, tiny.CFG, packed),
        batch,
        sharding.put(mesh, pack(batch, 16), "batch"),
    )
  near(got, wanted)
  near(grad, wanted_grad)


@pytest.mark.parametrize(
    "hands, rows",
    [(1, 13), pytest.param(2, 7, marks=pytest.mark.slow), (4, 4)],
)
def test_cuts_change_no_update(hands, rows):
  """One minibatch in other shapes: the SGD step is that of one row each."""
  batch = jax.tree.map(lambda x: x[0, 0], tiny.batch(1, 1, 16))
  tx = tiny.optimizer(name="sgd", lr=1.0)
  policy = functools.partial(surrogates.ppo, clip_low=0.2, clip_high=0.2)
  update = jax.jit(
      functools.partial(
          step.rl_update,
          cfg=tiny.CFG,
          tx=tx,
          temperature=1.0,
          objective=Objective(policy, weights.seq_mean_token_mean, kl="k3"),
      )
  )
  zero = np.zeros((), np.int32)
  params = tiny.params()
  state = TrainState(params, tx.init(params), zero, zero)
  coefs = dict(kl=np.float32(0.1), entropy=np.float32(0))
  as_is = jax.tree.map(lambda x: x[None, None], batch)
  wanted, metrics = update(state, as_is, padded.packed(as_is), coefs)
  order_MB = np.arange(16)[None]
  args = batch.tokens_BL, batch.start_B, batch.mask_BT, order_MB
  order_MAB, packed = packing.cut(*args, [(hands, rows)])
  cut = jax.tree.map(lambda x: x[order_MAB], batch)
  got, more = update(state, cut, packed, coefs)
  moved = (
      jax.tree.map(np.subtract, x.params, state.params) for x in (got, wanted)
  )
  near(*moved)
  for name in metrics:
    np.testing.assert_allclose(
        more[name], metrics[name], rtol=1e-4, atol=1e-6, err_msg=name
    )


# --- and little compiles -----------------------------------------------------


def test_programs_compile_once_for_each_rung(tmp_path):
  """Forty steps of any lengths; a shape that is on no rung is refused."""
  c = importlib.import_module("configs.dapo").get_config("smoke")
  c.log.tensorboard, c.mesh.data, c.mesh.fsdp = False, 2, 1
  c.mesh.tensor = 4
  show = display.Display(False)
  run = stages.make_run(c, tmp_path, show, threading.Event())
  maker = types.SimpleNamespace(_run=run)
  rng, shapes, said = np.random.default_rng(0), set(), []
  rollouts = experience.no_rows(run).rollouts
  show.say = said.append

  def compiled():
    return sum(line.startswith("compiled") for line in said)

  with jax.set_mesh(run.mesh):
    tokens = stages.Once("tokens", jax.jit(lambda p: p.tokens_RL.sum()), show)
    for _ in range(40):
      length_B = rng.integers(0, rng.integers(2, 50), c.rollout.batch)
      mask_BT = np.arange(c.rollout.max_tokens) < length_B[:, None]
      rows = rollouts.replace(mask_BT=mask_BT)
      cut = experience.Maker.layout(maker, rows)
      tokens(run.put(cut.packed_MA, None, None, "batch"))
      shapes.add(cut.packed_MA.tokens_RL.shape)
    assert 3 < compiled() == len(shapes) <= config.RUNGS
    with pytest.raises(TypeError, match="one shape too many"):
      for rows in range(1, config.RUNGS + 1):
        one = np.zeros((rows, 3), np.int32)
        tokens(Packed(one, one, one, one))
  assert compiled() == config.RUNGS
