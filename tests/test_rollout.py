"""Sampling: same tokens whatever is beside a row, and honest log-probs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
import tokenizers
import transformers
from scipy import stats

from rl_reason.data import tokenizer
from rl_reason.models import attention, decoder
from rl_reason.rollout import decode_loop, sampler
from rl_reason.rollout.sampler import Sampled
from rl_reason.rollout.sampling_filters import Filters
from rl_reason.rollout.stop_strings import StopStrings

P, T, EOS = tiny.P, tiny.T, tiny.TOK.eos_token_id
KEY = jax.random.key(3)
STOP = tiny.TOK.convert_tokens_to_ids("-")
draw = jax.jit(decode_loop.draw, static_argnums=2)


def sampled(prompts, group=4, params=None, **kwargs):
  kwargs = tiny.SAMPLER | dict(max_tokens=T, temperature=1.0) | kwargs
  params = tiny.params() if params is None else params
  *_, last = sampler.stream(params, prompts, KEY, group_size=group, **kwargs)
  return last.with_arrays(jax.device_get)


def sample(*args, **kwargs):
  return sampled(*args, **kwargs).rollouts


@pytest.fixture(scope="module")
def base():
  """32 prompts x 4, all rows at once."""
  return sample(tiny.prompts(32))


@pytest.fixture(scope="module")
def mixed():
  """As `base`, with limits, and every second sample greedy."""
  limits = tails(128, 24)
  limits[:3] = 0, 9, 99
  temperature_G = jnp.array([1.0, 0.0, 1.0, 0.0])
  how = dict(temperature=temperature_G, limits_B=limits)
  return sample(tiny.prompts(32), **how), np.clip(limits, 1, T)


@pytest.fixture(scope="module")
def filtered():
  """As `base`, with top-p, and two tokens that end a response."""
  return sample(tiny.prompts(32), filters=Filters(top_p=0.5), eos=(EOS, STOP))


def trainer_logps(rows, params=None, temperature=1.0):
  params = tiny.params() if params is None else params
  length = rows.mask_BT.shape[1]
  args = params, tiny.CFG, rows.tokens_BL, rows.start_B, length, temperature
  return np.asarray(padded.response_logps(*args)[0])


def test_tokens_do_not_depend_on_batching(base):
  """Other order; half of the prompts, fewer samples, more padding, longer T."""
  prompts = tiny.prompts(32)
  order = np.random.default_rng(0).permutation(32)
  mixed = sample(jax.tree.map(lambda x: x[order], prompts))
  rows = (order[:, None] * 4 + np.arange(4)).reshape(-1)
  np.testing.assert_array_equal(mixed.tokens_BL, base.tokens_BL[rows])

  half = jax.tree.map(lambda x: x[:16], prompts)
  wider = half.replace(
      tokens_NP=np.pad(half.tokens_NP, ((0, 0), (7, 0))),
      start_N=half.start_N + 7,
  )
  fewer = sample(wider, group=2, max_tokens=T + 5)
  rows = (np.arange(16)[:, None] * 4 + np.arange(2)).reshape(-1)
  np.testing.assert_array_equal(
      fewer.tokens_BL[:, P + 7 : P + 7 + T], base.tokens_BL[rows, P:]
  )


def test_sampler_and_trainer_agree():
  rows = sample(tiny.prompts(32), temperature=0.8)
  logps_BT = trainer_logps(rows, temperature=0.8)
  gap = np.abs(logps_BT - rows.logps_BT)[rows.mask_BT]
  assert gap.max() <= 1e-4 and np.median(gap) <= 1e-6


def test_mask_length_eos_and_truncation(base):
  rows = base
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


def test_several_tokens_may_end_a_response(filtered):
  """At the first of them, and nowhere else."""
  rows, ended = filtered, 0
  for tokens, length, cut in zip(
      rows.tokens_BL[:, P:], rows.lengths_B, rows.truncated_B, strict=True
  ):
    at = [t for t, x in enumerate(tokens[:length]) if x in (EOS, STOP)]
    assert at == ([] if cut else [length - 1]) and (not cut or length == T)
    ended += not cut and tokens[length - 1] == STOP
  assert ended > 10


@pytest.mark.parametrize(
    "strings",
    [
        ("12", "#3", "=4="),
        pytest.param(("1-",), marks=pytest.mark.slow),
    ],
)
def test_a_stop_string_ends_a_response(base, strings):
  """At the token that completes it; nothing before changes, with any slots."""
  ends = StopStrings(tiny.TOK, tiny.CFG.vocab, strings, (EOS,))
  rows, stopped = sample(tiny.prompts(32), eos=ends), 0
  for b, length in enumerate(base.lengths_B):
    pieces = tokenizer.pieces(tiny.TOK, base.tokens_BL[b, P : P + length])
    text = "".join(x if len(x) == 1 else "?" for x in pieces)
    wholes = (x for x in range(1, length + 1) if text[:x].endswith(strings))
    end = next(wholes, None)
    assert rows.truncated_B[b] == (end is None and base.truncated_B[b])
    end = end or length
    assert rows.lengths_B[b] == end
    here = slice(P, P + end)
    np.testing.assert_array_equal(
        rows.tokens_BL[b, here], base.tokens_BL[b, here]
    )
    assert (rows.tokens_BL[b, P + end :] == tiny.TOK.pad_token_id).all()
    np.testing.assert_allclose(
        rows.logps_BT[b, :end], base.logps_BT[b, :end], atol=1e-5
    )
    stopped += end < length
  assert stopped > 4
  # With fewer slots, and continued from the middle of a string.
  few = sample(tiny.prompts(32), eos=ends, slots=16, least=16)
  lengths_B = np.minimum(rows.lengths_B, 2)
  part, ended_B = stop(rows, lengths_B)
  resumed = Sampled(part, ended_B)
  for other in few, sample(tiny.prompts(32), eos=ends, resumed=resumed):
    np.testing.assert_array_equal(other.tokens_BL, rows.tokens_BL)
    np.testing.assert_array_equal(other.truncated_B, rows.truncated_B)
  gap = np.abs(trainer_logps(rows) - rows.logps_BT)[rows.mask_BT]
  assert gap.max() <= 1e-4


LEVEL = tokenizers.pre_tokenizers.ByteLevel
SPLIT = tokenizers.pre_tokenizers


def trained(kind):
  """A tokenizer whose tokens have several bytes, or a part of a character."""
  fast = tokenizers.Tokenizer(
      tokenizers.models.BPE(byte_fallback=kind == "sentencepiece")
  )
  alphabet, special = [], ["<eos>"]
  if kind == "byte_level":
    fast.pre_tokenizer = LEVEL(add_prefix_space=False)
    fast.decoder, alphabet = tokenizers.decoders.ByteLevel(), LEVEL.alphabet()
  elif kind == "sentencepiece":
    fast.pre_tokenizer = SPLIT.Metaspace()
    decoders = tokenizers.decoders
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special += [f"<0x{x:02X}>" for x in range(256)]
  else:
    fast.decoder = tokenizers.decoders.Fuse()
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=700, special_tokens=special, initial_alphabet=sorted(alphabet)
  )
  texts = [
      "Question: x</answer> the answer is 4.\nAnswer: 4 </s>" * 3,
      "abcdefghijklmnopqrstuvwxyz 0123456789 :</>\n.Q A",
  ]
  fast.train_from_iterator(texts, trainer)
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, eos_token="<eos>"
  )


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "characters"])
@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("the answer is 4.\nQuestion: the", "4.\nQuestion:"),
        ("is 4 </answer>\nthe answer", "is 4 </answer>"),
        ("\n\nQuestion: x\nQuestion x", ""),
        ("\nQuest\nQuestion: answer", "\nQuest\nQuestion:"),
        ("答案 是 4 😀! the", "答案 是 4 😀!"),
        ("the answer is <", None),
    ],
)
def test_a_stop_string_is_found_however_it_is_split(kind, text, end):
  strings = "\nQuestion:", "</answer>", "😀!", "\n\n"
  tok = trained(kind)
  if kind == "characters" and not text.isascii():
    pytest.skip("has no such characters")
  ends = StopStrings(tok, len(tok) + 3, strings, (tok.eos_token_id,))
  ids = np.array(tokenizer.encode(tok, [text])[0], np.int32)
  at = np.arange(len(ids))
  found = np.asarray(ends(ids, np.tile(ids, (len(ids), 1)), at, at))
  texts = [tok.decode(ids[: n + 1]) for n in at]
  wanted = [any(x in shown for x in strings) for shown in texts]
  assert (end is not None) == any(wanted)
  if any(wanted):
    assert found.argmax() == wanted.index(True)
  else:
    assert not found.any()


def test_groups_are_adjacent_and_carry_their_prompt(base):
  prompts = tiny.prompts(32)
  np.testing.assert_array_equal(base.ids_B, np.repeat(np.arange(32), 4))
  np.testing.assert_array_equal(
      base.tokens_BL[:, :P], np.repeat(prompts.tokens_NP, 4, 0)
  )
  # Each sample of a prompt has its own noise.
  assert (base.logps_BT[::4, 0] != base.logps_BT[1::4, 0]).any()


def test_greedy_is_the_argmax_of_the_trainer(mixed):
  rows, _ = mixed

  @jax.jit
  def argmax(params, tokens_BL, start_B):
    states = padded.hidden(params, tiny.CFG, tokens_BL, start_B)
    return decoder.logits(params, tiny.CFG, states[:, P - 1 : -1]).argmax(-1)

  best = argmax(tiny.params(), rows.tokens_BL, rows.start_B)
  same_BT = np.where(rows.mask_BT, best == rows.tokens_BL[:, P:], True)
  assert same_BT[1::2].all() and not same_BT[::2].all()


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_draws_come_from_the_distribution(top_p):
  """Chi-squared against the (filtered, renormalised) probabilities."""
  probs = np.array([0.05, 0.4, 0.25, 0.0, 0.2, 0.1])
  logits = jnp.log(jnp.array(probs, jnp.float32))
  uniform = (np.arange(20_000) + 0.5) / 20_000
  drawn = draw(
      jnp.broadcast_to(logits, (20_000, 6)),
      jnp.array(uniform, jnp.float32),
      Filters(top_p=top_p),
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
  got_BV = np.asarray(Filters(top_p=top_p).truncate(probs_BV))
  for probs_V, got_V in zip(probs_BV.astype(float), got_BV, strict=True):
    likelier_V = np.array([probs_V[probs_V > p].sum() for p in probs_V])
    sure = np.abs(likelier_V - top_p) > 1e-6  # else rounding decides
    np.testing.assert_array_equal(
        got_V[sure] > 0, (likelier_V < top_p)[sure] & (probs_V[sure] > 0)
    )
    np.testing.assert_array_equal(got_V[got_V > 0], probs_V[got_V > 0])


@pytest.mark.parametrize("vocab", [700, 1024])
def test_draws_invert_the_cdf_of_a_large_vocabulary(vocab):
  """Against float64, up to rounding; a token without mass is never drawn."""
  rng = np.random.default_rng(vocab)
  logits = rng.normal(0, 4, (64, vocab)).astype(np.float32)
  logits[:, rng.random(vocab) < 0.5] = -1e30
  logits[:, -60:] = -1e30
  uniform = rng.random(64).astype(np.float32)
  uniform[:3] = 0, 1 - 2**-24, 1 - 2**-24
  drawn = np.asarray(draw(jnp.array(logits), uniform))
  probs = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
  cdf = np.cumsum(probs, 1) / probs.sum(1, keepdims=True)
  each = np.arange(64)
  assert (probs[each, drawn] > 0).all()
  assert (cdf[each, drawn] >= uniform - 1e-6).all()
  assert (cdf[each, drawn] - probs[each, drawn] <= uniform + 1e-6).all()


def test_stored_logps_are_those_before_top_p(filtered):
  rows = filtered
  np.testing.assert_allclose(
      rows.logps_BT[rows.mask_BT],
      trainer_logps(rows)[rows.mask_BT],
      atol=1e-4,
  )


def test_limits(base, mixed):
  """Tokens are the same up to the limit, which is clipped to 1 to T."""
  rows, limits = mixed
  np.testing.assert_array_equal(rows.mask_BT.sum(1), rows.lengths_B)
  assert (rows.lengths_B <= limits).all()
  sampled = np.arange(0, 128, 2)  # the others are greedy
  lengths = np.minimum(base.lengths_B, limits)[sampled]
  np.testing.assert_array_equal(rows.lengths_B[sampled], lengths)
  tokens, mask = rows.tokens_BL[sampled, P:], rows.mask_BT[sampled]
  np.testing.assert_array_equal(tokens[mask], base.tokens_BL[sampled, P:][mask])
  last = tokens[np.arange(64), lengths - 1]
  np.testing.assert_array_equal(last != EOS, rows.truncated_B[sampled])


# --- slots -------------------------------------------------------------------

LONG = 200  # tokens of a response: several blocks of the cache


def tails(count=128, most=LONG):
  """Lengths with a heavy tail: log-normal, median 20."""
  rng = np.random.default_rng(0)
  return np.clip(rng.lognormal(3, 1, count).astype(np.int32), 1, most)


def sampled_long(**kwargs):
  """What `stream` yields last."""
  kwargs = dict(max_tokens=LONG, limits_B=tails(), eos=-1) | kwargs
  return sampled(tiny.prompts(16), 8, **kwargs)


def sample_long(**kwargs):
  return sampled_long(**kwargs).rollouts


@pytest.fixture(scope="module")
def long():
  """16 prompts x 8, all rows at once."""
  return sample_long()


@pytest.fixture(scope="module")
def queued():
  """The same in 16 slots, other blocks: in order, and the longest first.

  Returns:
    the rows of each; the decode steps of each; compiled programs by kind.
  """
  rows, steps, calls, programs = [], [], [], {}
  forward = decoder.forward

  def spy(*args):
    jax.debug.callback(lambda: calls.append(1), ordered=False)
    return forward(*args)

  def program(*kind):
    if kind not in programs:  # traced anew, with the spy
      programs[kind] = sampler.program.__wrapped__(*kind)
    return programs[kind]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(decoder, "forward", spy)
    patch.setattr(attention, "BLOCK", 64)
    patch.setattr(attention, "BUCKETS", 2)
    for expected in np.zeros(128, np.int32), tails():
      calls.clear()
      how = dict(slots=16, expected_B=expected, program=program)
      rows.append(sample_long(**how))
      jax.effects_barrier()
      steps.append(len(calls) - 1)  # 1: the prompts
  return rows, steps, programs


def test_slots_change_no_token(long, queued):
  """Rows that decode together, their order, blocks: none of it matters."""
  np.testing.assert_array_equal(long.lengths_B, tails())
  assert long.truncated_B.all() and long.lengths_B.sum() > 3000
  for rows in queued[0]:
    np.testing.assert_array_equal(rows.tokens_BL, long.tokens_BL)
    np.testing.assert_array_equal(rows.truncated_B, long.truncated_B)
    np.testing.assert_allclose(rows.logps_BT, long.logps_BT, atol=1e-5)


def test_nothing_compiles_twice(queued):
  """Each program once, whatever the lengths; halved slots are among them."""
  *_, programs = queued
  sizes = {kind[2][1] for kind in programs if kind[1] == "decode"}
  assert sizes == {16, 8, 4}
  assert {fn._cache_size() for fn in programs.values()} == {1}


def test_decode_steps_are_those_of_the_rule(queued):
  """The device takes as many as `steps` counts."""
  _, (in_order, longest_first), _ = queued
  assert in_order == steps(tails(), 16)[0]
  assert longest_first == steps(np.sort(tails())[::-1], 16)[0] < in_order


def test_sampler_and_trainer_agree_over_many_blocks(long):
  gap = np.abs(trainer_logps(long) - long.logps_BT)[long.mask_BT]
  assert long.lengths_B.max() > 128 and gap.max() <= 1e-4


# --- continued responses -----------------------------------------------------


def stop(whole, lengths_B):
  """Responses cut off after so many tokens."""
  lengths_B = np.minimum(lengths_B, whole.lengths_B)
  so_far_BT = np.arange(whole.mask_BT.shape[1]) < lengths_B[:, None]
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


def test_resumed_rollouts_have_the_same_tokens(long, slots=0):
  """Not begun, partial, ended."""
  rng = np.random.default_rng(0)
  lengths_B = rng.integers(0, 60, 128) * (rng.random(128) < 0.8)
  part, ended_B = stop(long, lengths_B)
  assert ended_B.any() and ((0 < lengths_B) & ~ended_B).sum() > 20
  got = sample_long(resumed=Sampled(part, ended_B), slots=slots)
  np.testing.assert_array_equal(got.tokens_BL, long.tokens_BL)
  np.testing.assert_array_equal(got.truncated_B, long.truncated_B)
  np.testing.assert_allclose(got.logps_BT, long.logps_BT, atol=1e-5)


@pytest.mark.slow
def test_kept_rows_read_only_what_is_new(long):
  """As if all were read again; observations of 0 to 99 tokens."""
  rng = np.random.default_rng(0)
  lengths_B = np.minimum(rng.integers(1, 60, 128), long.lengths_B)
  cache = sampled_long(limits_B=lengths_B, keep_cache=True).cache
  part, _ = stop(long, lengths_B)
  ended_B = rng.random(128) < 0.3
  for b, size in enumerate(rng.integers(0, 100, 128)):
    end = P + lengths_B[b] + size
    part.tokens_BL[b, end - size : end] = rng.integers(2, 15, size)
    part.lengths_B[b] += size
  how = dict(limits_B=np.full(128, 180), keep_cache=True)
  again = sample_long(**how, resumed=Sampled(part, ended_B))
  zeros = jax.tree.map(np.zeros_like, jax.device_get(cache.cache))
  spoiled = jax.device_get(cache)._replace(cache=zeros)
  for row_cache, same in (cache, True), (spoiled, False):
    resumed = Sampled(part, ended_B, row_cache)
    got, _, following, _ = sampled_long(**how, resumed=resumed)
    assert (got.tokens_BL == again.tokens_BL).all() == same
    gap_BT = np.abs(got.logps_BT - again.logps_BT)
    assert (gap_BT.max() < 1e-5) == same
    assert following is not None  # for the next call


@pytest.mark.slow
def test_a_cache_of_few_slots_is_continued():
  how = dict(max_tokens=20, eos=-1)
  prompts, limits_B = tiny.prompts(2), np.full(8, 5)
  first = sampled(prompts, limits_B=limits_B, keep_cache=True, **how)
  resumed = first._replace(ended_B=np.zeros(8, bool))
  got = sample(prompts, resumed=resumed, keep_cache=True, **how)
  np.testing.assert_array_equal(got.tokens_BL, sample(prompts, **how).tokens_BL)


@pytest.mark.slow
def test_another_policy_continues_responses(long):
  """Tokens so far and their log-probs stay; the rest is the other policy's."""
  other = tiny.params(1)
  part, ended_B = stop(long, np.full(128, 5))
  rows = sample_long(resumed=Sampled(part, ended_B), params=other)
  np.testing.assert_array_equal(
      rows.tokens_BL[:, : P + 5], part.tokens_BL[:, : P + 5]
  )
  np.testing.assert_array_equal(rows.logps_BT[:, :5], part.logps_BT[:, :5])
  gap = np.abs(trainer_logps(rows, other) - rows.logps_BT) * rows.mask_BT
  gap[ended_B] = 0
  assert gap[:, 5:].max() <= 1e-4 < 1e-2 < gap[:, :5].max()


