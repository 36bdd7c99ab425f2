"""Slots, caches and continued responses at sizes that take longer."""

import numpy as np
import pytest
import test_rollout as r
import tiny

from rl_reason.models import attention
from rl_reason.rollout import decode_loop, sampler

pytestmark = pytest.mark.slow
long = r.long  # the fixture


@pytest.mark.parametrize(
    "slots, chunk, burst, block, buckets, cache, atol",
    [
        (64, 8, 8, 128, 4, "same", 1e-5),
        (24, 1, 3, 64, 2, "same", 1e-5),
        # What rounds the other way is a step of int8 away, not a rounding.
        (24, 2, 8, 128, 4, "int8", 1e-3),
        (64, 2, 8, 128, 4, "int8", 1e-3),
    ],
)
def test_no_number_of_slots_changes_a_token(
    slots, chunk, burst, block, buckets, cache, atol, monkeypatch
):
  """>= 10k tokens; scales of int8 are copied and halved with their slots."""
  how = dict(max_tokens=300, limits_B=r.tails(1024, 300), eos=-1, cache=cache)
  want = r.sample(tiny.prompts(128), 8, **how)
  assert want.lengths_B.sum() > 10_000
  monkeypatch.setattr(attention, "BLOCK", block)
  monkeypatch.setattr(attention, "BUCKETS", buckets)
  monkeypatch.setattr(decode_loop, "CHUNK", chunk)
  monkeypatch.setattr(decode_loop, "BURST", burst)
  sampler.program.cache_clear()
  got = r.sample(tiny.prompts(128), 8, slots=slots, **how)
  sampler.program.cache_clear()
  np.testing.assert_array_equal(got.tokens_BL, want.tokens_BL)
  np.testing.assert_allclose(got.logps_BT, want.logps_BT, atol=atol)


def test_an_int8_cache_samples_from_a_policy_that_is_near():
  """KL of sampler to trainer, nats a token, by an estimator that is >= 0."""
  rows = r.sample_long(cache="int8")
  gap = np.asarray(rows.logps_BT - r.trainer_logps(rows), np.float64)
  gap = gap[rows.mask_BT]
  kl = np.mean(np.expm1(-gap) + gap)
  assert 1e-3 < np.abs(gap).max() < 0.1 and 1e-8 < kl < 1e-4


@pytest.mark.parametrize("slots", [128, 16])
def test_resumed_rollouts_have_the_same_tokens_in_slots(slots, long):
  """In 16 slots most responses start again."""
  r.test_resumed_rollouts_have_the_same_tokens(long, slots)
