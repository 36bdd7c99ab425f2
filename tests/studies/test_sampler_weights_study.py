"""The table of the study of rounded sampler weights."""

import pytest

from studies.sampler_weights import run as sampler_weights

pytestmark = pytest.mark.slow


def test_the_table_of_sampler_weights():
  """From made-up measurements: real ones take minutes."""
  common = dict(kl=2e-4, tokens=1234, largest=0.5, beyond=0.0)
  runs = [
      dict(
          name=name, seed=seed, before=0.25, after=0.5 + seed, gap=0.1, **common
      )
      for name in sampler_weights.ROWS
      for seed in (0, 0.25)
  ]
  policies = [dict(kind=kind, **common) for kind in sampler_weights.PRECISIONS]
  environment = dict(environment=dict(jax="0.10.2", XLA_FLAGS=""))
  lines = sampler_weights.page(
      dict(seeds=[0, 1], runs=runs, policies=policies, **environment)
  )
  text = "\n".join(lines)
  wanted = "| int8 both | 25.0% (25.0% to 25.0%) | 62.5% (50.0% to 75.0%) |"
  assert wanted in text and "at least 1,234 tokens" in text
  assert text.endswith("Ours: jax 0.10.2.")
