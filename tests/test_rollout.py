"""Sampling: same tokens whatever is beside a row, and honest log-probs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from scipy import stats

from rl_reason.models import attention, decoder
from rl_reason.rollout import decode_loop, sampler

P, T, EOS = tiny.P, tiny.T, tiny.TOK.eos_token_id
KEY = jax.random.key(3)


def sample(prompts, group=4, params=None, **kwargs):
  kwargs = tiny.SAMPLER | dict(max_tokens=T, temperature=1.0) | kwargs
  params = tiny.params() if params is None else params
  return jax.device_get(
      sampler.sample(params, prompts, KEY, group_size=group, **kwargs)
  )


def slice_prompts(prompts, rows):
  return jax.tree.map(lambda x: x[rows], prompts)


def test_tokens_do_not_depend_on_batching():
  """>= 10k tokens: halves, other order, other G, more padding, longer T."""
  prompts = tiny.prompts(128)
  whole = sample(prompts, group=8)
  assert whole.lengths_B.sum() >= 10_000
  first = sample(slice_prompts(prompts, slice(0, 64)), group=8)
  np.testing.assert_array_equal(first.tokens_BL, whole.tokens_BL[: 64 * 8])

  order = np.random.default_rng(0).permutation(128)
  mixed = sample(slice_prompts(prompts, order), group=8)
  rows = (order[:, None] * 8 + np.arange(8)).reshape(-1)
  np.testing.assert_array_equal(mixed.tokens_BL, whole.tokens_BL[rows])

  fewer = sample(prompts, group=2)  # samples 0 and 1 of each prompt
  rows = (np.arange(128)[:, None] * 8 + np.arange(2)).reshape(-1)
  np.testing.assert_array_equal(fewer.tokens_BL, whole.tokens_BL[rows])

  wider = prompts.replace(
      tokens_NP=np.pad(prompts.tokens_NP, ((0, 0), (7, 0))),
      start_N=prompts.start_N + 7,
  )
  padded = sample(wider, group=8, max_tokens=T + 5)
  np.testing.assert_array_equal(
      padded.tokens_BL[:, P + 7 : P + 7 + T], whole.tokens_BL[:, P:]
  )


def stop(whole, lengths_B):
  """What was there of some responses when they had so many tokens."""
  lengths_B = np.minimum(lengths_B, whole.lengths_B)
  so_far_BT = np.arange(T) < lengths_B[:, None]
  ended_B = lengths_B == whole.lengths_B
  pad = tiny.TOK.pad_token_id
  tokens_BT = np.where(so_far_BT, whole.tokens_BL[:, P:], pad)
  part = whole.replace(
      tokens_BL=np.concatenate([whole.tokens_BL[:, :P], tokens_BT], 1),
      logps_BT=np.where(so_far_BT, whole.logps_BT, 0),
      lengths_B=lengths_B.astype(np.int32),
      truncated_B=whole.truncated_B | ~ended_B,
      mask_BT=so_far_BT,
  )
  return part, ended_B


@pytest.mark.parametrize("slots", [0, 128, 16])
def test_responses_that_have_begun_end_as_they_would_have(slots):
  """Not begun, in the middle, ended; in 16 slots most of them begin anew."""
  prompts = tiny.prompts(32)
  whole = sample(prompts)
  rng = np.random.default_rng(0)
  lengths_B = rng.integers(0, T + 1, 128) * (rng.random(128) < 0.8)
  part, ended_B = stop(whole, lengths_B)
  assert ended_B.any() and ((0 < lengths_B) & ~ended_B).sum() > 20
  got = sample(prompts, resumed=(part, ended_B), slots=slots)
  np.testing.assert_array_equal(got.tokens_BL, whole.tokens_BL)
  np.testing.assert_array_equal(got.truncated_B, whole.truncated_B)
  np.testing.assert_allclose(got.logps_BT, whole.logps_BT, atol=1e-5)


def test_another_policy_goes_on_with_what_there_is():
  """What was sampled stays, with its log-probs; the rest is the other's."""
  prompts, other = tiny.prompts(16), tiny.params(1)
  part, ended_B = stop(sample(prompts), np.full(64, 5))
  rows = sample(prompts, resumed=(part, ended_B), params=other)
  np.testing.assert_array_equal(
      rows.tokens_BL[:, : P + 5], part.tokens_BL[:, : P + 5]
  )
  np.testing.assert_array_equal(rows.logps_BT[:, :5], part.logps_BT[:, :5])
  logps_BT, _ = padded.response_logps(
      other, tiny.CFG, rows.tokens_BL, rows.start_B, T
  )
  gap = np.abs(logps_BT - rows.logps_BT) * rows.mask_BT
  assert gap[:, 5:].max() <= 1e-4 < 1e-2 < gap[:, :5].max()


