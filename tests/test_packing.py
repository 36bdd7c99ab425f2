"""Packed rows: nothing is lost, and nothing but rounding changes."""

import contextlib
import dataclasses
import functools
import importlib
import types

import jax
import numpy as np
import padded
import pytest
import tiny
from hypothesis import given, settings, strategies as st

from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_facts
from rl_reason.devices import compiled, device_mesh, sharding
from rl_reason.models import decoder
from rl_reason.training import packing, step

P, T = tiny.P, tiny.T
SLOTS = P + T
SLOW = pytest.mark.slow


# --- where sequences go ------------------------------------------------------


def test_first_fit_decreasing_by_hand():
  """Longest first: 7, 6, 4, 3, 3, 1 into rows of 10; none takes no place."""
  row_B, first_B = packing.place(np.array([3, 7, 0, 4, 6, 3, 1]), 10, 2)
  np.testing.assert_array_equal(row_B, [0, 0, 0, 1, 1, 2, 2])
  np.testing.assert_array_equal(first_B, [7, 0, 0, 6, 0, 0, 3])


def test_pairs_by_hand():
  """9 + 2, 5 + 5, 4 + 4 and 1 + none into micro-batches of two rows of 10.

  The second pair would fit in part beside the first: 5 + 5 do not, 4 + 4 do.
  """
  length_B = np.array([5, 5, 4, 4, 1, 0, 9, 2])
  row_B, first_B = packing.place(length_B, 10, 2, unit=2)
  np.testing.assert_array_equal(row_B, [2, 2, 1, 1, 0, 0, 0, 1])
  np.testing.assert_array_equal(first_B, [0, 5, 2, 6, 9, 0, 0, 0])


def test_what_does_not_fit_is_an_error():
  with pytest.raises(ValueError, match="11 tokens in packed rows of 10"):
    packing.place(np.array([3, 11]), 10, 2)
  with pytest.raises(ValueError, match="2 rows in micro-batches of 1"):
    packing.place(np.array([3, 3]), 10, 1, unit=2)


def test_a_response_needs_a_prompt():
  """Else the last token of another sequence would predict its first one."""
  tokens_BL, mask_BT = np.ones((2, 5), int), np.ones((2, 2), bool)
  with pytest.raises(ValueError, match="without a token of its prompt"):
    packing.pack(tokens_BL, np.array([1, 3]), mask_BT, 2)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([1, 2, 3]))
