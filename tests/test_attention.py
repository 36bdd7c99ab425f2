"""Attention by kernels and to an int8 cache; kernels are interpreted."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from rl_reason.models import attention
from rl_reason.scale import pallas, sequence

K, Q, C, LAYERS = 2, 2, 128, 2
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
    module = pallas._import(name)
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
  """The outputs, and gradients of a random function of them.

  On a mesh with an axis `sequence` from chunks of the rows.
  """

  def total(q, k, v):
    *qkv, ids = map(sequence.split, (q, k, v, segments))
    out, _ = attention.packed(ids, chunks=True)(kernels, 0, *qkv, None)
    out = sequence.join(out)
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


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kernels, dtype",
    [
        ("tpu", "float32"),
        *(pytest.param("gpu", x, marks=SLOW) for x in ("bfloat16", "float32")),
        pytest.param("tpu", "bfloat16", marks=SLOW),
    ],
)
def test_packed_rows_and_their_gradients(kernels, dtype, interpreted):
  args = rows(2, 200, dtype)
  want = gradients("xla", *args)
  assert_near(gradients(kernels, *args), want, dtype)


def inputs(count, dtype, slots=512, int8=False):
  """One token a row: queries, keys, values; a cache, keys laid out as v."""
  q = normal(count, 1, K, Q, C, dtype=dtype, seed=8)
  new = [normal(count, 1, K, C, dtype=dtype, seed=s) for s in (6, 7)]
  shape = LAYERS, count, K, slots, C
  k, v = (normal(*shape, dtype=dtype, seed=s) for s in (4, 5))
  if not int8:
    return q, *new, attention.Cache(k, v)
  empty = attention.empty_cache("gpu", shape, "int8")
  return q, *new, attention._cache_entries(empty, k, v)


def step(kernels, q, k, v, cache, positions):
  attend = attention.decode(positions)
  return attend(kernels, jnp.int32(LAYERS - 1), q, k, v, cache)


def decoded(kernels, positions, dtype="bfloat16", slots=512, int8=False):
  """One step of the last layer: outputs of rows in use, and the cache."""
  *new, cache = inputs(len(positions), dtype, slots, int8)

  def transposed(cache):
    k = attention._key_layout(kernels, cache.k)
    return dataclasses.replace(cache, k=k)

  run = jax.jit(functools.partial(step, kernels))
  out, cache = run(*new, transposed(cache), jnp.asarray(positions, jnp.int32))
  out = np.asarray(out, np.float32)[np.asarray(positions) >= 0]
  return out, transposed(cache)


@pytest.mark.parametrize(
    "kernels, slots, int8",  # the TPU's pages are of one block, and of four
    [
        ("tpu", 384, False),
        pytest.param("gpu", 512, True, marks=SLOW),
        *(pytest.param("gpu", n, False, marks=SLOW) for n in (384, 512)),
        pytest.param("tpu", 512, False, marks=SLOW),
    ],
)
def test_decoding_rows_of_any_length(kernels, slots, int8, interpreted):
  positions = [min(x, slots - 1) for x in POSITIONS]
  want, cache = decoded("xla", positions, slots=slots, int8=int8)
  got, same = decoded(kernels, positions, slots=slots, int8=int8)
  assert_near([got], [want], "bfloat16")
  for a, b in zip(jax.tree.leaves(cache), jax.tree.leaves(same), strict=True):
    np.testing.assert_array_equal(a, b)


# --- a cache of int8 ---------------------------------------------------------


def test_an_int8_cache_by_hand():
  """Steps of .02 and .04: a prefilled token, and one more beside it."""
  first = jnp.array([2.54, -1.0, 0.013, 0.03]).reshape(1, 1, 1, 4)
  second = jnp.array([-5.08, 0.0, 0.1, 2.0]).reshape(1, 1, 1, 4)
  q = jnp.zeros((1, 1, 1, 1, 4))
  cache = attention.empty_cache("xla", (1, 1, 1, 3, 4), "int8")
  prefill = attention.prefill(jnp.ones((1, 1), jnp.int32))
  _, cache = prefill("xla", 0, q, first, -first, cache)
  decode = attention.decode(jnp.array([1]))
  out, cache = decode("xla", 0, q, second, -second, cache)
  want = np.array([[127, -50, 1, 2], [-127, 0, 2, 50], [0, 0, 0, 0]])
  assert cache.k.dtype == cache.v.dtype == jnp.int8
  np.testing.assert_array_equal(cache.k[0, 0, 0].T, want)
  np.testing.assert_array_equal(cache.v[0, 0, 0], -want)
  for scale in cache.k_scale, cache.v_scale:
    assert scale.dtype == jnp.float32
    np.testing.assert_allclose(scale[0, 0, 0], [0.02, 0.04, 0], rtol=1e-6)
  # Queries of zero see both tokens alike.
  mean = -(want[0] * 0.02 + want[1] * 0.04) / 2
  np.testing.assert_allclose(out.reshape(4), mean, rtol=1e-6)


def exact(q, cache, positions):
  """Outputs [B, K, Q, C] in float64, of keys and values [B, K, S, C]."""
  out = np.zeros((*q.shape[:1], K, Q, C))
  for b, n in enumerate(np.asarray(positions) + 1):
    k, v = (np.asarray(x[b, :, :n], np.float64) for x in cache)
    scores = np.einsum("kqc,ksc->kqs", q[b], k) * C**-0.5
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    out[b] = probs / probs.sum(-1, keepdims=True) @ v
  return out


@pytest.mark.slow
@pytest.mark.parametrize("slots", [100, 384])  # one read, and several blocks
def test_attention_to_int8_is_off_by_its_rounding_at_most(slots):
  """Exact for the numbers that int8 stands for, and bounded for the originals.

  Half a step d_k of a key moves a score by e <= |q|_1 d_k / 2 / sqrt(C), so
  probabilities by factors within exp(+-2 e), and an output by no more than
  (exp(2 e) - 1) max|v| + d_v / 2.
  """
  positions = [0, 1, 50, slots - 1]
  q, k, v, plain = inputs(4, "float32", slots)
  *_, small = inputs(4, "float32", slots, int8=True)
  got, cached = decoded("xla", positions, "float32", slots, int8=True)
  got = got[:, 0]
  q = np.asarray(q[:, 0], np.float64)
  k_scale, v_scale = (
      x[-1][..., None] for x in (cached.k_scale, cached.v_scale)
  )
  stands_for = cached.k[-1] * k_scale, cached.v[-1] * v_scale
  want = exact(q, stands_for, positions)
  assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()

  at = np.arange(4), slice(None), np.array(positions)
  was = [x[-1].at[at].set(new[:, 0]) for x, new in ((plain.k, k), (plain.v, v))]
  error = np.abs(got - exact(q, was, positions)).max(-1)
  moved = np.abs(q).sum(-1) * k_scale.max(2) / 2 * C**-0.5
  most = np.abs(was[1]).max((2, 3))[..., None]
  bound = np.expm1(2 * moved) * most + v_scale.max(2) / 2
  assert (error <= bound).all() and 1e-3 < error.max() < 0.05
  np.testing.assert_array_equal(cached.k_scale[0], small.k_scale[0])


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_kernels_are_lowered_for_their_platform(platform):
  """Without the device: as far as a compiler for it would be asked."""
  kernels = "gpu" if platform == "cuda" else "tpu"
  q, k, v, segments = jax.eval_shape(lambda: rows(2, 1024, "bfloat16"))
  positions = jax.ShapeDtypeStruct((2,), jnp.int32)
  caches = [
      jax.eval_shape(
          lambda x=x: attention.empty_cache(kernels, (2, 2, K, 512, C), x)
      )
      for x in ("bfloat16", "int8")
      if x != "int8" or pallas.KERNELS[kernels].int8
  ]

  def train(q, k, v, segments):
    return attention.packed(segments)(kernels, 0, q, k, v, None)[0].sum()

  def one(q, k, v, cache, positions):
    return step(kernels, *(x[:, :1] for x in (q, k, v)), cache, positions)

  calls = [(jax.grad(train, (0, 1, 2)), (q, k, v, segments))]
  calls += [(one, (q, k, v, cache, positions)) for cache in caches]
  mesh = contextlib.nullcontext()
  if platform == "cuda" and jax.__version_info__ >= (0, 11):
    # Triton's lowering asks for the model of the GPU.
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    mesh = jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    )
  with mesh:
    for fn, args in calls:
      traced = jax.jit(fn).trace(*args)
      text = traced.lower(lowering_platforms=(platform,)).as_text()
      assert CALLS[platform] in text


def test_choice_of_kernels():
  choose = pallas.choose
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
