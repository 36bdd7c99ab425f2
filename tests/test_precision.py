"""One policy: what samples is what learns, in bfloat16 and with LoRA."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import precision
from rl_reason.models import attention, decoder, linear, packed_attention

SMALL = dataclasses.replace(precision.CFG, layers=2, vocab=64, logprob_chunk=64)
HALF = dataclasses.replace(SMALL, dtype="bfloat16")
FEW = dict(count=4, longest=48)


@pytest.mark.slow
def test_bfloat16_samples_from_the_policy_that_learns():
  """Where either rounds attention once more, the mean gap is about .03."""
  found = precision.gaps(precision.sharp(HALF, 0), HALF, "same", "same", **FEW)
  assert len(found) > 500
  assert found.mean() < 1e-3 and found.max() <= 0.01


@pytest.mark.slow
def test_float32_samples_from_the_policy_that_learns():
  params = precision.sharp(SMALL, 0)
  assert precision.gaps(params, SMALL, "same", "same", **FEW).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, weights, cache, mean, largest",
    [
        ("float32", "same", "same", 1e-5, 1e-4),
        ("float32", "bfloat16", "same", 0.05, 1.0),
        ("float32", "int8", "same", 0.2, 3.0),
        ("float32", "same", "int8", 0.05, 1.0),
        ("bfloat16", "same", "same", 1e-3, 0.01),
        ("bfloat16", "int8", "same", 0.2, 3.0),
        ("bfloat16", "same", "int8", 0.1, 2.0),
    ],
)
def test_the_table_of_precisions(dtype, weights, cache, mean, largest):
  row = precision.measure(dtype, weights, cache, 7, precision.SHORT)
  assert row["tokens"] > 15_000
  assert row["mean"] <= mean and row["largest"] <= largest


@pytest.mark.parametrize("kind", ["same", "int8"])
def test_the_sampler_has_the_whole_effect_of_an_adapter(kind):
  """A sum rounded to bfloat16 would lose most of it."""
  assert precision.adapters(1e-3, kind, 0)["error"] < 0.01
  merged = precision.adapters(1e-3, "merged", 0)
  assert merged["error"] > 0.5 and merged["unchanged"] > 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_not_rounded(tied):
  """Products of bfloat16 numbers, added up in float32, and left there."""
  cfg = dataclasses.replace(HALF, tied=tied)
  params = precision.sharp(cfg, 0)
  rng = np.random.default_rng(0)
  states = jnp.asarray(8 * rng.normal(size=(5, cfg.width)), jnp.bfloat16)
  head = params["embed"].T if tied else params["head"]
  low = np.asarray(head.astype(jnp.bfloat16), np.float64)
  want = np.asarray(states, np.float64) @ low
  found = decoder.logits(params, cfg, states)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, want, atol=1e-4)
  same = dataclasses.replace(cfg, logits_dtype="same")
  rounded = decoder.logits(params, same, states)
  np.testing.assert_array_equal(
      rounded, found.astype(jnp.bfloat16).astype(jnp.float32)
  )
  assert np.abs(rounded - found).max() > 0.01


def test_rounding_is_not_left_out():
  """XLA may drop a cast to bfloat16 and back; 257/256 is no bfloat16."""
  found = jax.jit(lambda x: linear.rounded(x, "bfloat16"))(257 / 256)
  assert found == 1.0


def test_terms_of_two_shifts_are_the_same_bits():
  rng = np.random.default_rng(0)
  scores = jnp.asarray(rng.normal(0, 8, 4096), jnp.float32)
  log2 = packed_attention.LOG2
  high = packed_attention.softmax_shift(scores.max())
  assert scores.max() <= high < scores.max() + log2
  terms, lower = (
      packed_attention.softmax_terms(scores, high - n * log2, "bfloat16")
      for n in (0, 5)
  )
  assert np.mean(np.asarray(terms * 32 == lower)) > 0.999
  masked = jnp.full(3, packed_attention.MASK_VALUE)
  shift = packed_attention.softmax_shift(masked.max())
  assert not packed_attention.softmax_terms(masked, shift, "bfloat16").any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_blocks_of_a_cache_give_the_attention_of_all_at_once(
    dtype, monkeypatch
):
  """In bfloat16 up to the rounding of a few sums, not of each term."""
  rng = np.random.default_rng(0)
  rows, heads, dim, slots = 4, 2, 16, 512
  k, v = (
      jnp.asarray(rng.normal(size=(1, rows, heads, slots, dim)), dtype)
      for _ in "kv"
  )
  q, new = (
      jnp.asarray(3 * rng.normal(size=(rows, 1, heads, *n, dim)), dtype)
      for n in ((2,), ())
  )
  cache = attention.Cache(k.swapaxes(-1, -2), v)
  position_B = jnp.array([511, 300, 40, -1])

  def found(block):
    monkeypatch.setattr(attention, "BLOCK", block)
    out, _ = attention.decode(position_B)("xla", 0, q, new, new, cache)
    return np.asarray(out, np.float32)

  blocks, once = found(128), found(512)
  assert np.isfinite(blocks).all() and np.isfinite(once).all()
  if dtype == "float32":
    np.testing.assert_allclose(blocks[:3], once[:3], atol=1e-5)
  else:
    assert np.mean(blocks[:3] != once[:3]) < 0.02
