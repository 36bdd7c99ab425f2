"""Rollouts with bfloat16 and int8 sampler weights, on one and eight devices."""

import functools

import jax
import numpy as np
import padded
import pytest
import tiny
from test_linear import weights

from rl_reason.devices import device_mesh, sharding
from rl_reason.models import decoder, parameters
from rl_reason.rollout import sampler, sampler_weights

pytestmark = pytest.mark.slow


def sample(params, prompts):
  """On the mesh of the context, if there is one."""
  return sampler.sample(
      params,
      prompts,
      jax.random.key(0),
      group_size=4,
      max_tokens=tiny.T,
      **tiny.SAMPLER,
  )


@pytest.fixture(scope="module")
def rows():
  return sample(weights("int8"), tiny.prompts(8))


def test_int8_samples_from_a_policy_that_is_near_and_another(rows):
  logps, _ = padded.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, tiny.T
  )
  gap = np.abs((logps - rows.logps_BT)[rows.mask_BT])
  assert 1e-3 < gap.max() < 0.1
  # The log-probs are those of the weights that sampled.
  small, _ = padded.response_logps(
      weights("int8"), tiny.CFG, rows.tokens_BL, rows.start_B, tiny.T
  )
  np.testing.assert_allclose(
      small[rows.mask_BT], rows.logps_BT[rows.mask_BT], atol=2e-5
  )


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_eight_devices_sample_with_the_same_weights(kind, rows):
  """From parameters sharded over fsdp; the sampler's are replicated there."""
  mesh = device_mesh.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    where = parameters.shardings(decoder.table(tiny.CFG), mesh)
    params = jax.device_put(tiny.params(), where)
    out = parameters.shardings(sampler_weights.table(tiny.CFG, kind), mesh)
    make = functools.partial(sampler_weights.make, cfg=tiny.CFG, weights=kind)
    made = jax.jit(make, out_shardings=out)(params)
    for a, b in zip(
        jax.tree.leaves(made), jax.tree.leaves(weights(kind)), strict=True
    ):
      np.testing.assert_array_equal(a, b)
    whole = made["layers"]["up"]
    for x in jax.tree.leaves(whole):  # over tensor alone
      assert x.addressable_shards[0].data.nbytes == x.nbytes / 2
    assert params["layers"]["up"].addressable_shards[0].data.nbytes == (
        params["layers"]["up"].nbytes / 4
    )
    if kind == "int8":
      prompts = sharding.put(mesh, tiny.prompts(8), "batch")
      eight = sharding.fetch(sample(made, prompts))
  if kind == "int8":
    np.testing.assert_array_equal(eight.tokens_BL, rows.tokens_BL)
    np.testing.assert_allclose(eight.logps_BT, rows.logps_BT, atol=1e-5)
