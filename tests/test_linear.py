"""Int8 weights, and the sampler weights that are made of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from tiny_session import tiny_config

from rl_reason.checks import cautions, rules
from rl_reason.models import decoder, linear, parameters
from rl_reason.models.linear import Int8
from rl_reason.rollout import sampler_weights

HALF = dataclasses.replace(tiny.CFG, dtype="bfloat16")


def noise(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dense(w):
  """An `Int8` as the array that it stands for."""
  return np.asarray(w.values) * np.asarray(w.scale)[..., None, :]


def test_int8_by_hand():
  """Steps of .02 in the first column; the second has nothing to scale."""
  w = linear.quantize(np.array([[2.54, 0], [-1.0, 0], [0.013, 0]], np.float32))
  np.testing.assert_allclose(w.scale, [0.02, 1], rtol=1e-6)
  assert w.values.dtype == jnp.int8
  np.testing.assert_array_equal(w.values, [[127, 0], [-50, 0], [1, 0]])


def test_int8_is_off_by_half_a_step_of_its_channel_at_most():
  w = noise(3, 64, 5) * np.array([1e-3, 1, 1e3, 1, 7], np.float32)
  small = linear.quantize(w)
  steps = np.abs(dense(small) - w) / np.asarray(small.scale)[:, None]
  assert 0.45 < steps.max() <= 0.5 + 1e-4
  np.testing.assert_allclose(
      np.asarray(small.scale), np.abs(w).max(1) / 127, rtol=1e-6
  )


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)]
)
def test_a_product_is_that_of_the_dense_weight(dtype, tolerance):
  x, w = jnp.asarray(noise(7, 16), dtype), noise(16, 9, seed=1)
  small = linear.quantize(w)
  for weight, whole in ((w, w), (small, dense(small))):
    out = linear.product(x, weight)
    assert out.dtype == x.dtype
    want = np.asarray(x, np.float32) @ whole
    error = np.abs(np.asarray(out, np.float32) - want).max()
    assert error <= tolerance * np.abs(want).max()


def test_the_scale_of_int8_is_not_rounded_to_the_dtype_of_the_product():
  """257/256 is no bfloat16: rounded it were 1, and the product 3."""
  w = Int8(np.ones((1, 1), np.int8), np.array([257 / 256], np.float32))
  out = linear.product(jnp.full((1, 1), 3, jnp.bfloat16), w)
  assert out[0, 0] == 3.015625  # of 3.01171875, 1/64 apart


# --- the sampler's weights ---------------------------------------------------


@functools.cache
def weights(kind, cfg=tiny.CFG):
  make = functools.partial(sampler_weights.make, cfg=cfg, weights=kind)
  return jax.jit(make)(tiny.params())


def test_the_matrices_are_those_of_the_tables():
  layers = decoder.table(tiny.CFG)["layers"]
  assert {n for n in layers if "norm" not in n} == set(decoder.MATRICES)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_table_is_that_of_the_weights(kind, tied):
  cfg = dataclasses.replace(HALF, tied=tied, qkv_bias=True, qk_norm=True)
  params = decoder.init(cfg, jax.random.key(0))
  made = sampler_weights.make(params, cfg, kind)
  table = sampler_weights.table(cfg, kind)
  shapes = jax.tree.map(lambda x: x.shape, table, is_leaf=parameters.is_param)
  got = jax.tree.map(lambda x: x.shape, made)
  assert shapes == got
  layers, small = made["layers"], kind == "int8"
  assert layers["q_norm"].dtype == made["norm"].dtype == jnp.float32
  assert layers["q_bias"].dtype == made["embed"].dtype == jnp.bfloat16
  for name in decoder.MATRICES:
    assert isinstance(layers[name], Int8) == small
  if small:  # a head of its own, also beside an embedding that is one
    whole = params["embed"].T if tied else params["head"]
    step = np.asarray(made["head"].scale)
    assert (np.abs(dense(made["head"]) - whole) <= 0.501 * step).all()
  assert ("head" in made) == (small or not tied)


@pytest.mark.slow
def test_bfloat16_weights_change_no_number_of_bfloat16_products():
  rows = jax.tree.map(lambda x: x[0], tiny.batch(1, 8))
  hidden = jax.jit(padded.hidden, static_argnums=1)
  own, half = (
      hidden(params, HALF, rows.tokens_BL, rows.start_B)
      for params in (tiny.params(), weights("bfloat16"))
  )
  np.testing.assert_array_equal(own, half)


def test_a_sampler_that_is_another_policy_is_named():
  c = tiny_config()
  weights, cache = "rollout.weights = 'int8'", "rollout.cache = 'int8'"
  for kind, kept, dtype, correction, warned in (
      ("int8", "same", "float32", "none", [weights]),
      ("int8", "int8", "float32", "truncate", []),
      ("bfloat16", "same", "float32", "none", ["weights = 'bfloat16'"]),
      ("bfloat16", "same", "bfloat16", "none", []),
      ("int8", "int8", "float32", "none", [weights, cache]),
      ("same", "same", "float32", "none", []),
  ):
    c.rollout.update(weights=kind, cache=kept)
    c.model.dtype, c.correction.name = dtype, correction
    lines = [*rules.broken(c, cautions.off_policy(c))]
    for text, field in zip(lines, warned, strict=True):
      assert field in text and "correction.name = 'truncate'" in text
