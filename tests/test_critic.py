"""The critic: its heads by hand, what it may see, and its update."""

import dataclasses
import functools

import golden
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import reference
import reference_model
from tiny_session import call, make_session, random_params

from rl_reason.base.structs import TrainState
from rl_reason.devices import device_mesh
from rl_reason.models import critic, decoder
from rl_reason.stages import optimizers, trained_parameters
from rl_reason.training import optimizer, step

HEADS = ("scalar", "gated", "categorical")
SLOW = pytest.mark.slow
P, T, SMALL = golden.P, golden.T, golden.SMALL
wide = golden.wide  # the fixture


def shape(head, trunk=SMALL):
  return critic.CriticConfig(trunk, head, heads=3, bins=5, low=-1.0, high=2.0)


# --- heads -------------------------------------------------------------------


@pytest.mark.parametrize(
    "head, params, wanted",
    [
        # (1, 0) and (2, 1) times (1, 2), plus 1/2.
        (
            dict(head="scalar"),
            dict(value=[[1], [2]], bias=[0.5]),
            [1.5, 4.5],
        ),
        # Heads say 1, 3 + 1 and 5, 4 + 1; they weigh 1/4, 3/4 and 9/10, 1/10.
        (
            dict(head="gated", heads=2),
            dict(
                value=[[1, 3], [3, -2]],
                bias=[0, 1],
                gate=[[0, np.log(3)], [np.log(81), 0]],
            ),
            [1 / 4 + 3 * 4 / 4, (9 * 5 + 5) / 10],
        ),
        # Masses 1/4, 1/4, 1/2 and 1/6, 1/6, 4/6 at -1, 0, 1.
        (
            dict(head="categorical", bins=3, low=-1.0, high=1.0),
            dict(value=[[0, 0, np.log(2)], [0, 0, 0]], bias=[0, 0, 0]),
            [1 / 4, 1 / 2],
        ),
    ],
    ids=HEADS,
)
def test_heads_by_hand(monkeypatch, head, params, wanted):
  """Of two tokens: V of the states BEFORE them, not of the last state."""
  states = np.array([[[9, 9], [1, 0], [2, 1], [7, 7]]], np.float32)
  tokens, mask = np.ones((1, 4), np.int32), np.ones((1, 2), bool)
  packed = padded.micro(tokens, np.zeros(1, np.int32), mask)
  monkeypatch.setattr(decoder, "hidden", lambda *_: (jnp.array(states), None))
  head_params = {k: jnp.array(x, jnp.float32) for k, x in params.items()}
  cfg = critic.CriticConfig(SMALL, **head)
  params = dict(trunk={}, value_head=head_params)
  got_BT, logits_BTJ = critic.values(params, cfg, packed)
  np.testing.assert_allclose(got_BT, [wanted], rtol=1e-6)
  assert (logits_BTJ is None) == (head["head"] != "categorical")


@functools.cache
def program(cfg):
  """jit: values of rows; compiled once for each head."""

  fn = golden.quick_jit(lambda *args: critic.values(args[0], cfg, args[1])[0])

  def values(params, tokens_BL, start_B):
    mask_BT = np.ones((len(start_B), T), bool)
    return fn(params, padded.micro(tokens_BL, start_B, mask_BT, 8))

  return values


def leaves_of(cfg, seed=4):
  """Parameters off their initial values. Flat tree."""
  rng = np.random.default_rng(seed)
  trunk = golden.random_leaves(cfg.trunk)
  trunk.pop("head", None)
  leaves = {f"trunk/{name}": x for name, x in trunk.items()}
  for name, row in critic.table(cfg)["value_head"].items():
    leaves[f"value_head/{name}"] = rng.normal(0, 0.7, row.shape)
  return leaves


def params_of(cfg):
  return golden.on_device(leaves_of(cfg), jnp.float32)


@pytest.mark.parametrize("head", HEADS)
def test_a_value_depends_on_the_prefix_only(head):
  """Token t and later ones change nothing of V_t; token t - 1 does."""
  cfg = shape(head)
  params = params_of(cfg)
  tokens_BL, start_B, _ = golden.random_rows(8)
  before_BT = np.asarray(program(cfg)(params, tokens_BL, start_B))
  assert before_BT.shape == (8, T) and before_BT.dtype == np.float32
  for t in range(T):
    other_BL = tokens_BL.copy()
    other_BL[:, P + t :] = 2 + (other_BL[:, P + t :] + 1) % (SMALL.vocab - 2)
    after_BT = np.asarray(program(cfg)(params, other_BL, start_B))
    np.testing.assert_array_equal(after_BT[:, : t + 1], before_BT[:, : t + 1])
    assert (after_BT[:, t + 1 :] != before_BT[:, t + 1 :]).all()


