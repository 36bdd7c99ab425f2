"""JAX's kernels say what `softmax` says; they are interpreted, not compiled."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from jax.experimental import pallas as pl

from rl_reason import attention, model, rollout, sharding

K, Q, C = 2, 2, 128
POSITIONS = (-1, 0, 1, 127, 128, 300, 511, 17)
CALLS = {"cuda": "triton", "tpu": "tpu_custom_call"}
ROUNDING = {"float32": 2e-6, "bfloat16": 1e-2}  # of the largest number


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run on a CPU, block by block."""
  for name, fn in (
      ("gpu.attention", "mha"),
      ("gpu.paged_attention", "paged_attention"),
      ("tpu.splash_attention", "make_splash_mha"),
      ("tpu.paged_attention", "paged_attention"),
  ):
    module = attention._import(name)
    plain = getattr(module, fn)
    if name == "tpu.paged_attention":

      def run(*args, plain=plain, **kwargs):
        with monkeypatch.context() as patch:
          call = functools.partial(pl.pallas_call, interpret=True)
          patch.setattr(pl, "pallas_call", call)
          return plain(*args, **kwargs)

    else:
      run = functools.partial(plain, interpret=True)
    monkeypatch.setattr(module, fn, run)


def normal(*shape, dtype="float32", seed=0):
  rng = np.random.default_rng([seed, *shape])
  return jnp.asarray(rng.normal(size=shape), dtype)