def test_any_lengths_have_room(seed, rows, together):
  """And nothing overlaps, and what belongs together is in one micro-batch."""
  rng = np.random.default_rng(seed)
  rows = max(rows, together)
  length_B = rng.integers(0, rng.integers(2, 12), 6 * together)
  row_B, first_B = packing.place(length_B, 10, rows, together)
  most = packing.max_micro_batches(len(length_B), rows, together)
  assert row_B.max() < rows * most
  taken_RL = np.zeros((row_B.max() + 1, 10), int)
  for r, first, n in zip(row_B, first_B, length_B, strict=True):
    taken_RL[r, first : first + n] += 1
  assert taken_RL.max(initial=0) <= 1 and taken_RL.sum() == length_B.sum()
  hand_UX = (row_B // rows).reshape(-1, together)
  held_UX = length_B.reshape(-1, together) > 0
  for hand_X, held_X in zip(hand_UX, held_UX, strict=True):
    assert len(set(hand_X[held_X])) <= 1


def reasoning(rng, rows, length):
  """Lengths as they are of long chains of thought: a heavy tail, and a cap."""
  drawn_B = rng.lognormal(np.log(length / 5), 0.8, rows)
  return np.clip(drawn_B, 1, length).astype(int)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_trained_is_as_full(seed):
  """A minibatch of DAPO's, on eight devices: no micro-batch more than at 0.97.

  Only the last one is as full as it happens to be.
  """
  c = importlib.import_module("configs.paper.dapo").get_config()
  rows, slots = c.rollout.batch // c.updates.minibatches, 22528
  rng, count = np.random.default_rng(seed), config_facts.packed_rows(c, 8)
  prompt_B = np.clip(rng.lognormal(5, 0.5, rows), 16, 2048).astype(int)
  length_B = prompt_B + reasoning(rng, rows, slots - 2048)
  row_B, _ = packing.place(length_B, slots, count)
  ideal = length_B.sum() / (0.97 * count * slots)
  assert 5 < row_B.max() // count + 1 <= np.ceil(ideal)


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
  p = padded.micro(tokens_BL, start_B, mask_BT)
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


def test_a_minibatch_is_as_many_micro_batches_as_it_fills():
  """Five rows of a half, one whole, in micro-batches of two packed rows."""
  tokens_BL, start_B = np.arange(6 * SLOTS).reshape(6, -1), np.full(6, P - 6)
  mask_BT = np.broadcast_to(np.arange(T) < SLOTS // 2 - 6, (6, T)).copy()
  mask_BT[3], start_B[3] = True, 0
  packed = packing.pack(tokens_BL, start_B, mask_BT, 2)
  assert packed.tokens_RL.shape == (3, 2, SLOTS)
  assert packing.num_used(packed) == 2 and not packed.segments_RL[2].any()
  found = []
  for at in range(2):
    micro, here_B = packing.micro_batch(packed, at)
    assert micro.tokens_RL.shape == (2, SLOTS)
    places_X = micro.tokens_RL.reshape(-1)
    for b in np.flatnonzero(here_B):
      n = mask_BT[b].sum()
      following = places_X[micro.source_BT[b, :n] + 1]
      np.testing.assert_array_equal(following, tokens_BL[b, P : P + n])
    assert not micro.source_BT[~here_B].any()
    found.append(np.flatnonzero(here_B).tolist())
  assert found == [[0, 1, 3], [2, 4, 5]]


def test_no_token_fills_no_micro_batch():
  none_BT = np.zeros((3, T), bool)
  packed = packing.pack(np.ones((3, SLOTS), int), np.zeros(3, int), none_BT, 2)
  assert packing.num_used(packed) == 0


@pytest.mark.slow
def test_scores_of_micro_batches_are_those_of_padded_rows():
  """Spread over several micro-batches; a row without tokens is in any."""
  batch = tiny.batch(2, 16)
  batch.mask_BT[1, 5] = False
  packed = padded.packed(batch, 16 // 3)
  assert (np.array(jax.vmap(packing.num_used)(packed)) > 2).all()
  program = step.logps_program(tiny.CFG, 1.0)
  got, _ = program(tiny.params(), packed)
  assert got.shape == (2, 16, T)
  for m in range(2):
    rows_BL = batch.tokens_BL[m], batch.start_B[m]
    wanted, _ = padded.response_logps(tiny.params(), tiny.CFG, *rows_BL, T)
    mask_BT = batch.mask_BT[m]
    np.testing.assert_allclose(got[m][mask_BT], wanted[mask_BT], atol=1e-5)


def test_rows_of_other_micro_batches_are_zeros():
  tree = dict(a=np.full((2, 3), np.nan), b=np.array([True, True]))
  got = packing.zero_others(np.array([False, True]), tree)
  np.testing.assert_array_equal(got["a"], [[0] * 3, [np.nan] * 3])
  np.testing.assert_array_equal(got["b"], [False, True])


# --- and nothing changes -----------------------------------------------------


@functools.cache
def padded_answer():
  """16 rows; log-probs, entropy and a gradient by the padded rows."""
  batch = jax.tree.map(lambda x: x[0], tiny.batch(1, 16))

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
  return padded.micro(batch.tokens_BL, batch.start_B, batch.mask_BT, rows)


def near(got, wanted, relative=1e-5):
  """To so much of the largest."""
  largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=relative * largest),
      got,
      wanted,
  )


@pytest.mark.parametrize(
    "rows, change",
    [
        (None, dict(logprob_chunk=50, remat="sqrt")),
        pytest.param(14, dict(logprob_chunk=10_000, remat="full"), marks=SLOW),
        pytest.param(16, dict(logprob_chunk=1, remat="dots"), marks=SLOW),
    ],
)
def test_packed_rows_are_the_padded_ones(rows, change):
  """Neither packing nor chunks of logits nor remat change a gradient."""
  batch, wanted, wanted_grad = padded_answer()
  cfg = dataclasses.replace(tiny.CFG, **change)
  packed = pack(batch, rows)
  assert rows or len(packed.tokens_RL) < 14, "16 sequences share rows"
  got, grad = graded(
      lambda params, packed: decoder.packed_logps(params, cfg, packed)[:2],
      batch,
      packed,
  )
  near(got, wanted)
  near(grad, wanted_grad)


@pytest.mark.slow
def test_groups_of_layers_change_no_gradient():
  """model.remat = "sqrt": two groups of three layers, each recomputed."""
  cfg = dataclasses.replace(tiny.CFG, layers=6)
  batch, params = padded_answer()[0], decoder.init(cfg, jax.random.key(0))
  packed, found = pack(batch), []
  for remat in ("none", "sqrt"):
    one = dataclasses.replace(cfg, remat=remat)

    def total(params, cfg=one):
      return decoder.packed_logps(params, cfg, packed)[0].sum()

    found.append(jax.device_get(jax.jit(jax.grad(total))(params)))
  near(found[1], found[0])


@pytest.mark.slow
def test_eight_devices_pack_as_one_does():
  """Each shard has packed rows of its own, some of them empty."""
  batch, wanted, wanted_grad = padded_answer()
  mesh = device_mesh.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    got, grad = graded(
        lambda *args: decoder.packed_logps(args[0], tiny.CFG, args[1])[:2],
        batch,
        sharding.put(mesh, pack(batch, 16), "batch"),
    )
  near(got, wanted)
  near(grad, wanted_grad)


def test_programs_compile_once():
  """Forty steps of rows of any lengths; another shape is refused."""
  rng, counts, lines = np.random.default_rng(0), set(), []
  show = types.SimpleNamespace(
      say=lines.append,
      compiling=contextlib.nullcontext,
      progress=lambda: None,
  )
  program = compiled.CompiledOnce(
      "count", jax.jit(jax.vmap(packing.num_used)), show
  )
  zeros_B = np.zeros(32, np.int32)
  for _ in range(40):
    lengths_B = rng.integers(0, rng.integers(2, T + 1), 32)
    mask_BT = np.arange(T) < lengths_B[:, None]
    rollouts = Rollouts(
        tokens_BL=np.ones((32, SLOTS), np.int32),
        start_B=zeros_B,
        ids_B=np.arange(32) // 4,
        mask_BT=mask_BT,
        logps_BT=np.zeros(mask_BT.shape, np.float32),
        lengths_B=lengths_B,
        truncated_B=zeros_B > 0,
    )
    plan = packing.plan(rollouts, packed_rows=4, minibatches=2)
    counts |= set(program(plan.packed_M).tolist())
  assert len(lines) == 1 and lines[0].startswith("compiled") and len(counts) > 1
  with pytest.raises(TypeError):
    program(jax.tree.map(lambda x: x[:1], plan.packed_M))
