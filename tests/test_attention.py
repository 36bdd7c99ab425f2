"""Attention by kernels and to an int8 cache; kernels are interpreted."""

import contextlib
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.experimental import pallas as pl

from configs import base
from rl_reason.models import (
    attention,
    checksums,
    cudnn,
    packed_attention,
    pallas,
    parameters,
    sequence,
)
from rl_reason.models.kernels import KERNELS, by_layer, cached, choose, padded
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.stages import model as model_lib

K, Q, C, LAYERS = 2, 2, 128, 2
DIMS = 64, 80, 96, 112, 128  # sizes of a head
POSITIONS = (-1, 0, 1, 127, 128, 300, 511, 17)
CALLS = {"cudnn": "__cudnn$fmha", "triton": "triton", "tpu": "tpu_custom_call"}
ROUNDING = {"float32": 2e-6, "bfloat16": 1e-2}  # of the largest number


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run on a CPU, block by block; what asks for cuDNN, asks XLA."""
  for fn in "attend", "decode":
    plain = functools.partial(getattr(cudnn, fn), implementation="xla")
    monkeypatch.setattr(cudnn, fn, plain)
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


def rows(count, length, dtype, dim=C):
  """Queries, keys, values; several segments, padding on either side."""
  shape = count, length, K
  q = normal(*shape, Q, dim, dtype=dtype)
  k, v = (normal(*shape, dim, dtype=dtype, seed=s) for s in (1, 2))
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
    "kernels, dtype, dim",
    [
        ("tpu", "float32", 64),
        ("cudnn", "float32", 44),
        *(
            pytest.param(*x, marks=SLOW)
            for x in itertools.product(
                ("tpu", "triton", "cudnn"), ("bfloat16", "float32"), DIMS
            )
        ),
    ],
)
def test_packed_rows_and_their_gradients(kernels, dtype, dim, interpreted):
  """Heads of any size: the kernels' own, or padded."""
  args = rows(2, 200, dtype, dim)
  want = gradients("xla", *args)
  assert_near(gradients(kernels, *args), want, dtype)


@pytest.mark.parametrize("length", [5, pytest.param(2500, marks=SLOW)])
def test_tiles_of_queries_see_what_whole_rows_see(length, interpreted):
  """One tile, and seven of several blocks."""
  args = rows(2, length, "float32", 8)
  want = gradients("xla", *args)
  assert_near(gradients("cudnn", *args), want, "float32")


def inputs(count, dtype, slots=512, int8=False, dim=C):
  """One token a row: queries, keys, values; a cache, keys laid out as v."""
  q = normal(count, 1, K, Q, dim, dtype=dtype, seed=8)
  new = [normal(count, 1, K, dim, dtype=dtype, seed=s) for s in (6, 7)]
  shape = LAYERS, count, K, slots, dim
  k, v = (normal(*shape, dtype=dtype, seed=s) for s in (4, 5))
  if not int8:
    return q, *new, attention.Cache(k, v)
  empty = attention.empty_cache("xla", shape, "int8")
  return q, *new, attention._cache_entries(empty, k, v)


def step(kernels, q, k, v, cache, positions):
  attend = attention.decode(positions)
  last = 0 if by_layer(kernels) else jnp.int32(LAYERS - 1)
  return attend(kernels, last, q, k, v, cache)


def decoded(kernels, positions, dtype="bfloat16", slots=512, **options):
  """One step of the last layer: outputs of rows in use, and its cache."""
  *new, cache = inputs(len(positions), dtype, slots, **options)
  dim = cache.v.shape[-1]
  more = (0, 0), (0, 0), (0, 0), (0, 0), (0, cached(kernels, dim) - dim)
  k, v = (jnp.pad(x, more) for x in (cache.k, cache.v))
  cache = dataclasses.replace(cache, k=k, v=v)
  if by_layer(kernels):
    cache = jax.tree.map(lambda x: x[-1:], cache)
  cache = attention._stored(kernels, cache)
  run = jax.jit(functools.partial(step, kernels))
  out, cache = run(*new, cache, jnp.asarray(positions, jnp.int32))
  cache = jax.tree.map(lambda x: x[-1], attention._stored(kernels, cache))
  assert not np.any(cache.k[..., dim:]) and not np.any(cache.v[..., dim:])
  k, v = (x[..., :dim] for x in (cache.k, cache.v))
  cache = dataclasses.replace(cache, k=k, v=v)
  return np.asarray(out, np.float32)[np.asarray(positions) >= 0], cache


