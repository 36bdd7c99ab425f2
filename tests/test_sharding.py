"""Eight devices compute what one does, and share the memory."""

import functools

import jax
import numpy as np
import padded
import pytest
import tiny

from rl_reason.algorithms import loss_terms, reductions, surrogates
from rl_reason.algorithms.objective import Objective
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import decoder
from rl_reason.rollout import sampler
from rl_reason.training import optimizer, step

LR = 1e-3


def _update(mesh, *, name, steps, lr):
  """Parameters before and after some RL steps on a mesh, and the state."""
  tx = tiny.optimizer(name=name, lr=lr)
  update = jax.jit(
      functools.partial(
          step.rl_update,
          cfg=tiny.CFG,
          tx=tx,
          temperature=1.0,
          objective=Objective(
              functools.partial(
                  surrogates.ppo, clip_low=0.2, clip_high=0.28, dual_clip=10.0
              ),
              reductions.token_mean,
              loss_terms.terms(kl="k3"),
          ),
      )
  )
  table = decoder.table(tiny.CFG)
  coefs = dict(kl=np.float32(0.1), entropy=np.float32(0))
  with jax.set_mesh(mesh):
    where = optimizer.state_shardings(table, tx, mesh)
    state = optimizer.init_state(table, tx, where, jax.random.key(0))
    before = jax.device_get(state.params)
    for i in range(steps):
      cut = padded.put(mesh, tiny.batch(1, 16, seed=i), 2)
      state, metrics = update(state, *cut, coefs)
  return before, jax.device_get(state.params), metrics, state


@pytest.fixture(scope="module")
def meshes():
  one = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return one, device_mesh.make_mesh(2, 2, 2)


def _largest(tree):
  return max(np.abs(x).max() for x in jax.tree.leaves(tree))


def _difference(a, b):
  return _largest(jax.tree.map(np.subtract, a, b))


def test_gradients_on_eight_devices_are_those_of_one(meshes):
  # SGD with lr 1: the step IS the gradient.
  (p, one, m1, _), (q, eight, m8, _) = (
      _update(mesh, name="sgd", steps=1, lr=1.0) for mesh in meshes
  )
  assert _difference(p, q) == 0  # the mesh does not decide the parameters
  gradient = jax.tree.map(np.subtract, p, one)
  assert _difference(one, eight) <= 1e-5 * _largest(gradient)
  np.testing.assert_allclose(m1["loss"], m8["loss"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_optimizer_on_eight_devices_stays_within_a_quarter_of_lr(
    meshes, name
):
  (_, one, _, _), (_, eight, _, _) = (
      _update(mesh, name=name, steps=5, lr=LR) for mesh in meshes
  )
  assert _difference(one, eight) <= LR / 4


def test_state_and_cache_are_split(meshes):
  """Bytes per device: matrices and their Adam moments an 1/4 (fsdp, tensor)."""
  table, tx = decoder.table(tiny.CFG), tiny.optimizer(name="adamw")
  with jax.set_mesh(meshes[1]):
    where = optimizer.state_shardings(table, tx, meshes[1])
    state = optimizer.init_state(table, tx, where, jax.random.key(0))

  def local(x):
    return max(s.data.nbytes for s in x.addressable_shards)

  split = whole = 0
  for x in jax.tree.leaves((state.params["layers"], state.opt_state)):
    if x.ndim >= 3:
      split, whole = split + local(x), whole + x.nbytes
  assert whole > 100_000 and split == whole / 4
  assert local(state.params["embed"]) == state.params["embed"].nbytes / 2

  with jax.set_mesh(meshes[1]):
    cache = jax.jit(lambda: decoder.empty_cache(tiny.CFG, 16, 24))()
  assert local(cache.k) == cache.k.nbytes / 8


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["same", "int8"])
def test_compiled_rollout_holds_only_its_share_of_the_cache(meshes, cache):
  """The decode loop's cache is sharded, too, not only the initial one."""
  mesh, kind = meshes[1], dict(group_size=8, cache=cache)
  with jax.set_mesh(mesh):
    args = tiny.params(), *tiny.started(mesh, 16, **kind)
    for x in jax.tree.leaves((args[1].cache, args[2].cache)):
      assert x.sharding.spec == sharding.spec(None, "batch", "kv_heads")
    compiled = sampler.program(tiny.engine(**kind), "decode", None)
    memory = compiled.lower(*args).compile().memory_analysis()
  held = memory.temp_size_in_bytes + memory.argument_size_in_bytes
  assert held < sum(x.nbytes for x in jax.tree.leaves(args)) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "slots, cache, atol",
    [(0, "same", 1e-5), (32, "same", 1e-5), (32, "int8", 1e-3)],
)
def test_same_tokens_on_eight_devices(meshes, slots, cache, atol):
  """Noise belongs to (prompt, sample, position), not to a device."""
  out = [
      sharding.fetch(tiny.sampled(mesh, slots=slots, cache=cache))
      for mesh in meshes
  ]
  np.testing.assert_array_equal(out[0].tokens_BL, out[1].tokens_BL)
  np.testing.assert_allclose(out[0].logps_BT, out[1].logps_BT, atol=atol)


def test_mesh_that_does_not_fit():
  with pytest.raises(ValueError, match="does not cover 8 devices"):
    device_mesh.make_mesh(3, 1, 1)
  assert device_mesh.make_mesh(-1, 2, 2).devices.shape == (2, 2, 1, 1, 2)
