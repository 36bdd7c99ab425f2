"""The decoder: cache, chunks of logits and bfloat16 change only rounding.

Its numbers are compared with plain NumPy in test_golden_parts.py, packed rows,
chunks and remat with padded rows in test_packing.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny

from rl_reason.models import attention, decoder, squared_probabilities

P, T = tiny.P, tiny.T


def rows(count=8, seed=0):
  batch = jax.tree.map(lambda x: x[0], tiny.batch(1, count, seed))
  return batch.tokens_BL, batch.start_B


def all_rows(count=8):
  """Rows whose every response token counts, packed."""
  return padded.micro(*rows(count), np.ones((count, T), bool))


def test_decoding_with_a_cache_is_the_forward_pass(monkeypatch):
  """Blocks change rounding only; a row not in use (-1) disturbs no other."""
  monkeypatch.setattr(attention, "BLOCK", 8)
  tokens, start = rows()
  params, cfg, count = tiny.params(), tiny.CFG, len(tokens)
  states = jax.jit(padded.hidden, static_argnums=1)(params, cfg, tokens, start)
  rolled = np.array(
      [np.roll(row, -n) for row, n in zip(tokens, start, strict=True)]
  )
  at = np.broadcast_to(np.arange(P), (count, P))

  @jax.jit
  def prefill(tokens, segments):
    cache = decoder.empty_cache(cfg, count, attention.cache_slots(P + T))
    attend = attention.prefill(segments)
    return decoder.forward(params, cfg, tokens, at, attend, cache)[:2]

  @jax.jit
  def decode(tokens, position, cache):
    attend = attention.decode(position, jnp.argsort(position))
    return decoder.forward(
        params, cfg, tokens, position[:, None], attend, cache
    )[:2]

  segments = (at < P - start[:, None]).astype(np.int32)
  prompt, cache = prefill(rolled[:, :P], segments)
  for b, n in enumerate(start):
    np.testing.assert_allclose(prompt[b, : P - n], states[b, n:P], atol=2e-5)
  for t in range(P, P + T - 1):
    position = np.where(np.arange(count) == 3, -1, t - start)
    one, cache = decode(tokens[:, t : t + 1], position, cache)
    used = position >= 0
    np.testing.assert_allclose(one[used, 0], states[used, t], atol=2e-5)


@pytest.mark.parametrize(
    "change",
    [dict(), dict(tied=False, logprob_chunk=7), dict(tokens=15, vocab=20)],
)
def test_log_probs_and_their_gradients_are_those_of_the_softmax(
    change, monkeypatch
):
  """The backward pass is written by hand; autodiff of all logits is not."""
  cfg = dataclasses.replace(tiny.CFG, **change)
  tokens, start = rows()
  packed = padded.micro(np.minimum(tokens, 14), start, np.ones((8, T), bool))
  rng = np.random.default_rng(0)
  states = rng.normal(size=(*packed.tokens_RL.shape, cfg.width))
  head = rng.normal(0, cfg.width**-0.5, (cfg.vocab, cfg.width))
  head = dict(embed=head) if cfg.tied else dict(head=head.T)
  weights = rng.normal(size=(2, 8, T))

  def by_softmax(params, states):
    logits = decoder.logits(params, cfg, states) / 0.7
    logps = jax.nn.log_softmax(logits).reshape(-1, cfg.vocab)
    logps_BTV = logps[packed.source_BT]
    targets_BT = packed.tokens_RL.reshape(-1)[packed.source_BT + 1]
    chosen_BT1 = jnp.take_along_axis(logps_BTV, targets_BT[..., None], -1)
    entropy_BT = -jnp.sum(jnp.exp(logps_BTV) * logps_BTV, -1)
    return chosen_BT1[..., 0], entropy_BT

  def in_chunks(params, states):
    monkeypatch.setattr(decoder, "hidden", lambda *_: (states, None))
    return decoder.packed_logps(params, cfg, packed, 0.7)[:2]

  def total(fn):
    def weighted(*args):
      return sum(
          jnp.sum(w * x) for w, x in zip(weights, fn(*args), strict=True)
      )

    args = jax.tree.map(jnp.float32, (head, states))
    return jax.jit(jax.value_and_grad(weighted, (0, 1)))(*args)

  got, wanted = total(in_chunks), total(by_softmax)
  np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
  for x, y in zip(*map(jax.tree.leaves, (got[1], wanted[1])), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())


def test_squares_come_with_the_same_log_probs_and_entropies():
  """The vocabulary is padded: 20 logits of 15 tokens, in chunks of 7."""
  cfg = dataclasses.replace(
      tiny.CFG, tied=False, tokens=15, vocab=20, logprob_chunk=7
  )
  tokens, start = rows()
  packed = padded.micro(np.minimum(tokens, 14), start, np.ones((8, T), bool))
  params = decoder.init(cfg, jax.random.key(0))
  params["head"] *= 10  # far from uniform

  @functools.partial(jax.jit, static_argnums=1)
  def both(params, compare):
    return decoder.packed_logps(params, cfg, packed, 0.7, compare)[:-1]

  logps_BT, entropy_BT, squares_BT = both(params, squared_probabilities.chunked)
  plain_BT, plain_entropy_BT = both(params, None)
  np.testing.assert_array_equal(logps_BT, plain_BT)
  np.testing.assert_allclose(entropy_BT, plain_entropy_BT, atol=1e-4)
  states, _ = decoder.hidden(params, cfg, packed)
  logits = decoder.logits(params, cfg, states)[..., :15] / 0.7
  probs = jax.nn.softmax(logits).reshape(-1, 15)[packed.source_BT]
  np.testing.assert_allclose(squares_BT, (probs**2).sum(-1), rtol=1e-5)
  assert np.ptp(squares_BT) > 0.1


@pytest.mark.slow
def test_bfloat16_stays_near_and_keeps_fp32_gradients():
  half = dataclasses.replace(tiny.CFG, dtype="bfloat16")

  packed = all_rows()

  @functools.partial(jax.jit, static_argnums=1)
  @jax.value_and_grad
  def total(params, cfg):
    return decoder.packed_logps(params, cfg, packed)[0].mean()

  a, b = (total(tiny.params(), c) for c in (tiny.CFG, half))
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
      patch.setattr(decoder, "hidden", lambda *_: (states, None))
      logps, entropy, _ = decoder.packed_logps(params, cfg, packed)
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
    fn = jax.jit(lambda p: decoder.hidden(p, cfg, all_rows())[0])
    return len(fn.lower(params).as_text())

  assert size(32) < 1.02 * size(2)