@pytest.mark.parametrize(
    "kernels, slots, int8, dim",
    [  # the TPU's pages are of one block, and of four; 100 slots are no page
        ("tpu", 384, False, 64),
        ("tpu", 100, False, 80),
        ("cudnn", 384, False, 44),
        ("cudnn", 384, True, 64),
        *(
            pytest.param(*x, marks=SLOW)
            for x in (
                *(("triton", n, False, 128) for n in (384, 512)),
                *(("triton", 512, True, n) for n in (96, 128)),
                *(("tpu", 512, False, n) for n in (*DIMS, 192)),
                *(("cudnn", 512, False, n) for n in DIMS),
                ("cudnn", 100, True, 80),
            )
        ),
    ],
)
def test_decoding_rows_of_any_length(kernels, slots, int8, dim, interpreted):
  positions = [min(x, slots - 1) for x in POSITIONS]
  want, cache = decoded("xla", positions, slots=slots, int8=int8, dim=dim)
  got, same = decoded(kernels, positions, slots=slots, int8=int8, dim=dim)
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
  k_scale, v_scale = (x[..., None] for x in (cached.k_scale, cached.v_scale))
  stands_for = cached.k * k_scale, cached.v * v_scale
  want = exact(q, stands_for, positions)
  assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()

  at = np.arange(4), slice(None), np.array(positions)
  was = [x[-1].at[at].set(new[:, 0]) for x, new in ((plain.k, k), (plain.v, v))]
  error = np.abs(got - exact(q, was, positions)).max(-1)
  moved = np.abs(q).sum(-1) * k_scale.max(2) / 2 * C**-0.5
  most = np.abs(was[1]).max((2, 3))[..., None]
  bound = np.expm1(2 * moved) * most + v_scale.max(2) / 2
  assert (error <= bound).all() and 1e-3 < error.max() < 0.05
  other = np.arange(slots) != np.array(positions)[:, None]
  for name in "k_scale", "v_scale":
    was, now = (
        np.moveaxis(x, 1, 2)
        for x in (getattr(small, name)[-1], getattr(cached, name))
    )
    np.testing.assert_array_equal(was[other], now[other])


def without_cudnn(monkeypatch):
  """JAX, which lowers for the version that is installed, finds 9.10."""
  target = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
  monkeypatch.setattr(target, lambda: 91000)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dim", [64, pytest.param(112, marks=SLOW)])
def test_kernels_are_lowered_for_their_platform(kernels, dim, monkeypatch):
  """Without the device: as far as a compiler for it would be asked."""
  platform = "cuda" if KERNELS[kernels].backend == "gpu" else "tpu"
  q, k, v, segments = jax.eval_shape(lambda: rows(2, 1024, "bfloat16", dim))
  positions = jax.ShapeDtypeStruct((2,), jnp.int32)
  caches = [
      jax.eval_shape(
          lambda x=x: attention.empty_cache(kernels, (1, 2, K, 512, dim), x)
      )
      for x in ("bfloat16", "int8")
      if x != "int8" or KERNELS[kernels].int8
  ]

  def train(q, k, v, segments):
    return attention.packed(segments)(kernels, 0, q, k, v, None)[0].sum()

  def one(q, k, v, cache, positions):
    return step(kernels, *(x[:, :1] for x in (q, k, v)), cache, positions)

  # XLA reads the int8 cache of cuDNN.
  decodes = [KERNELS[kernels].paged or x.k_scale is None for x in caches]
  calls = [(jax.grad(train, (0, 1, 2)), (q, k, v, segments), True)]
  for cache, called in zip(caches, decodes, strict=True):
    calls.append((one, (q, k, v, cache, positions), called))
  mesh = contextlib.nullcontext()
  without_cudnn(monkeypatch)
  if kernels == "triton" and jax.__version_info__ >= (0, 11):
    # Triton's lowering asks for the model of the GPU.
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    mesh = jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    )
  with mesh:
    for fn, args, called in calls:
      traced = jax.jit(fn).trace(*args)
      text = traced.lower(lowering_platforms=(platform,)).as_text()
      assert (CALLS[kernels] in text) == called


def test_a_cache_has_the_heads_that_kernels_read():
  """Padded to the lanes of a TPU; cuDNN's slots come before its heads."""
  assert [padded("tpu", x) for x in (8, 64, 112, 128, 129)] == [128] * 4 + [256]
  assert [cached(x, 60) for x in ("xla", "cudnn", "tpu")] == [60, 64, 128]
  for kernels, shape in (
      ("xla", (3, 80, 5)),
      ("tpu", (3, 5, 128)),
      ("cudnn", (5, 3, 80)),
  ):
    cache = attention.empty_cache(kernels, (1, 1, 3, 5, 80), "bfloat16")
    assert cache.k.shape[2:] == shape
    first = attention.first_slot(kernels, cache)
    kept = tuple(1 if x == 5 else x for x in shape)
    assert first.k.shape[2:] == kept