def test_a_stream_tells_when_few_groups_are_left():
  """And it may be left there: what has not ended has begun."""
  static = tiny.SAMPLER | dict(max_tokens=T, group_size=4, slots=16)
  args = tiny.params(), tiny.prompts(32), KEY
  for held in sampler.stream(*args, **static, yield_when_unfinished_groups=5):
    left = (~np.asarray(held[1]).reshape(-1, 4).all(1)).sum()
    if left <= 5:
      break
  assert 0 < left <= 5
  held = jax.device_get(held)
  got = sample(tiny.prompts(32), slots=16, resumed=held)
  np.testing.assert_array_equal(
      got.tokens_BL, sample(tiny.prompts(32)).tokens_BL
  )


def test_sampler_and_trainer_agree():
  rows = sample(tiny.prompts(64), group=4, temperature=0.8)
  logps_BT, _ = padded.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, T, 0.8
  )
  gap = np.abs(logps_BT - rows.logps_BT)[rows.mask_BT]
  assert gap.max() <= 1e-4 and np.median(gap) <= 1e-6


def test_mask_length_eos_and_truncation():
  rows = sample(tiny.prompts(64), group=4)
  tokens_BT = rows.tokens_BL[:, P:]
  for tokens, mask, length, cut in zip(
      tokens_BT, rows.mask_BT, rows.lengths_B, rows.truncated_B, strict=True
  ):
    assert mask.sum() == length and mask[:length].all()
    assert (EOS in tokens[:length]) != cut
    if not cut:
      assert tokens[length - 1] == EOS  # kept, and the last one
      assert (tokens[length:] == tiny.TOK.pad_token_id).all()
    else:
      assert length == T
  assert rows.truncated_B.any() and (~rows.truncated_B).any()
  assert (rows.logps_BT[~rows.mask_BT] == 0).all()


def test_several_tokens_may_end_a_response():
  """What is up to the first of them is what it was without."""
  stop = tiny.TOK.convert_tokens_to_ids("-")
  prompts = tiny.prompts(32)
  rows, whole = sample(prompts, eos=(EOS, stop)), sample(prompts)
  ended = 0
  for tokens, length, cut, other in zip(
      rows.tokens_BL[:, P:],
      rows.lengths_B,
      rows.truncated_B,
      whole.tokens_BL[:, P:],
      strict=True,
  ):
    at = [t for t, x in enumerate(other) if x in (EOS, stop)]
    assert length == (at[0] + 1 if at else T) and cut == (not at)
    np.testing.assert_array_equal(tokens[:length], other[:length])
    ended += bool(at) and other[at[0]] == stop
  assert ended > 10


def test_groups_are_adjacent_and_carry_their_prompt():
  prompts = tiny.prompts(4)
  rows = sample(prompts, group=3)
  np.testing.assert_array_equal(rows.ids_B, np.repeat(np.arange(4), 3))
  np.testing.assert_array_equal(
      rows.tokens_BL[:, :P], np.repeat(prompts.tokens_NP, 3, 0)
  )
  # Samples of a prompt have noise of their own.
  assert (rows.logps_BT[::3, 0] != rows.logps_BT[1::3, 0]).any()


def test_greedy_is_the_argmax_of_the_trainer():
  heat = jnp.array([1.0, 0.0])  # one sampled, one greedy: a row's own choice
  rows = sample(tiny.prompts(8), group=2, temperature=heat)
  hidden = padded.hidden(tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B)
  best = decoder.logits(tiny.params(), tiny.CFG, hidden[:, P - 1 : -1]).argmax(
      -1
  )
  same_BT = np.where(rows.mask_BT, best == rows.tokens_BL[:, P:], True)
  assert same_BT[1::2].all() and not same_BT[::2].all()


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_choose_draws_from_the_distribution(top_p):
  """Chi-squared against the (filtered, renormalised) probabilities."""
  probs = np.array([0.05, 0.4, 0.25, 0.0, 0.2, 0.1])
  logits = jnp.log(jnp.array(probs, jnp.float32))
  uniform = (np.arange(20_000) + 0.5) / 20_000
  drawn = decode_loop.draw(
      jnp.broadcast_to(logits, (20_000, 6)),
      jnp.array(uniform, jnp.float32),
      top_p,
  )
  # By likelihood .4 .25 .2 | .1 .05: the mass BEFORE .2 is .65 < .7.
  expected = probs if top_p == 1 else np.array([0, 0.4, 0.25, 0, 0.2, 0])
  expected = expected / expected.sum()
  counts = np.bincount(drawn, minlength=6)
  assert (counts[expected == 0] == 0).all()
  some = expected > 0
  assert stats.chisquare(counts[some], expected[some] * 20_000).pvalue > 0.99