# --- the rule of the queue ---------------------------------------------------


def steps(limits, slots, halves=True):
  """Decode steps, and the share of slots in use, of rows of these lengths.

  The rule of `sampler.stream` a second time, without a model.
  """
  queue, left = list(limits), [0] * slots
  taken = offered = 0
  before = None
  while before != 0:
    for _ in range(decode_loop.CHUNK):
      for s in [s for s, x in enumerate(left) if not x][: len(queue)]:
        left[s] = queue.pop(0)
      if not any(left):
        break
      taken += decode_loop.BURST
      offered += decode_loop.BURST * len(left)
      left = [max(x - decode_loop.BURST, 0) for x in left]
    now = len(queue) + sum(map(bool, left))
    if halves and before is not None:
      while 2 * before <= len(left) >= 2 * sampler.Sampler.least:
        left = sorted(left, reverse=True)[: len(left) // 2]
    before = now
  return taken, sum(limits) / offered


@pytest.mark.parametrize(
    "cache", ["same", pytest.param("int8", marks=pytest.mark.slow)]
)
def test_no_cache_is_copied_in_the_decode_loop(cache):
  """The cache is updated in place: the program copies no array of its shape.

  Nor are there all the numbers that int8 stands for, not even of one layer.
  """
  engine = tiny.engine(group_size=2, cache=cache)
  args = tiny.params(), tiny.prompts(16), KEY, 1.0, None, 9, 0.0
  queue, slots = jax.eval_shape(engine.start, *args)
  decode = sampler.program(engine, "decode", None)
  compiled = decode.lower(tiny.params(), queue, slots).compile()
  text = compiled.as_text()
  count, kind = dict(same=(2, "float32"), int8=(4, "int8"))[cache]
  assert len(jax.tree.leaves(slots.cache)) == count  # with scales, or without
  assert slots.cache.k.dtype == slots.cache.v.dtype == kind
  for x in jax.tree.leaves(slots.cache):
    sizes = ",".join(map(str, x.shape)) + "]"
    shape = {"float32": "f32[", "int8": "s8["}[str(x.dtype)] + sizes
    assert shape in text
    assert not re.search(rf"{re.escape(shape)}\S* copy\(", text)
    if x.dtype == "int8":
      layer = ",".join(map(str, x.shape[1:])) + "]"
      assert not re.search(rf"f32\[(\d,)?{re.escape(layer)}", text)
  # Nor does it hold a second one.
  whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(slots.cache))
  assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * whole