def test_a_categorical_value_stays_within_its_support():
  cfg = shape("categorical")
  leaves = leaves_of(cfg)
  for end, wanted in ((0, cfg.low), (4, cfg.high)):
    leaves["value_head/bias"] = 1e4 * (np.arange(5) == end)
    params = golden.on_device(leaves, jnp.float32)
    values_BT = program(cfg)(params, *golden.random_rows(8)[:2])
    np.testing.assert_array_equal(values_BT, wanted)
  values_BT = program(cfg)(params_of(cfg), *golden.random_rows(8)[:2])
  assert (values_BT > cfg.low).all() and (values_BT < cfg.high).all()


# --- where it starts ---------------------------------------------------------


def test_it_starts_from_the_policy_or_from_scratch():
  """An untied policy's output head stays behind: nothing predicts tokens."""
  trunk = dataclasses.replace(SMALL, tied=False)
  policy = golden.on_device(golden.random_leaves(trunk), jnp.float32)
  cfg = shape("gated", trunk)
  init = golden.quick_jit(lambda key, x: critic.init(cfg, key, x))
  copied, scratch = (init(jax.random.key(2), x) for x in (policy, None))
  assert copied["trunk"].keys() == policy.keys() - {"head"}
  for name in copied["trunk"]:
    jax.tree.map(
        np.testing.assert_array_equal, copied["trunk"][name], policy[name]
    )
  assert (scratch["trunk"]["embed"] != policy["embed"]).any()
  for name in ("value", "bias", "gate"):
    a, b = copied["value_head"][name], scratch["value_head"][name]
    np.testing.assert_array_equal(a, b)
    assert a.any() == (name != "bias"), "random, biases 0"


def test_the_policy_outlives_a_critic_that_started_from_it(tmp_path):
  """Updates donate the critic's state: its trunk must be a copy."""
  session = make_session(tmp_path)
  with jax.set_mesh(session.mesh):
    policy = random_params(session)
    before = jax.device_get(policy)
    _, where = call(optimizers.of_critic, session, 1)
    params = call(
        trained_parameters.random_critic,
        session,
        "critic",
        where.params,
        policy,
    )
    jax.tree.map(np.testing.assert_array_equal, params["trunk"], before)
    jax.tree.map(lambda x: x.delete(), params)  # as donation does
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(policy), before)


# --- the update --------------------------------------------------------------


def critic_batch(rows):
  """A batch whose values were anything; what the mask hides is NaN."""
  rng = np.random.default_rng(3)
  tokens_BL, start_B, mask_BT = golden.random_rows(rows)
  batch = golden.random_batch(golden.random_leaves(SMALL), SMALL, rows)
  hidden_BT = np.where(mask_BT, 0, np.nan)
  return batch.replace(
      values_BT=rng.normal(size=mask_BT.shape) + hidden_BT,
      returns_BT=rng.normal(size=mask_BT.shape) + hidden_BT,
  )


def floats(tree, dtype):
  """Float arrays in the dtype of the parameters."""
  return jax.tree.map(
      lambda x: x.astype(dtype) if x.dtype == np.float64 else x, tree
  )


@functools.cache
def updates(cfg, tx, clip=0.5):
  """jit: one step of the critic."""
  return golden.quick_jit(
      functools.partial(step.critic_update, cfg=cfg, tx=tx, clip=clip)
  )


def update(params, batch, cuts, cfg, tx=golden.SGD, **keywords):
  """On so many minibatches, and micro-batches of each."""
  batch = floats(batch, jax.tree.leaves(params)[0].dtype)
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(params, tx.init(params), zero, zero)
  cut = padded.split(batch, cuts[0])
  packed = padded.packed(cut, cuts[1])
  return updates(cfg, tx, **keywords)(state, cut, packed)


