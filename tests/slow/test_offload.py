"""Optimizer state offload to host memory: the same bits as without."""

import functools
import math

import jax
import numpy as np
import padded
import pytest
import tiny
from tiny_session import make_session

from rl_reason.algorithms import reductions, surrogates
from rl_reason.algorithms.objective import Objective
from rl_reason.base import errors
from rl_reason.checkpointing import checkpoint
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import critic, decoder
from rl_reason.stages import supervised
from rl_reason.training import optimizer, step

pytestmark = pytest.mark.slow

CRITIC = critic.CriticConfig(tiny.CFG)
RL = functools.partial(
    step.rl_update,
    cfg=tiny.CFG,
    temperature=1.0,
    objective=Objective(
        functools.partial(surrogates.ppo, clip_low=0.2, clip_high=0.28),
        reductions.token_mean,
    ),
)
HERE = {jax.devices()[0].default_memory().kind}
COEFS = dict(kl=np.float32(0), entropy=np.float32(0))
# Two minibatches of two micro-batches: moments are in the carry of a scan.
UPDATES = {
    "RL": (
        decoder.table(tiny.CFG),
        lambda state, b, packed, tx: RL(state, b, packed, COEFS, tx=tx),
    ),
    "critic": (
        critic.table(CRITIC),
        functools.partial(step.critic_update, cfg=CRITIC, clip=0.5),
    ),
    "SFT": (
        decoder.table(tiny.CFG),
        lambda state, b, packed, tx: supervised.sft_update(
            state,
            jax.tree.map(lambda x: x[0], packed),
            b.mask_BT[0],
            cfg=tiny.CFG,
            tx=tx,
        ),
    ),
}


def adamw(*, offload):
  return tiny.optimizer(
      weight_decay=0.1, clip_norm=0.5, freeze=0.5, offload=offload
  )


def first(table, mesh, *, offload):
  """An optimizer, where its state lives, and the state of step 0."""
  tx = adamw(offload=offload)
  where = optimizer.state_shardings(table, tx, mesh)
  return tx, where, optimizer.init_state(table, tx, where, jax.random.key(0))


@functools.cache
def train(name, mesh, *, offload):
  """A state after two calls of one executable, and that executable."""
  table, update = UPDATES[name]
  with jax.set_mesh(mesh):
    tx, where, state = first(table, mesh, offload=offload)
    batches = [tiny.batch(2, 16, seed=i) for i in range(2)]
    cuts = [padded.put(mesh, b, 2) for b in batches]
    jitted = jax.jit(
        functools.partial(update, tx=tx),
        donate_argnums=0,
        out_shardings=(where, None),
    )
    compiled = jitted.lower(state, *cuts[0]).compile()
    for cut in cuts:
      old = state
      state, metrics = compiled(state, *cut)
      assert all(x.is_deleted() for x in jax.tree.leaves(old)), "donated"
      assert metrics["update_skipped"] == 0
  return state, compiled


def kinds(tree):
  return {x.sharding.memory_kind for x in jax.tree.leaves(tree)}


def assert_offloaded(state):
  """Adam's two moments are on the host, and nothing else."""
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  assert kinds(moments) == {sharding.PINNED}
  assert len(moments) == 2 * len(jax.tree.leaves(state.params))
  counts = [x for x in jax.tree.leaves(state.opt_state) if not x.ndim]
  assert kinds(state.replace(opt_state=counts)) == HERE


def assert_same_bits(a, b):
  jax.tree.map(np.testing.assert_array_equal, *jax.device_get((a, b)))


SMALL = 1, 2, 1


@functools.cache
def mesh_of(*sizes):
  devices = jax.devices()[: math.prod(sizes)]
  return device_mesh.make_mesh(*sizes, devices=devices)


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("critic", (1, 1, 1)),
        pytest.param("RL", SMALL, marks=pytest.mark.slow),
        pytest.param("RL", (2, 2, 2), marks=pytest.mark.slow),
        pytest.param("SFT", (1, 1, 1), marks=pytest.mark.slow),
    ],
)
def test_offload_changes_no_bit(name, sizes):
  mesh = mesh_of(*sizes)
  (here, _), (there, compiled) = (
      train(name, mesh, offload=x) for x in (False, True)
  )
  assert_offloaded(there)
  assert kinds(here) == HERE
  assert_same_bits(here, there)
  assert all(np.asarray(x).any() for x in jax.tree.leaves(there.opt_state))
  local = sum(
      x.addressable_shards[0].data.nbytes
      for x in jax.tree.leaves((there.params, there.opt_state))
  )
  memory = compiled.memory_analysis()
  assert memory.alias_size_in_bytes >= local


@pytest.mark.parametrize(
    "offload", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_checkpoints_restore_to_either_memory(tmp_path, offload):
  """Saved from one memory, restored to the other, by array and by shape."""
  mesh = mesh_of(*SMALL)
  saved, _ = train("RL", mesh, offload=offload)
  checkpoints = checkpoint.Checkpoints(tmp_path)
  checkpoints.save(2, saved, {})
  checkpoints.wait()
  table, _ = UPDATES["RL"]
  tx, where, state = first(table, mesh, offload=not offload)
  for like in (state, optimizer.abstract_state(table, tx, where)):
    found = checkpoints.restore(2, like)
    assert_same_bits(found, saved)
    assert jax.tree.map(lambda x: x.sharding, found) == where
  checkpoints.close()
  assert_offloaded(saved if offload else found)


@pytest.mark.parametrize("offload", [False, True])
def test_moments_are_fetched_once_gradients_are_good(offload):
  """In a branch, or XLA begins before the gradients; else not at all."""
  _, _, state = first(UPDATES["SFT"][0], mesh_of(1, 1, 1), offload=offload)
  optimize = functools.partial(step.optimize, tx=adamw(offload=offload))
  traced = jax.jit(optimize).trace(state, grads=state.params)
  for platform in ("tpu", "cuda"):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    moves = text.count("annotate_device_placement")
    leaves = len(jax.tree.leaves(state.opt_state))
    assert moves == (2 * leaves if offload else 0), "each in, and each out"
  names = [x.primitive.name for x in traced.jaxpr.eqns]
  assert "cond" in names and "device_put" not in names


def test_devices_without_host_memory(tmp_path, monkeypatch):
  make_session(tmp_path, optimizer__offload=True)
  monkeypatch.setattr(sharding, "memories", lambda: {"device"})
  with pytest.raises(errors.ConfigError) as e:
    make_session(tmp_path, optimizer__offload=True)
  assert str(e.value).startswith("optimizer.offload = True: devices of kind")
  make_session(tmp_path, optimizer__offload=False)
