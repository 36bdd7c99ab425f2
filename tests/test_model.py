"""The decoder: cache, chunks, remat and bfloat16 change nothing but rounding.

Its numbers are compared with plain NumPy in test_golden_parts.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny

from rl_reason.models import attention, decoder

P, T = tiny.P, tiny.T


def rows(count=8, seed=0):
  batch = jax.tree.map(lambda x: x[0], tiny.batch(1, count, seed))
  return batch.tokens_BL, batch.start_B


def whole(count=8):
  """Rows whose every response token counts, packed."""
  return padded.micro(*rows(count), np.ones((count, T), bool))


@pytest.mark.parametrize(
    "block", [pytest.param(128, marks=pytest.mark.slow), 8]
)
def test_decoding_with_a_cache_is_the_forward_pass(block, monkeypatch):
  """A row that is not in use (-1) disturbs nobody; blocks change rounding."""
  monkeypatch.setattr(attention, "BLOCK", block)
  tokens, start = rows()
  params, cfg, count = tiny.params(), tiny.CFG, len(tokens)
  states = padded.hidden(params, cfg, tokens, start)
  rolled = np.array(
      [np.roll(row, -n) for row, n in zip(tokens, start, strict=True)]
  )
  at = np.broadcast_to(np.arange(P), (count, P))
  cache = decoder.empty_cache(cfg, count, attention.cache_slots(P + T))
  attend = attention.prefill((at < P - start[:, None]).astype(np.int32))
  prompt, cache = decoder.forward(params, cfg, rolled[:, :P], at, attend, cache)
  for b, n in enumerate(start):
    np.testing.assert_allclose(prompt[b, : P - n], states[b, n:P], atol=2e-5)
  for t in range(P, P + T - 1):
    position = np.where(np.arange(count) == 3, -1, t - start)
    one, cache = decoder.forward(
        params,
        cfg,
        tokens[:, t : t + 1],
        position[:, None],
        attention.decode(jnp.array(position), jnp.argsort(position)),
        cache,
    )
    used = position >= 0
    np.testing.assert_allclose(one[used, 0], states[used, t], atol=2e-5)


def test_left_padding_is_invisible():
  tokens, start = rows()
  a, _ = padded.response_logps(tiny.params(), tiny.CFG, tokens, start, T)
  wide = np.pad(tokens, ((0, 0), (9, 0)), constant_values=5)
  b, _ = padded.response_logps(tiny.params(), tiny.CFG, wide, start + 9, T)
  np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(dict(logprob_chunk=1), marks=pytest.mark.slow),
        dict(logprob_chunk=7),
        dict(remat="full"),
    ],
)
def test_chunks_and_remat_change_no_value_and_no_gradient(change):
  def total(params, cfg):
    logps, entropy = decoder.packed_logps(params, cfg, whole(), 0.7)
    return jnp.sum(logps) + 0.1 * jnp.sum(entropy)

  other = dataclasses.replace(tiny.CFG, **change)
  grad = jax.value_and_grad(total)
  (a, da), (b, db) = grad(tiny.params(), tiny.CFG), grad(tiny.params(), other)
  np.testing.assert_allclose(a, b, rtol=1e-5)
  for x, y in zip(jax.tree.leaves(da), jax.tree.leaves(db), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(x).max() + 1e-6)


@pytest.mark.parametrize(
    "change", [dict(), dict(tied=False), dict(tokens=15, vocab=20)]
)
def test_log_probs_and_their_gradients_are_those_of_the_softmax(change):
  """The backward pass is written by hand; autodiff of the whole is not."""
  cfg = dataclasses.replace(tiny.CFG, **change)
  params = decoder.init(cfg, jax.random.key(0))
  tokens, start = rows()
  tokens = np.minimum(tokens, 14)
  packed = padded.micro(tokens, start, np.ones((8, T), bool))
  weights = np.random.default_rng(0).normal(size=(2, 8, T))

  def total(score):
    def fn(params):
      scored = score(params)
      return sum(jnp.sum(w * x) for w, x in zip(weights, scored, strict=True))

    return jax.jit(jax.value_and_grad(fn))(params)

  wanted = total(lambda p: padded.response_logps(p, cfg, tokens, start, T, 0.7))
  got = total(lambda p: decoder.packed_logps(p, cfg, packed, 0.7))
  np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
  for x, y in zip(*map(jax.tree.leaves, (got[1], wanted[1])), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())


def test_bfloat16_stays_near_and_keeps_fp32_gradients():
  half = dataclasses.replace(tiny.CFG, dtype="bfloat16")

  def total(params, cfg):
    return decoder.packed_logps(params, cfg, whole())[0].mean()

  a, b = (jax.value_and_grad(total)(tiny.params(), c) for c in (tiny.CFG, half))
  assert abs(a[0] - b[0]) < 0.02
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(b[1]))
  flat = [
      jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)])
      for g in (a[1], b[1])
  ]
  assert jnp.linalg.norm(flat[0] - flat[1]) < 0.05 * jnp.linalg.norm(flat[0])


@pytest.mark.parametrize("tied", [True, False])
def test_one_chunk_of_logits_exists_at_a_time(tied):
  """Temp memory of the gradient: 1.1 of the head's gradient and one chunk."""
  vocab, chunk, places = 20_000, 64, 16 * (P + T)
  cfg = dataclasses.replace(
      tiny.CFG, vocab=vocab, logprob_chunk=chunk, tied=tied
  )
  params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  packed = padded.micro(*rows(16), np.ones((16, T), bool))
  states = jax.ShapeDtypeStruct((*packed.tokens_RL.shape, cfg.width), float)

  def total(params, states):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(decoder, "hidden", lambda *_: states)
      logps, entropy = decoder.packed_logps(params, cfg, packed)
    return jnp.sum(logps**2) + jnp.sum(entropy**2)

  head = "embed" if tied else "head"
  grad = jax.jit(jax.grad(total, argnums=(0, 1)))
  compiled = grad.lower({head: params[head]}, states).compile()
  temp = compiled.memory_analysis().temp_size_in_bytes
  assert temp <= 1.1 * 4 * vocab * (cfg.width + chunk)
  assert temp < 0.2 * 4 * vocab * places


def test_depth_does_not_lengthen_the_program():
  def size(layers):
    cfg = dataclasses.replace(tiny.CFG, layers=layers)
    params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
    fn = jax.jit(lambda p: decoder.hidden(p, cfg, whole()))
    return len(fn.lower(params).as_text())

  assert size(32) < 1.02 * size(2)
