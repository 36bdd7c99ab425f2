"""Packed rows that hold a group's prompt once: nothing but rounding changes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import replayed
import tiny
import tiny_session
from hypothesis import given, settings, strategies as st
from test_packing import near

from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_checks, config_facts
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import attention, critic, decoder, experts
from rl_reason.stages import build_step, compile_ahead, model
from rl_reason.training import packing, shared_prompts

P, T = tiny.P, tiny.T
SLOW = pytest.mark.slow
GROUPS, SIZE = 4, 4
EXPERTS = dataclasses.replace(
    tiny.CFG, mlp=12, experts=8, experts_per_token=2, qk_norm=True
)
CRITIC = critic.CriticConfig(tiny.CFG, "gated", heads=3)


def rows(seed=0, groups=GROUPS, size=SIZE):
  """Tokens, starts and masks; some responses are empty."""
  rng = np.random.default_rng(seed)
  start_B = rng.integers(0, P // 2, groups).repeat(size)
  tokens_BL = rng.integers(2, tiny.CFG.vocab, (groups * size, P + T))
  tokens_BL[:, :P] = tokens_BL[::size, :P].repeat(size, 0)
  length_B = np.maximum(rng.integers(-2, T + 1, len(tokens_BL)), 0)
  return tokens_BL.astype(np.int32), start_B, np.arange(T) < length_B[:, None]


# --- where tokens go ---------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([(2, 2), (3, 3), (4, 2)]),
)
def test_what_a_token_sees_is_its_sequence(seed, groups, size, sizes):
  """Its prompt and its response up to itself, and nothing else."""
  tokens_BL, start_B, mask_BT = rows(seed, groups, size)
  count, join = sizes
  packed = shared_prompts.pack(tokens_BL, start_B, mask_BT, count, join=join)
  plain = packing.pack(tokens_BL, start_B, mask_BT, count)
  used = packing.num_used(packed)
  assert used <= len(packed.tokens_RL) == len(plain.tokens_RL)
  length = join * (P + T)
  assert packed.tokens_RL.shape[1:] == (count // join, length)
  flat, shared = packed.replace(shared=None), packed.shared
  tokens_X, positions_X, segments_X = (
      x.reshape(-1)
      for x in (flat.tokens_RL, flat.positions_RL, flat.segments_RL)
  )
  prompt_X2 = shared.prompt_RL2.reshape(-1, 2)
  for b in np.flatnonzero(mask_BT.any(1)):
    n = mask_BT[b].sum()
    source_T = packed.source_BT[b, :n]
    last = source_T[-1] + 1
    first = last // length * length
    begin, end = prompt_X2[last] + first
    own_X = np.flatnonzero(segments_X == segments_X[last])
    seen_X = [*range(begin, end), *own_X]
    np.testing.assert_array_equal(
        tokens_X[seen_X], tokens_BL[b, start_B[b] : P + n]
    )
    np.testing.assert_array_equal(positions_X[seen_X], np.arange(len(seen_X)))
    np.testing.assert_array_equal(source_T + 1, own_X[1:])
    assert (prompt_X2[own_X] + first == (begin, end)).all()
    assert np.unique(segments_X[begin:end]).size == (end > begin)
  # Each token counts as often as sequences have it.
  assert shared.copies_RL.sum() == (plain.segments_RL > 0).sum()
  assert ((shared.copies_RL > 0) == (packed.segments_RL > 0)).all()


def test_prompts_are_shared_where_they_fit_by_hand():
  """Prompts of 4: three responses of 2, 2 and 1 in a row of 13, one of 4 alone.

  4 + 4 tokens; then 3 shared, and 1 + 2, 1 + 2 and 1 + 1 of the responses.
  """
  group_B, prompt_B = np.array([0, 1, 1, 1]), np.full(4, 4)
  length_B = np.array([8, 6, 6, 5])
  found = shared_prompts.place(group_B, prompt_B, length_B, (1, 2, 13))
  np.testing.assert_array_equal(found.row_B, [1, 0, 0, 0])
  np.testing.assert_array_equal(found.first_B, [0, 0, 3, 6])
  np.testing.assert_array_equal(found.owner_B, [0, 1, 1, 1])
  np.testing.assert_array_equal(found.skip_B, [0, 0, 3, 3])


def test_equal_prompts_with_other_records_are_not_shared():
  tokens_BL, start_B, mask_BT = rows(1, groups=1)
  start_B[:], mask_BT[:, :2] = 2, True
  record = np.zeros((SIZE, P + T, 2), np.int8)
  record[0, P:] = record[1, 0] = 1  # of a response, and of padding
  args = tokens_BL, start_B, np.full(SIZE, P - 2)
  assert not shared_prompts.groups(*args, record).any()
  record[2:, P - 1] = 1
  np.testing.assert_array_equal(
      shared_prompts.groups(*args, record), [0, 0, 1, 1]
  )


# --- and nothing changes -----------------------------------------------------


def of_policy(cfg, params, packed):
  return decoder.packed_logps(params, cfg, packed)[:2]


def with_routers(cfg, params, packed):
  logps_BT, entropy_BT, routing = decoder.packed_logps(params, cfg, packed)
  mean_BT = np.full(logps_BT.shape, 1 / logps_BT.size, np.float32)
  cfg = dataclasses.replace(cfg, router_aux=100.0)
  aux, metrics = experts.loss(cfg, routing, packed, mean_BT)
  if packed.record is not None:
    aux += metrics["router_agreement"]
  return logps_BT, entropy_BT, aux


def of_critic(cfg, params, packed):
  scores_B = critic.scores(params, cfg, packed)
  return critic.values(params, cfg, packed)[0], scores_B[:, None]


def graded(fn, params, packed, mask_BT, mesh=None):
  """Results, and the gradient of a sum that weighs each token differently."""
  rng = np.random.default_rng(9)
  weights = [rng.normal(size=mask_BT.shape).astype("f") for _ in range(2)]

  def total(params, packed):
    *found, aux = (*fn(params, packed), 0.0)[:3]
    found = [jax.numpy.where(mask_BT, x, 0) for x in found]
    sums = sum((w * x).sum() for w, x in zip(weights, found, strict=True))
    return sums + aux, (found, aux)

  if mesh is not None:
    with jax.set_mesh(mesh):
      put = sharding.put(mesh, params), sharding.put_packed(mesh, packed)
      grad, found = jax.jit(jax.grad(total, has_aux=True))(*put)
  else:
    grad, found = jax.jit(jax.grad(total, has_aux=True))(params, packed)
  return jax.device_get((found, grad))


def in_one_micro_batch(packed):
  assert packing.num_used(packed) == 1
  return packing.micro_batch(packed, 0)[0]


def compared(fn, params, record=None, mesh=None, joins=(8,)):
  tokens_BL, start_B, mask_BT = rows()
  args = tokens_BL, start_B, mask_BT, len(tokens_BL)
  plain = in_one_micro_batch(packing.pack(*args, record=record))
  wanted = graded(fn, params, plain, mask_BT)
  for join in joins:
    packed = shared_prompts.pack(*args, record=record, join=join)
    packed = in_one_micro_batch(packed)
    assert (packed.segments_RL > 0).sum() < (plain.segments_RL > 0).sum() - 40
    got = graded(fn, params, packed, mask_BT, mesh)
    for a, b in zip(got, wanted, strict=True):
      near(a, b)


def routes(cfg):
  """Recorded experts, equal for the prompts of a group."""
  shape = GROUPS * SIZE, P + T, cfg.layers * cfg.experts_per_token
  record = np.random.default_rng(3).integers(0, cfg.experts, shape)
  record[:, :P] = record[::SIZE, :P].repeat(SIZE, 0)
  return record.astype(np.int8)


def test_log_probs_and_gradients():
  cfg = dataclasses.replace(tiny.CFG, remat="dots")
  compared(functools.partial(of_policy, cfg), tiny.params())


@SLOW
def test_a_row_for_all():
  fn = functools.partial(of_policy, dataclasses.replace(tiny.CFG, remat="sqrt"))
  compared(fn, tiny.params(), joins=(16, 4))


@SLOW
@pytest.mark.parametrize("recorded", [False, True])
def test_experts(recorded):
  """Also the loss of the routers, and their agreement with a record."""
  params = decoder.init(EXPERTS, jax.random.key(0))
  record = routes(EXPERTS) if recorded else None
  fn = functools.partial(with_routers, EXPERTS)
  compared(fn, params, record)


@SLOW
def test_values_and_scores():
  params = critic.init(CRITIC, jax.random.key(0), None)
  compared(functools.partial(of_critic, CRITIC), params)


@SLOW
@pytest.mark.parametrize(
    "sizes",  # data, fsdp, tensor, sequence
    [
        # Two heads of keys: exchanged between two devices, gathered by four.
        (2, 1, 1, 4),
        (1, 2, 2, 2),
        (2, 1, 1, 2),
    ],
)
def test_meshes(sizes):
  *others, parts = sizes
  devices = jax.devices()[: np.prod(sizes)]
  mesh = device_mesh.make_mesh(*others, devices, sequence=parts)
  compared(functools.partial(of_policy, tiny.CFG), tiny.params(), mesh=mesh)


# --- who decides -------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt, tokens, rows, saves",
    # 7/8 of the prompts of full rows, of 8: 56 of 192 tokens, 10.5 of 60.
    [(64, 128, 8, True), (12, 48, 16, False), (64, 128, 1, False)],
)
def test_it_pays_from_a_fifth_of_the_tokens_on(prompt, tokens, rows, saves):
  c = tiny_session.tiny_config()
  c.rollout.update(group_size=8, max_prompt=prompt, max_tokens=tokens)
  c.updates.token_budget = rows * (prompt + tokens)
  assert config_facts.saves_tokens(c) == model.shares_prompts(c) == saves
  c.updates.share_prompts = "never"
  assert not model.shares_prompts(c)


def test_what_cannot_share_says_so(monkeypatch):
  c = tiny_session.tiny_config()
  c.updates.update(share_prompts="always", token_budget=60)
  with pytest.raises(ConfigError, match="holds a single row .* use 'auto'"):
    config_checks.fields(c)
  c.updates.token_budget = 120
  config_checks.fields(c)
  assert model.shares_prompts(c)
  monkeypatch.setattr(model, "attention_backend", lambda c: ("cudnn", ""))
  with pytest.raises(ConfigError, match="'always': attention is computed by"):
    model.shares_prompts(c)
  c.updates.share_prompts = "auto"
  assert not model.shares_prompts(c)
  with pytest.raises(ValueError, match="updates.share_prompts = 'never'"):
    attention.packed(np.ones((1, 4)), "prompts")("cudnn", 0, *[None] * 4)


def test_the_update_is_compiled_ahead_for_these_rows(tmp_path):
  session = tiny_session.make_session(
      tmp_path, updates__share_prompts="always", rollout__batch=GROUPS * SIZE
  )
  c = session.c
  ahead = compile_ahead.update_arguments(c, session.model)[2]
  slots, count = config_facts.row_slots(c), GROUPS * SIZE
  mask_BT = np.ones((count, c.rollout.max_tokens), bool)
  rollouts = Rollouts(
      tokens_BL=np.ones((count, slots), np.int32),
      start_B=np.zeros(count, np.int32),
      ids_B=np.arange(count) // SIZE,
      mask_BT=mask_BT,
      logps_BT=np.zeros(mask_BT.shape, np.float32),
      lengths_B=mask_BT.sum(1),
      truncated_B=mask_BT[:, 0],
  )
  planned = build_step.planner(c, session.mesh)(rollouts).packed_M
  assert planned.shared is not None
  assert jax.tree.structure(ahead) == jax.tree.structure(planned)
  for a, b in zip(*map(jax.tree.leaves, (ahead, planned)), strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)


@SLOW
def test_a_run_with_shared_prompts(tmp_path):
  """A step of two minibatches: its metrics are those without."""
  found = {}
  for share in ("never", "always"):
    replayed.reinforced(
        tmp_path / share,
        rl__steps=1,
        updates__minibatches=2,
        updates__share_prompts=share,
        kl__kind="k3",
        kl__coef=0.1,
        dynamic_sampling__enabled=False,
    )
    found[share] = tiny_session.logged(tmp_path / share)[-1]
  never, always = found["never"], found["always"]
  assert always.keys() == never.keys()
  trained = [x.pop("tokens/trained") for x in (never, always)]
  assert trained[1] < 0.9 * trained[0]
  assert always["actor/first_log_ratio_max"] < 1e-5
  for name, wanted in never.items():
    if isinstance(wanted, float):
      assert always[name] == pytest.approx(wanted, rel=1e-4, abs=1e-5), name