@pytest.mark.parametrize(
    "kind, goes_on",
    [
        pytest.param("same", False, marks=SLOW),
        pytest.param("same", True, marks=SLOW),
        pytest.param("int8", True, marks=SLOW),
    ],
)
def test_a_sampler_with_weights_and_caches_of_layers(
    kind, goes_on, interpreted
):
  """Draws, in float32, the tokens of stacked arrays; also where it goes on."""
  cfgs = [dataclasses.replace(tiny.CFG, attention=x) for x in ("xla", "cudnn")]
  found = []
  for cfg in cfgs:
    weights = sampler_weights.make(tiny.params(), cfg, kind)
    table = sampler_weights.table(cfg, kind)
    shapes = jax.tree.map(lambda x: x.shape, weights)
    assert shapes == jax.tree.map(
        lambda x: x.shape, table, is_leaf=parameters.is_param
    )
    args = weights, tiny.prompts(3), jax.random.key(1)
    options = tiny.SAMPLER | dict(cfg=cfg, eos=-1, max_tokens=150)
    options |= dict(group_size=2, cache=kind)
    limits_B = np.array([150, 9, 3, 20, 130, 1])
    if goes_on:
      short = np.full(6, 40)
      *_, part = sampler.stream(
          *args, limits_B=short, keep_cache=True, **options
      )
      options["resumed"] = part._replace(ended_B=np.zeros(6, bool))
    else:
      options["slots"] = 2
    rows = sampler.sample(*args, limits_B=limits_B, **options)
    sums = checksums.by_layer(weights)
    found.append((rows, {name: x.shape for name, x in sums.items()}))
  for got, want in zip(
      jax.tree.leaves(found[1][0]), jax.tree.leaves(found[0][0]), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=1e-5)
  assert found[0][1] == found[1][1]


def test_choice_of_kernels():
  assert choose("auto", "tpu", "bfloat16", 128)[0] == "tpu"
  name, reason = choose("auto", "tpu", "bfloat16", 64)
  assert name == "tpu" and "64 are padded to 128" in reason
  # Nothing by default depends on Pallas on Triton.
  assert choose("auto", "gpu", "bfloat16", 64)[0] == "cudnn"
  assert choose("triton", "gpu", "bfloat16", 64)[0] == "triton"
  for wanted, backend, dtype, dim, word in (
      ("xla", "tpu", "bfloat16", 128, "model.attention"),
      ("auto", "cpu", "bfloat16", 128, "cpu"),
      ("triton", "tpu", "bfloat16", 128, "no triton kernels for tpu"),
      ("auto", "gpu", "float32", 128, "float32"),
      ("auto", "tpu", "bfloat16", 264, "at most 256, not 264"),
  ):
    kernels, reason = choose(wanted, backend, dtype, dim)
    assert kernels == "xla" and word in reason


@pytest.mark.slow
def test_kernels_of_gpus_are_tried_before_they_are_chosen(monkeypatch):
  """Where they fail, or differ from XLA, a run has XLA and the reason."""
  c = base.get_config()
  c.model.dtype = "bfloat16"
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  name, reason = model_lib.attention_backend(c)
  assert name == "xla" and reason.startswith("cudnn: cuDNN")

  def plain(q_BLKQC, k_BLKC, v_BLKC, _):
    return q_BLKQC + (k_BLKC * v_BLKC)[:, :, :, None]

  right = cudnn.decode

  def scaled(factor):
    def decode(*args, implementation="cudnn"):
      out = right(*args, implementation="xla")
      return out if implementation == "xla" else factor * out

    return decode

  monkeypatch.setattr(packed_attention, "attend", plain)
  monkeypatch.setattr(cudnn, "attend", plain)
  monkeypatch.setattr(cudnn, "decode", scaled(1.0))
  assert not cudnn.failure.__wrapped__(8)
  assert not cudnn.failure.__wrapped__(12)  # padded to 16 in the cache
  monkeypatch.setattr(cudnn, "decode", scaled(1.05))
  assert "differs from XLA by 0.0" in cudnn.failure.__wrapped__(8)
  monkeypatch.setattr(cudnn, "decode", scaled(1.0))
  monkeypatch.setattr(cudnn, "attend", lambda *args: 1.05 * plain(*args))
  assert "differs from XLA by 0.0" in cudnn.failure.__wrapped__(8)
  c.model.attention = "triton"
  assert model_lib.attention_backend(c)[0] == "triton"

  def gone(name):
    raise ModuleNotFoundError(f"No module named {name!r}")

  monkeypatch.setattr(pallas, "_import", gone)
  assert model_lib.attention_backend(c) == (
      "xla",
      "triton: No module named 'gpu.attention'",
  )
