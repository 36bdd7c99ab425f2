"""Kernels on eight devices and in the sampler; interpreted."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import test_attention as t
import tiny

from rl_reason.devices import device_mesh, sharding
from rl_reason.models import attention, decoder
from rl_reason.models.kernels import KERNELS, by_layer
from rl_reason.rollout import sampler

pytestmark = pytest.mark.slow
interpreted = t.interpreted  # the fixture


@pytest.mark.parametrize("kernels", KERNELS)
def test_gradients_on_eight_devices(kernels, interpreted):
  """Rows over (data, fsdp), heads over tensor."""
  args = t.rows(4, 128, "bfloat16")
  want = t.gradients(kernels, *args)
  with jax.set_mesh(device_mesh.make_mesh(2, 2, 2)):
    t.assert_near(t.gradients(kernels, *args), want, "bfloat16")


@pytest.mark.parametrize("remat, passes", [("dots", 2), ("full", 3)])
def test_cudnn_is_lowered_in_a_model_on_eight_devices(
    remat, passes, monkeypatch
):
  """A backward pass computes tiles again; "dots" has saved what they gave."""
  t.without_cudnn(monkeypatch)
  cfg = dataclasses.replace(
      tiny.CFG, attention="cudnn", dtype="bfloat16", remat=remat
  )
  params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  rows = jax.ShapeDtypeStruct((4, 256), jnp.int32)

  def total(params, tokens, segments):
    places = jnp.broadcast_to(jnp.arange(256), tokens.shape)
    attend = attention.packed(segments)
    return decoder.forward(params, cfg, tokens, places, attend)[0].sum()

  with jax.set_mesh(device_mesh.make_mesh(2, 2, 2)):
    traced = jax.jit(jax.grad(total)).trace(params, rows, rows)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  calls = re.findall(r"__cudnn\$fmhaScaleBiasSoftmax(\w*)", text)
  tiles = 2
  assert calls.count("") == passes * tiles
  assert calls.count("Backward") == tiles


@pytest.mark.parametrize(
    "kernels, int8",
    [
        *(("triton", False), ("triton", True), ("tpu", False)),
        *(("cudnn", False), ("cudnn", True)),
    ],
)
def test_decoding_on_eight_devices(kernels, int8, interpreted):
  """Inside of its shard, scales beside what they scale."""
  alone, _ = t.decoded(kernels, t.POSITIONS, int8=int8)
  *new, cache = t.inputs(len(t.POSITIONS), "bfloat16", int8=int8)
  one = by_layer(kernels)
  if one:
    cache = jax.tree.map(lambda x: x[-1:], cache)
  cache = attention._stored(kernels, cache)
  with jax.set_mesh(device_mesh.make_mesh(2, 2, 2)):
    batch, whole = sharding.spec("batch"), sharding.spec(None, "batch")
    run = sharding.by_batch_shard(
        lambda *args: t.step(kernels, *args)[0],
        (batch, batch, batch, whole, batch),
        batch,
    )
    where = sharding.spec(*attention.cache_axes(one))
    cache = jax.tree.map(lambda x: jax.device_put(x, where), cache)
    got = jax.jit(run)(*new, cache, jnp.asarray(t.POSITIONS, jnp.int32))
  got = np.asarray(got, np.float32)[np.asarray(t.POSITIONS) >= 0]
  t.assert_near([got], [alone], "bfloat16")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dim", [64, 128])
def test_sampler_and_trainer_agree_with_kernels(kernels, dim, interpreted):
  """Prefill, copies of prefixes and decoding keep the cache in one layout."""
  shape = dict(head_dim=dim, dtype="bfloat16", layers=1)
  cfg = dataclasses.replace(tiny.CFG, attention=kernels, **shape)
  params = decoder.init(cfg, jax.random.key(0))
  rows = sampler.sample(
      params,
      tiny.prompts(2),
      jax.random.key(1),
      group_size=2,
      max_tokens=140,
      limits_B=np.array([140, 9, 3, 20]),
      slots=2,
      **tiny.SAMPLER | dict(cfg=cfg, eos=-1),
  )
  logps_BT, _ = padded.response_logps(
      params, cfg, rows.tokens_BL, rows.start_B, 140
  )
  gap = np.abs(logps_BT - rows.logps_BT)[rows.mask_BT]
  assert rows.lengths_B.max() > attention.BLOCK and gap.max() < 0.1