@pytest.mark.parametrize("top_p", [1e-9, 0.7, 1 - 1e-6])
def test_a_nucleus_is_that_of_a_sort(top_p):
  """The likeliest tokens until their mass is top_p; of equal ones all."""
  rng = np.random.default_rng(0)
  logits_BV = rng.normal(size=(32, 500)) * rng.uniform(0, 20, (32, 1))
  logits_BV[:8] = logits_BV[:8].round()  # ties
  logits_BV[8:12, 100:] = -1e30
  probs_BV = np.asarray(jax.nn.softmax(jnp.float32(logits_BV), -1))
  got_BV = np.asarray(decode_loop._nucleus(probs_BV, top_p))
  for probs_V, got_V in zip(probs_BV.astype(float), got_BV, strict=True):
    likelier_V = np.array([probs_V[probs_V > p].sum() for p in probs_V])
    sure = np.abs(likelier_V - top_p) > 1e-6  # else rounding decides
    np.testing.assert_array_equal(
        got_V[sure] > 0, (likelier_V < top_p)[sure] & (probs_V[sure] > 0)
    )
    np.testing.assert_array_equal(got_V[got_V > 0], probs_V[got_V > 0])


def test_top_p_always_keeps_the_likeliest():
  logits = jnp.log(jnp.array([[0.2, 0.5, 0.3]]))
  for u in (0.0, 0.5, 0.999):
    assert decode_loop.draw(logits, jnp.array([u]), 1e-6)[0] == 1


def test_uniform_next_to_one_stays_in_the_vocabulary():
  logits = jnp.zeros((1, 7))
  assert decode_loop.draw(logits, jnp.array([1 - 2**-24]), 1.0)[0] == 6


@pytest.mark.parametrize("vocab", [700, 512, 1024, 5000])
def test_choose_inverts_the_distribution_of_a_large_vocabulary(vocab):
  """Against float64, up to rounding; a token without mass is never drawn."""
  rng = np.random.default_rng(vocab)
  logits = rng.normal(0, 4, (64, vocab)).astype(np.float32)
  logits[:, rng.random(vocab) < 0.5] = -1e30
  logits[:, -60:] = -1e30
  uniform = rng.random(64).astype(np.float32)
  uniform[:3] = 0, 1 - 2**-24, 1 - 2**-24
  drawn = np.asarray(decode_loop.draw(jnp.array(logits), uniform, 1.0))
  probs = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
  cdf = np.cumsum(probs, 1) / probs.sum(1, keepdims=True)
  each = np.arange(64)
  assert (probs[each, drawn] > 0).all()
  assert (cdf[each, drawn] >= uniform - 1e-6).all()
  assert (cdf[each, drawn] - probs[each, drawn] <= uniform + 1e-6).all()


def test_stored_logps_are_those_before_top_p():
  rows = sample(tiny.prompts(16), top_p=0.5)
  logps_BT, _ = padded.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, T
  )
  np.testing.assert_allclose(
      rows.logps_BT[rows.mask_BT], logps_BT[rows.mask_BT], atol=1e-4
  )


@pytest.fixture(scope="module")
def long():
  """128 prompts x 8, a cache of three blocks, all rows at once."""
  return sample(tiny.prompts(128), 8, max_tokens=300, limits_B=tails(), eos=-1)


def tails(count=1024, most=300):
  """Lengths with a heavy tail: log-normal, median 20."""
  rng = np.random.default_rng(0)
  return np.clip(rng.lognormal(3, 1, count).astype(np.int32), 1, most)


