"""Mixture of experts on a mesh: eight devices compute what one does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from test_sequence_update import make_mesh

from rl_reason.devices import sharding
from rl_reason.features.routing_replay import recorded_routes
from rl_reason.models import decoder, experts, parameters
from rl_reason.rollout import sampler
from rl_reason.training import packing, step

pytestmark = pytest.mark.slow
CFG = dataclasses.replace(tiny.CFG, experts=8, experts_per_token=3, mlp=32)
MESHES = [
    dict(expert=8),
    dict(data=2, expert=4),
    dict(fsdp=2, expert=2, tensor=2),
    dict(expert=2, sequence=2, tensor=2),
    dict(fsdp=2, tensor=4),
]


@functools.cache
def rows(replay):
  """Packed rows; with replay their tokens have any three experts."""
  packed = padded.packed(tiny.batch(1, 16), 2)
  if not replay:
    return packed
  shape = *packed.tokens_RL.shape, CFG.layers
  rng = np.random.default_rng(0)
  chosen = rng.random((*shape, CFG.experts)).argsort(-1)[..., :3]
  routes = chosen.reshape(*shape[:-1], -1).astype(np.int8)
  return packed.replace(record=routes)


def gradients(sizes, replay, remat="dots"):
  """Gradients of log-probs, entropy and balance; metrics; shardings."""
  cfg, mesh = dataclasses.replace(CFG, remat=remat), make_mesh(sizes)
  with jax.set_mesh(mesh):
    where = parameters.shardings(decoder.table(cfg), mesh)
    params = jax.device_put(decoder.init(cfg, jax.random.key(0)), where)
    packed = sharding.put_packed(mesh, rows(replay))

    def loss(params, micro, mean_BT):
      logps, entropy, routing = decoder.packed_logps(params, cfg, micro)
      aux, found = experts.loss(cfg, routing, micro, mean_BT, 0.1)
      total = jnp.sum(mean_BT * (logps + 0.1 * entropy))
      return total + aux, found | dict(total=total)

    def all_rows(params, packed_M):
      packed = jax.tree.map(lambda x: x[0], packed_M)
      mean_BT = jnp.full(packed.source_BT.shape, 1 / packed.source_BT.size)
      return step.accumulate(loss, params, packed, mean_BT)

    return sharding.fetch(jax.jit(all_rows)(params, packed)), params


@functools.cache
def one_device(replay):
  return gradients({}, replay)[0]


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_gradients_are_those_of_one_device(sizes, replay):
  (want, metrics), ((got, found), params) = (
      one_device(replay),
      gradients(sizes, replay),
  )
  largest = max(np.abs(x).max() for x in jax.tree.leaves(want))
  for x, y in zip(*map(jax.tree.leaves, (want, got)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * largest)
  assert np.abs(want["layers"]["router"]).max() > 1e-3 * largest
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), metrics, found
  )
  assert replay == ("router_agreement" in metrics)
  # Each device has its part of the experts, and of nothing else.
  parts = sizes.get("expert", 1) * sizes.get("tensor", 1)
  widths = sizes.get("fsdp", 1) * sizes.get("sequence", 1)
  down = params["layers"]["down"]
  local = down.addressable_shards[0].data
  assert local.size * parts * widths == down.size


def test_groups_of_layers_are_the_same():
  """model.remat = "sqrt" scans groups of layers."""
  want, got = one_device(True), gradients({}, True, "sqrt")[0]
  for x, y in zip(*map(jax.tree.leaves, (want, got)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)


def test_the_sampler_gathers_experts():
  """Tokens and recorded routes are those of one device."""
  out = []
  for sizes in ({}, dict(expert=4, tensor=2)):
    mesh = make_mesh(sizes)
    with jax.set_mesh(mesh):
      where = parameters.shardings(decoder.table(CFG), mesh)
      params = jax.device_put(decoder.init(CFG, jax.random.key(0)), where)
      engine = sampler.RolloutEngine(
          CFG,
          mesh,
          eos=tiny.TOK.eos_token_id,
          pad=tiny.TOK.pad_token_id,
          max_tokens=tiny.T,
          display=Silent(),
      )
      weights = engine.weights(params)
      assert weights["layers"]["gate"].addressable_shards[0].data.shape[1] == 8
      found = engine.sample(
          weights,
          tiny.prompts(16),
          jax.random.key(0),
          np.float32(1),
          group_size=4,
          record=recorded_routes.record,
      )
      out.append(sharding.fetch(found))
  np.testing.assert_array_equal(out[0].tokens_BL, out[1].tokens_BL)
  assert (out[0].record == out[1].record).mean() > 0.999
  plan = packing.plan(out[0], packed_rows=4, minibatches=1)
  assert plan.packed_M.record.shape[-1] == CFG.layers * 3


class Silent:
  """A screen that shows nothing."""

  def __getattr__(self, name):
    return lambda *args, **kwargs: None
