"""Filters of the next token, against their formulas in NumPy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny

from rl_reason.models import decoder
from rl_reason.rollout import sampler, sampling_filters
from rl_reason.rollout.sampling_filters import Filters

P, T = tiny.P, tiny.T
B, V = 24, 300


def softmax(logits_V):
  mass_V = np.exp(logits_V - logits_V.max())
  return mass_V / mass_V.sum()


def reference(filters, logits_V, seen=()):
  """Probabilities of one row, each filter as its paper or library defines it.

  A dropped token has the logit -inf, and each filter sees what is left,
  renormalised: in the order of vLLM.
  """
  logits_V = np.array(logits_V, np.float64)
  for token in set(seen):
    x, penalty = logits_V[token], filters.repetition_penalty
    logits_V[token] = x * penalty if x < 0 else x / penalty
  probs_V = softmax(logits_V)
  logits_V[probs_V < filters.min_p * probs_V.max()] = -np.inf
  if filters.top_k:
    last = np.sort(logits_V)[-min(filters.top_k, len(logits_V))]
    logits_V[logits_V < last] = -np.inf
  if filters.top_p < 1:
    probs_V = softmax(logits_V)
    order = np.argsort(-probs_V, kind="stable")
    before = np.cumsum(probs_V[order]) - probs_V[order]
    logits_V[order[before >= filters.top_p]] = -np.inf
  return softmax(logits_V)


def logits(seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(B, V)).astype(np.float32) * rng.uniform(1, 8, (B, 1))


def queue(seed=0):
  """Rows of three prompts, with responses of any length."""
  rng = np.random.default_rng(seed)
  integers = lambda high, *shape: rng.integers(0, high, shape)  # noqa: E731
  return types.SimpleNamespace(
      prompts_NP=integers(V, 3, 7),
      length_N=np.array([7, 2, 4]),
      prompt_R=integers(3, B),
      tokens_RT=integers(V, B, 9),
  ), integers(10, B)


def filtered(filters, logits_BV, queue, t_B):
  logits_BV = jnp.float32(logits_BV)
  row_B = np.arange(B)[::-1]
  filters = filters.of_rows(row_B)
  logits_BV = filters.penalize(logits_BV, queue, row_B, t_B)
  probs_BV = filters.truncate(jax.nn.softmax(logits_BV, -1))
  return probs_BV / probs_BV.sum(-1, keepdims=True)


CASES = [
    Filters(top_k=1),
    Filters(top_k=40),
    Filters(top_k=V + 5),
    Filters(min_p=0.05),
    Filters(min_p=1.0),
    Filters(repetition_penalty=1.3),
    Filters(repetition_penalty=0.8),
    Filters(20, 0.8, 0.02, 1.2),
    Filters(3, 0.95, 0.3),
]


def arrays(each):
  """The filters of rows as arrays, as a server has them."""
  return Filters(*map(np.array, zip(*each, strict=True)))


EACH = [CASES[b % len(CASES)] for b in range(B)]


@pytest.mark.parametrize(
    "filters, of_row",
    [
        (arrays(EACH), EACH),  # rows of one program, each with its own
        (arrays([Filters()] * B), [Filters()] * B),
        (CASES[7], [CASES[7]] * B),
    ],
    ids=["rows", "off", "all"],
)
def test_filters_are_their_formulas(filters, of_row):
  logits_BV, (rows, t_B) = logits(), queue()
  logits_BV[:, :5] = np.abs(logits_BV[:, :5])  # a penalty has both signs
  got_BV = jax.jit(lambda: filtered(filters, logits_BV, rows, t_B))()
  for b, row in enumerate(range(B)[::-1]):
    n = rows.prompt_R[row]
    prompt = rows.prompts_NP[n, : rows.length_N[n]]
    seen = [*prompt, *rows.tokens_RT[row, : t_B[b]]]
    want_V = reference(of_row[row], logits_BV[b], seen)
    np.testing.assert_array_equal(got_BV[b] > 0, want_V > 0, str(of_row[row]))
    np.testing.assert_allclose(got_BV[b], want_V, rtol=2e-4)


def test_the_order_by_hand():
  """min-p leaves .5 .3, of which .625 is more than top-p: one token is left.

  With min-p last, the nucleus of .5 .3 .1 .1 would have two tokens, and both
  would stay.
  """
  each = {
      Filters(min_p=0.3, top_p=0.6): [0, 0.5, 0, 0],
      Filters(top_k=2, top_p=0.6): [0, 0.5, 0, 0],  # of .625 .375
      Filters(top_p=0.6): [0, 0.5, 0, 0.3],
      Filters(top_k=3): [0.1, 0.5, 0.1, 0.3],  # two are equally likely
  }
  probs_BV = jnp.array([[0.1, 0.5, 0.1, 0.3]] * len(each))
  got = jax.jit(lambda: arrays([*each]).truncate(probs_BV))()
  np.testing.assert_allclose(got, [*each.values()])


def test_a_row_does_not_depend_on_the_filters_of_others():
  """Bit for bit, with and without a program of constants."""
  probs_BV = jax.nn.softmax(jnp.float32(logits()), -1)
  alone = jax.jit(Filters(top_p=0.7).truncate)(probs_BV)
  top_k, min_p = np.zeros(B, np.int32), np.zeros(B, np.float32)
  top_k[1:], min_p[2:] = 5, 0.1
  top_p, one = np.full(B, 0.7, np.float32), np.ones(B, np.float32)
  beside = jax.jit(Filters(top_k, top_p, min_p, one).truncate)(probs_BV)
  np.testing.assert_array_equal(alone[0], beside[0])
  assert (alone[1:] != beside[1:]).any()


def test_sections_without_filters_have_none():
  off = dict(top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
  assert sampling_filters.of(off) is None
  assert sampling_filters.of(off | dict(min_p=0.1)) == Filters(min_p=0.1)


@pytest.mark.slow
def test_a_sampler_penalizes_prompt_and_response():
  """Drawn tokens are some that the reference keeps, greedy ones its argmax.

  The log-probs are those before all filters.
  """
  filters = Filters(top_k=6, top_p=0.9, min_p=0.01, repetition_penalty=2.0)
  rows = sampler.sample(
      *(tiny.params(), tiny.prompts(8), jax.random.key(3)),
      jnp.array([0.0, 1.0, 0.7]),
      **tiny.SAMPLER | dict(eos=-1),
      group_size=3,
      max_tokens=T,
      slots=8,
      filters=filters,
  )
  rows, others = jax.device_get(rows), 0
  states = padded.hidden(tiny.params(), tiny.CFG, rows.tokens_BL, rows.start_B)
  logits = decoder.logits(tiny.params(), tiny.CFG, states[:, P - 1 : -1])
  for b, logits_TV in enumerate(np.asarray(logits)):
    logits_TV = logits_TV / (1.0, 1.0, 0.7)[b % 3]
    tokens_L = rows.tokens_BL[b]
    for t, logits_V in enumerate(logits_TV):
      token = tokens_L[P + t]
      kept_V = reference(filters, logits_V, tokens_L[rows.start_B[b] : P + t])
      assert kept_V[token] == (kept_V[token] if b % 3 else kept_V.max()) > 0
      others += token != logits_V.argmax() and b % 3 == 0
      logp = np.log(softmax(logits_V.astype(float))[token])
      assert abs(logp - rows.logps_BT[b, t]) < 1e-4
  assert others > 5  # than without the penalty
