"""Sampling: same tokens whatever is beside a row, and honest log-probs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy import stats

from rl_reason import model, rollout

P, T, EOS = tiny.P, tiny.T, tiny.TOK.eos_token_id
KEY = jax.random.key(3)


def sample(prompts, group=4, params=None, **kwargs):
  kwargs = dict(max_tokens=T, temperature=1.0) | kwargs
  params = tiny.params() if params is None else params
  return jax.device_get(
      rollout.sample(
          params, prompts, KEY, group_size=group, **tiny.SAMPLER, **kwargs
      )
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


def test_sampler_and_trainer_agree():
  rows = sample(tiny.prompts(64), group=4, temperature=0.8)
  logps_BT, _ = model.response_logps(
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
  hidden = model.hidden(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B
  )
  best = model.logits(tiny.params(), tiny.CFG, hidden[:, P - 1 : -1]).argmax(-1)
  same_BT = np.where(rows.mask_BT, best == rows.tokens_BL[:, P:], True)
  assert same_BT[1::2].all() and not same_BT[::2].all()


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_choose_draws_from_the_distribution(top_p):
  """Chi-squared against the (filtered, renormalised) probabilities."""
  probs = np.array([0.05, 0.4, 0.25, 0.0, 0.2, 0.1])
  logits = jnp.log(jnp.array(probs, jnp.float32))
  uniform = (np.arange(20_000) + 0.5) / 20_000
  drawn = rollout.choose(
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


def test_top_p_always_keeps_the_likeliest():
  logits = jnp.log(jnp.array([[0.2, 0.5, 0.3]]))
  for u in (0.0, 0.5, 0.999):
    assert rollout.choose(logits, jnp.array([u]), 1e-6)[0] == 1


def test_uniform_next_to_one_stays_in_the_vocabulary():
  logits = jnp.zeros((1, 7))
  assert rollout.choose(logits, jnp.array([1 - 2**-24]), 1.0)[0] == 6


def test_stored_logps_are_those_before_top_p():
  rows = sample(tiny.prompts(16), top_p=0.5)
  logps_BT, _ = model.response_logps(
      tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B, T
  )
  np.testing.assert_allclose(
      rows.logps_BT[rows.mask_BT], logps_BT[rows.mask_BT], atol=1e-4
  )


def test_no_cache_is_copied_in_the_decode_loop():
  """The cache is updated in place: the program copies no array of its shape."""
  compiled = rollout.sample.lower(
      tiny.params(),
      tiny.prompts(16),
      KEY,
      group_size=2,
      max_tokens=100,
      **tiny.SAMPLER,
  ).compile()
  c = tiny.CFG
  shape = f"[{c.layers},32,{c.kv_heads},{P + 100},{c.head_dim}]"
  text = compiled.as_text()
  assert f"f32{shape}" in text
  assert not re.search(rf"f32{re.escape(shape)}\S* copy\(", text)
