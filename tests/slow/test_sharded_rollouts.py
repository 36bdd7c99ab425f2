"""Rollouts on eight devices that start from others, or in unequal groups."""

import jax
import numpy as np
import pytest
import test_sharding
import tiny

from rl_reason.devices import sharding
from rl_reason.rollout import sampler

pytestmark = pytest.mark.slow
meshes = test_sharding.meshes  # the fixture


def test_rollouts_continue_on_eight_devices(meshes):
  """Those of one device: each shard prefills its own."""
  static = dict(group_size=4, max_tokens=tiny.T, slots=32, **tiny.SAMPLER)
  args = tiny.params(), tiny.prompts(16), jax.random.key(0)
  with jax.set_mesh(meshes[0]):
    parts = sampler.stream(*args, **static)
    part = sharding.fetch(next(parts))
    # Fetched, so that nothing is in flight when eight devices start: threads
    # of a CPU that wait for each other could run out.
    *_, last = map(sharding.fetch, parts)
  rollouts, ended_B, *_ = part
  assert ((rollouts.lengths_B > 0) & ~ended_B).any() and ended_B.any()
  mesh = meshes[1]
  with jax.set_mesh(mesh):
    got = sampler.sample(
        sharding.put(mesh, args[0]),
        sharding.put(mesh, args[1], "batch"),
        args[2],
        resumed=sharding.put(mesh, part, "batch"),
        **static,
    )
    got = sharding.fetch(got)
  np.testing.assert_array_equal(got.tokens_BL, last.rollouts.tokens_BL)


def test_groups_of_unequal_size_on_eight_devices(meshes):
  sizes = np.array([2, 6] * 8)
  out = []
  for mesh in meshes:
    with jax.set_mesh(mesh):
      rows = sampler.sample(
          sharding.put(mesh, tiny.params()),
          sharding.put(mesh, tiny.prompts(16), "batch"),
          jax.random.key(0),
          1.0,
          sharding.put(mesh, sizes),
          group_size=4,
          max_tokens=tiny.T,
          **tiny.SAMPLER,
      )
      out.append(sharding.fetch(rows))
  np.testing.assert_array_equal(out[0].ids_B, np.repeat(np.arange(16), sizes))
  np.testing.assert_array_equal(out[0].tokens_BL, out[1].tokens_BL)