@pytest.mark.parametrize(
    "slots, chunk, burst, block, segments",
    [
        pytest.param(64, 8, 8, 128, 4, marks=pytest.mark.slow),
        (24, 1, 3, 64, 2),
    ],
)
def test_slots_change_no_token(
    long, slots, chunk, burst, block, segments, monkeypatch
):
  """However many rows decode together, when they start, what they read."""
  monkeypatch.setattr(attention, "BLOCK", block)
  monkeypatch.setattr(attention, "BUCKETS", segments)
  monkeypatch.setattr(decode_loop, "CHUNK", chunk)
  monkeypatch.setattr(decode_loop, "BURST", burst)
  sampler.program.cache_clear()
  assert long.lengths_B.sum() > 10_000
  got = sample(
      tiny.prompts(128),
      8,
      max_tokens=300,
      limits_B=tails(),
      eos=-1,
      slots=slots,
      expected_B=tails()[::-1].copy() if slots == 24 else None,
  )
  sampler.program.cache_clear()
  np.testing.assert_array_equal(got.tokens_BL, long.tokens_BL)
  np.testing.assert_array_equal(got.truncated_B, long.truncated_B)
  np.testing.assert_allclose(got.logps_BT, long.logps_BT, atol=1e-5)


@pytest.mark.slow
def test_slots_change_no_token_of_an_int8_cache():
  """Copied prefixes, halved slots and blocks bring their scales along."""
  limits = tails(256, 200)
  one, *others = (
      sample(
          tiny.prompts(32),
          8,
          max_tokens=200,
          limits_B=limits,
          eos=-1,
          slots=slots,
          cache="int8",
      )
      for slots in (0, 24, 64)
  )
  for other in others:
    np.testing.assert_array_equal(one.tokens_BL, other.tokens_BL)
    # What rounds the other way is a step of int8 away, not a rounding.
    np.testing.assert_allclose(one.logps_BT, other.logps_BT, atol=1e-3)


def test_limits_beyond_what_there_is():
  rows = sample(tiny.prompts(8), 1, limits_B=np.array([0, 1, 99, 99] * 2))
  assert rows.lengths_B.min() == 1 and rows.lengths_B.max() <= 24
  assert rows.mask_BT.sum() == rows.lengths_B.sum()


def test_limits(long):
  np.testing.assert_array_equal(long.lengths_B, tails())
  assert long.truncated_B.all()
  limits = tails(32, 24)
  rows = sample(tiny.prompts(8), 4, limits_B=limits)
  cut = rows.truncated_B
  assert (rows.lengths_B <= limits).all() and cut.any() and not cut.all()
  np.testing.assert_array_equal(rows.lengths_B[cut], limits[cut])
  last = rows.tokens_BL[np.arange(32), P + rows.lengths_B - 1]
  assert (last[~cut] == EOS).all()


def test_sampler_and_trainer_agree_over_many_blocks(long):
  rows = jax.tree.map(lambda x: x[:64], long)
  logps_BT, _ = padded.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, 300
  )
  gap = np.abs(logps_BT - rows.logps_BT)[rows.mask_BT]
  assert rows.lengths_B.max() > 128 and gap.max() <= 1e-4


@pytest.mark.parametrize("cache", ["same", "int8"])
def test_an_int8_cache_samples_from_a_policy_that_is_near(cache):
  """KL of sampler to trainer, nats a token, by an estimator that is >= 0."""
  rows = sample(tiny.prompts(32), 4, max_tokens=200, eos=-1, cache=cache)
  logps_BT, _ = padded.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, 200
  )
  gap = np.asarray(rows.logps_BT - logps_BT, np.float64)[rows.mask_BT]
  kl = np.mean(np.expm1(-gap) + gap)
  if cache == "same":
    assert np.abs(gap).max() < 1e-4
  else:
    assert 1e-3 < np.abs(gap).max() < 0.1 and 1e-8 < kl < 1e-4


def test_without_int8_there_are_no_scales():
  for cache, count, kind in (("same", 2, "float32"), ("int8", 4, "int8")):
    _, slots = tiny.under_way(None, 4, group_size=2, cache=cache)
    assert len(jax.tree.leaves(slots.cache)) == count
    assert slots.cache.k.dtype == slots.cache.v.dtype == kind