def rows(count, length, dtype):
  """Queries, keys, values; several segments, padding on either side."""
  shape = count, length, K
  q = normal(*shape, Q, C, dtype=dtype)
  k, v = (normal(*shape, C, dtype=dtype, seed=s) for s in (1, 2))
  parts = np.array([[1, 1, 2, 3, 0], [0, 1, 1, 1, 2]] * (count // 2))
  segments = np.repeat(parts, -(-length // 5), 1)[:, :length]
  return q, k, v, jnp.asarray(segments, jnp.int32)


def gradients(kernels, q, k, v, segments):
  """The outputs, and gradients of a random function of them."""

  def total(q, k, v):
    out, _ = attention.packed(segments)(kernels, 0, q, k, v, None)
    real = (segments > 0)[:, :, None, None, None]
    weights = normal(*out.shape, seed=3)
    return jnp.sum(jnp.where(real, out * weights, 0)), out

  fn = jax.value_and_grad(total, (0, 1, 2), has_aux=True)
  (_, out), grads = jax.jit(fn)(q, k, v)
  real = np.asarray(segments) > 0
  return [np.asarray(out, np.float32)[real]] + [
      np.asarray(x, np.float32) for x in grads
  ]


def assert_near(got, want, dtype):
  for a, b in zip(got, want, strict=True):
    assert np.abs(a - b).max() <= ROUNDING[dtype] * np.abs(b).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernels", attention.KERNELS)
def test_packed_rows_and_their_gradients(kernels, dtype, interpreted):
  args = rows(2, 200, dtype)
  want = gradients("xla", *args)
  assert_near(gradients(kernels, *args), want, dtype)


def decoded(kernels, positions, dtype="bfloat16", layers=2, slots=512):
  """One step of the last layer: outputs of rows in use, and the cache."""
  count = len(positions)
  shape = layers, count, K, slots, C
  k, v = (normal(*shape, dtype=dtype, seed=s) for s in (4, 5))
  new = [normal(count, 1, K, C, dtype=dtype, seed=s) for s in (6, 7)]
  q = normal(count, 1, K, Q, C, dtype=dtype, seed=8)
  cache = attention.Cache(k=attention._turned(kernels, k), v=v)

  @jax.jit
  def run(q, new, cache, positions):
    attend = attention.decode(positions)
    return attend(kernels, jnp.int32(layers - 1), q, *new, cache)

  out, cache = run(q, new, cache, jnp.asarray(positions, jnp.int32))
  out = np.asarray(out, np.float32)[np.asarray(positions) >= 0]
  return out, attention._turned(kernels, cache.k), cache.v


@pytest.mark.parametrize("kernels", attention.KERNELS)
@pytest.mark.parametrize("slots", [384, 512])  # pages of one block, and of four
def test_decoding_rows_of_any_length(kernels, slots, interpreted):
  positions = [min(x, slots - 1) for x in POSITIONS]
  want, *cache = decoded("xla", positions, slots=slots)
  got, *same = decoded(kernels, positions, slots=slots)
  assert_near([got], [want], "bfloat16")
  for a, b in zip(cache, same, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", attention.KERNELS)
def test_kernels_on_eight_devices(kernels, interpreted):
  """Rows over (data, fsdp), heads over tensor; decoding inside its shard."""
  args = rows(4, 128, "bfloat16")
  want = gradients(kernels, *args)
  alone, *_ = decoded(kernels, POSITIONS)
  with jax.set_mesh(sharding.make_mesh(2, 2, 2)):
    assert_near(gradients(kernels, *args), want, "bfloat16")

    def local(q, k, v, cache, positions):
      attend = attention.decode(positions)
      return attend(kernels, jnp.int32(1), q, k, v, cache)[0]

    count = len(POSITIONS)
    k, v = (
        normal(2, count, K, 512, C, dtype="bfloat16", seed=s) for s in (4, 5)
    )
    new = [normal(count, 1, K, C, dtype="bfloat16", seed=s) for s in (6, 7)]
    q = normal(count, 1, K, Q, C, dtype="bfloat16", seed=8)
    batch, cache = sharding.spec("batch"), sharding.spec(None, "batch")
    run = sharding.by_batch_shard(
        local, (batch, batch, batch, cache, batch), batch
    )
    where = sharding.spec(None, "batch", "kv_heads")
    pinned = jax.tree.map(
        lambda x: jax.device_put(x, where), attention.Cache(k, v)
    )
    got = jax.jit(run)(q, *new, pinned, jnp.asarray(POSITIONS, jnp.int32))
  got = np.asarray(got, np.float32)[np.asarray(POSITIONS) >= 0]
  assert_near([got], [alone], "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("kernels", attention.KERNELS)
def test_sampler_and_trainer_agree_with_kernels(kernels, interpreted):
  """Prefill, copies of prefixes and decoding keep the cache in one layout."""
  shape = dict(head_dim=C, dtype="bfloat16", layers=1)
  cfg = dataclasses.replace(tiny.CFG, attention=kernels, **shape)
  params = model.init(cfg, jax.random.key(0))
  rows = rollout.sample(
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


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_kernels_are_lowered_for_their_platform(platform):
  """Without the device: as far as a compiler for it would be asked."""
  kernels = "gpu" if platform == "cuda" else "tpu"
  q, k, v, segments = jax.eval_shape(lambda: rows(2, 1024, "bfloat16"))
  positions = jax.ShapeDtypeStruct((2,), jnp.int32)
  cache = jax.eval_shape(
      lambda: attention.empty(kernels, 2, 2, K, 512, C, "bfloat16")
  )

  def train(q, k, v, segments):
    return attention.packed(segments)(kernels, 0, q, k, v, None)[0].sum()

  def step(q, k, v, cache, positions):
    one = (x[:, :1] for x in (q, k, v))
    return attention.decode(positions)(kernels, jnp.int32(0), *one, cache)[0]

  fns = {
      jax.grad(train, (0, 1, 2)): (q, k, v, segments),
      step: (q, k, v, cache, positions),
  }
  for fn, args in fns.items():
    traced = jax.jit(fn).trace(*args)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert CALLS[platform] in text


def test_choice_of_kernels():
  choose = attention.choose
  assert choose("auto", "tpu", "bfloat16", 128)[0] == "tpu"
  assert choose("auto", "gpu", "bfloat16", 64)[0] == "gpu"
  for wanted, backend, dtype, dim, word in (
      ("xla", "tpu", "bfloat16", 128, "model.attention"),
      ("auto", "cpu", "bfloat16", 128, "cpu"),
      ("auto", "gpu", "float32", 128, "float32"),
      ("auto", "tpu", "bfloat16", 64, "64"),
  ):
    kernels, reason = choose(wanted, backend, dtype, dim)
    assert kernels == "xla" and word in reason
