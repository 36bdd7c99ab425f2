"""The decoder: cache, chunks, remat and bfloat16 change nothing but rounding.

Its numbers are compared with plain NumPy in test_golden_step.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rl_reason import attention, model

P, T = tiny.P, tiny.T


def rows(count=8, seed=0):
  batch = jax.tree.map(lambda x: x[0, 0], tiny.batch(1, 1, count, seed))
  return batch.tokens_BL, batch.start_B


def test_decoding_with_a_cache_is_the_forward_pass():
  tokens, start = rows()
  params, cfg = tiny.params(), tiny.CFG
  whole = model.hidden(params, cfg, tokens, start)
  cache = model.empty_cache(cfg, len(tokens), P + T)
  positions, segments = model.padded(tokens[:, :P], start)
  attend = attention.prefill(segments)
  part, cache = model.forward(
      params, cfg, tokens[:, :P], positions, attend, cache
  )
  parts = [part]
  for t in range(P, P + 5):
    one, cache = model.forward(
        params,
        cfg,
        tokens[:, t : t + 1],
        t - start[:, None],
        attention.decode(start, t),
        cache,
    )
    parts.append(one)
  got = np.concatenate(parts, 1)
  real = np.arange(P + 5) >= start[:, None]
  np.testing.assert_allclose(got[real], whole[:, : P + 5][real], atol=2e-5)


def test_left_padding_is_invisible():
  tokens, start = rows()
  a, _ = model.response_logps(tiny.params(), tiny.CFG, tokens, start, T)
  wide = np.pad(tokens, ((0, 0), (9, 0)), constant_values=5)
  b, _ = model.response_logps(tiny.params(), tiny.CFG, wide, start + 9, T)
  np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [dict(logprob_chunk=1), dict(logprob_chunk=7), dict(remat="full")],
)
def test_chunks_and_remat_change_no_value_and_no_gradient(change):
  tokens, start = rows()

  def total(params, cfg):
    logps, entropy = model.response_logps(params, cfg, tokens, start, T, 0.7)
    return jnp.sum(logps) + 0.1 * jnp.sum(entropy)

  other = dataclasses.replace(tiny.CFG, **change)
  grad = jax.value_and_grad(total)
  (a, da), (b, db) = grad(tiny.params(), tiny.CFG), grad(tiny.params(), other)
  np.testing.assert_allclose(a, b, rtol=1e-5)
  for x, y in zip(jax.tree.leaves(da), jax.tree.leaves(db), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(x).max() + 1e-6)


def test_log_probs_and_entropy_are_those_of_the_softmax():
  tokens, start = rows()
  heat = 0.7
  hidden = model.hidden(tiny.params(), tiny.CFG, tokens, start)
  logits = model.logits(tiny.params(), tiny.CFG, hidden[:, P - 1 : -1])
  want = jax.nn.log_softmax(logits / heat)
  logps, entropy = model.response_logps(
      tiny.params(), tiny.CFG, tokens, start, T, heat
  )
  chosen = np.take_along_axis(np.array(want), tokens[:, P:, None], -1)[..., 0]
  np.testing.assert_allclose(logps, chosen, atol=1e-5)
  np.testing.assert_allclose(
      entropy, -(jnp.exp(want) * want).sum(-1), atol=1e-5
  )


def test_bfloat16_stays_near_and_keeps_fp32_gradients():
  tokens, start = rows()
  half = dataclasses.replace(tiny.CFG, dtype="bfloat16")

  def total(params, cfg):
    return model.response_logps(params, cfg, tokens, start, T)[0].mean()

  a, b = (jax.value_and_grad(total)(tiny.params(), c) for c in (tiny.CFG, half))
  assert abs(a[0] - b[0]) < 0.02
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(b[1]))
  flat = [jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)])
          for g in (a[1], b[1])]
  assert jnp.linalg.norm(flat[0] - flat[1]) < 0.05 * jnp.linalg.norm(flat[0])


def test_the_logits_of_a_batch_never_exist():
  """Vocabulary 20,000: temp memory of the gradient is far below B T V."""
  cfg = dataclasses.replace(tiny.CFG, vocab=20_000, logprob_chunk=4)
  params = jax.eval_shape(lambda: model.init(cfg, jax.random.key(0)))
  tokens, start = rows(16)

  def total(params):
    return model.response_logps(params, cfg, tokens, start, T)[0].sum()

  compiled = jax.jit(jax.grad(total)).lower(params).compile()
  logits = 4 * 16 * T * cfg.vocab
  assert compiled.memory_analysis().temp_size_in_bytes < 0.75 * logits


def test_depth_does_not_lengthen_the_program():
  def size(layers):
    cfg = dataclasses.replace(tiny.CFG, layers=layers)
    params = jax.eval_shape(lambda: model.init(cfg, jax.random.key(0)))
    tokens, start = rows()
    fn = jax.jit(lambda p: model.hidden(p, cfg, tokens, start))
    return len(fn.lower(params).as_text())

  assert size(32) < 1.02 * size(2)