def steps(limits, slots, halves=True):
  """Decode steps, and the share of slots in use, of rows that end so.

  The rule of `rollout.sample` a second time, without a model.
  """
  queue, left = list(limits), [0] * slots
  taken = offered = 0
  before = None
  while before != 0:
    now = len(queue) + sum(map(bool, left))
    for _ in range(decode_loop.CHUNK):
      for s in [s for s, x in enumerate(left) if not x][: len(queue)]:
        left[s] = queue.pop(0)
      if not any(left):
        break
      taken, offered = (
          taken + decode_loop.BURST,
          offered + decode_loop.BURST * len(left),
      )
      left = [max(x - decode_loop.BURST, 0) for x in left]
    now = len(queue) + sum(map(bool, left))
    if halves and before is not None:
      while 2 * before <= len(left) >= 2 * sampler.MIN_SLOTS:
        left = sorted(left, reverse=True)[: len(left) // 2]
    before = now
  return taken, sum(limits) / offered


def lengths(mean, count, most, seed=0):
  rng = np.random.default_rng(seed)
  wanted = rng.lognormal(np.log(mean) - 0.5, 1, count)
  return np.clip(wanted, 1, most).astype(int)


def test_no_slot_waits_long():
  """A heavy tail, counted; in lockstep four of five slots are idle."""
  limits = lengths(100, 256, 512)
  _, together = steps(limits, 256, halves=False)
  assert together < 0.25 and steps(limits, 32)[1] > 0.85


def test_longest_first_is_near_the_ideal():
  """With lengths known; a run knows only what a problem's type took before."""
  for seed, most in enumerate((2048, 4096, 8192)):
    limits = np.sort(lengths(1600, 2048, most, seed))[::-1]
    assert limits.mean() > 1000
    ideal = max(limits[0], -(-limits.sum() // 256))
    taken, used = steps(limits, 256)
    assert taken <= 1.05 * ideal and used > 0.95


def test_decode_steps_are_those_of_the_rule(monkeypatch):
  """What the device did is what `steps` counts, up to the end of a chunk."""
  counted = []
  forward = decoder.forward

  def spy(*args):
    jax.debug.callback(lambda: counted.append(1), ordered=False)
    return forward(*args)

  monkeypatch.setattr(decoder, "forward", spy)
  limits = tails(128, 200)
  sampler.program.cache_clear()
  sample(
      tiny.prompts(16),
      8,
      max_tokens=200,
      limits_B=limits,
      slots=32,
      eos=-1,
  )
  jax.effects_barrier()
  assert len(counted) - 1 == steps(limits, 32)[0]  # 1: the prompts
  in_order = len(counted)
  sample(
      tiny.prompts(16),
      8,
      max_tokens=200,
      limits_B=limits,
      expected_B=limits,
      slots=32,
      eos=-1,
  )
  jax.effects_barrier()
  wanted, _ = steps(np.sort(limits)[::-1], 32)
  assert len(counted) - in_order - 1 == wanted < steps(limits, 32)[0]


@pytest.mark.parametrize("cache", ["same", "int8"])
def test_no_cache_is_copied_in_the_decode_loop(cache):
  """The cache is updated in place: the program copies no array of its shape.

  Nor are there all the numbers that int8 stands for, not even of one layer.
  """
  how = dict(group_size=2, cache=cache)
  decode = sampler.program(tiny.engine(**how), "decode", None)
  queue, slots = tiny.under_way(None, 16, **how)
  compiled = decode.lower(tiny.params(), queue, slots).compile()
  text = compiled.as_text()
  for x in jax.tree.leaves(slots.cache):
    sizes = ",".join(map(str, x.shape)) + "]"
    shape = {"float32": "f32[", "int8": "s8["}[str(x.dtype)] + sizes
    assert shape in text
    assert not re.search(rf"{re.escape(shape)}\S* copy\(", text)
    if x.dtype == "int8":
      layer = ",".join(map(str, x.shape[1:])) + "]"
      assert not re.search(rf"f32\[(\d,)?{re.escape(layer)}", text)
  # Nor does it hold a second one.
  whole = sum(x.nbytes for x in jax.tree.leaves(slots.cache))
  assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * whole


def test_nothing_compiles_twice():
  """Each program once, whatever the lengths; and halving is among them."""
  made = {}

  def program(*kind):
    return made.setdefault(kind, sampler.program(*kind))

  sampler.program.cache_clear()
  limits = tails(128, 200)
  for some in limits, limits[::-1].copy(), np.minimum(limits, 9):
    sample(
        tiny.prompts(16),
        8,
        max_tokens=200,
        slots=32,
        limits_B=some,
        eos=-1,
        program=program,
    )
  sizes = {kind[2][1] for kind in made if kind[1] == "decode"}
  assert sizes == {32, 16, 8, 4}
  assert {fn._cache_size() for fn in made.values()} == {1}