def numpy_loss(leaves, cfg, batch, clip):
  """Mean over the tokens, by the definition of each head."""
  params = reference_model.nested(leaves)
  head = params["value_head"]
  trunk = params["trunk"] | dict(head=np.eye(cfg.trunk.width))
  shape = dataclasses.replace(cfg.trunk, tied=False)
  losses = []
  for b, start in enumerate(batch.start_B):
    states_LD = reference_model.row_logits(
        trunk, shape, batch.tokens_BL[b, start:]
    )
    for t in np.flatnonzero(batch.mask_BT[b]):
      state = states_LD[-T - 1 + t]
      out = [
          sum(state * head["value"][:, n]) + head["bias"][n]
          for n in range(len(head["bias"]))
      ]
      old, target = batch.values_BT[b, t], batch.returns_BT[b, t]
      if cfg.head == "categorical":
        losses.append(
            reference.categorical_loss(out, target, cfg.low, cfg.high)
        )
        continue
      if cfg.head == "gated":
        gates = np.exp(state @ head["gate"])
        out = [sum(gates * out) / sum(gates)]
      losses.append(reference.value_loss(out[0], old, target, clip))
  return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "head, clip",
    [
        pytest.param("scalar", 0.0, marks=SLOW),
        ("gated", 0.5),
        ("categorical", 0.5),
    ],
)
def test_loss_and_gradient_of_every_head(head, clip, wide):
  """In float64; a scalar head with a clip is in the golden steps."""
  cfg = shape(head, dataclasses.replace(SMALL, dtype="float64"))
  batch, leaves = critic_batch(8), leaves_of(cfg)
  loss = functools.partial(numpy_loss, cfg=cfg, batch=batch, clip=clip)
  params = golden.on_device(leaves, jnp.float64)
  state, metrics = update(params, batch, [1, 2], cfg, clip=clip)
  np.testing.assert_allclose(metrics["vf_loss"], loss(leaves), rtol=1e-10)
  golden.assert_gradient(golden.moved(leaves, state), loss, leaves)
  # Targets beyond a categorical support are counted, and other heads clip none.
  targets = batch.returns_BT[batch.mask_BT]
  beyond = np.mean((targets < cfg.low) | (targets > cfg.high))
  assert 0.1 < beyond < 0.9
  wanted = {"vf_targets_clipped": beyond} if head == "categorical" else {}
  found = {k: v for k, v in metrics.items() if k.endswith("clipped")}
  assert found == pytest.approx(wanted)


@pytest.fixture(scope="module")
def whole():
  """fp32 parameters, a batch, and the SGD step on it in one piece."""
  cfg = shape("gated")
  params, batch = params_of(cfg), critic_batch(8)
  state, metrics = update(params, batch, [1, 1], cfg)
  return params, batch, jax.device_get(state.params), metrics


def test_padding_rows_and_micro_batches_change_nothing(whole):
  params, batch, _, _ = whole
  some = jax.tree.map(lambda x: x[:4], batch)
  empty = jax.tree.map(lambda x: x[4:], batch).replace(
      mask_BT=np.zeros((4, T), bool), staleness_B=np.full(4, -1, np.int32)
  )
  longer = jax.tree.map(lambda *x: np.concatenate(x), some, empty)
  state, metrics = update(params, some, [1, 1], shape("gated"))
  golden.assert_same_update(
      update(params, longer, [1, 4], shape("gated")),
      (params, some, jax.device_get(state.params), metrics),
  )


def test_a_batch_of_padding_does_nothing(whole):
  params, batch, _, _ = whole
  empty = batch.replace(mask_BT=np.zeros_like(batch.mask_BT))
  state, metrics = update(params, empty, [1, 1], shape("gated"))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert metrics["update_skipped"] == 1 and metrics["vf_loss"] == 0
  assert state.step == 1


def test_minibatches_are_updates_one_after_the_other(whole):
  params, batch, _, _ = whole
  cfg = shape("gated")
  first, second = (
      jax.tree.map(lambda x, n=n: x[n : n + 4], batch) for n in (0, 4)
  )
  state, metrics = update(params, batch, [2, 1], cfg)
  a, metrics_a = update(params, first, [1, 1], cfg)
  b, metrics_b = update(a.params, second, [1, 1], cfg)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      state.params,
      b.params,
  )
  mean = (metrics_a["vf_loss"] + metrics_b["vf_loss"]) / 2
  np.testing.assert_allclose(metrics["vf_loss"], mean, rtol=1e-5)
  assert state.step == 1


@pytest.mark.slow
def test_eight_devices_compute_what_one_does():
  """Trunk and head split over fsdp and tensor, rows over data and fsdp."""
  cfg, out = shape("gated"), []
  table, params = critic.table(cfg), reference_model.nested(leaves_of(cfg))
  batch = padded.split(floats(critic_batch(8), np.float32), 1)
  for mesh in (
      device_mesh.make_mesh(1, 1, 1, jax.devices()[:1]),
      device_mesh.make_mesh(2, 2, 2),
  ):
    with jax.set_mesh(mesh):
      where = optimizer.state_shardings(table, golden.SGD, mesh)
      placed = jax.device_put(floats(params, np.float32), where.params)
      state = optimizer.new_state(placed, golden.SGD, where)
      cut = padded.put(mesh, batch, 2)
      state, metrics = updates(cfg, golden.SGD)(state, *cut)
      out.append((jax.device_get(state.params), metrics["vf_loss"]))
  (one, loss_1), (eight, loss_8) = out
  gradient = jax.tree.map(np.subtract, params, one)
  largest = max(np.abs(x).max() for x in jax.tree.leaves(gradient))
  assert largest > 0.01
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest),
      one,
      eight,
  )
  np.testing.assert_allclose(loss_1, loss_8, rtol=1e-5)
  local = state.params["value_head"]["value"].addressable_shards[0].data.shape
  assert local == (SMALL.width // 2, 3), "the head is split as its input is"
