"""The signs of the ladder on chains, and its page."""

import numpy as np
import pytest

from bench import results
from studies.chain import run as chain

pytestmark = pytest.mark.slow


def test_the_advantage_of_a_first_token_by_hand():
  """lambda 1 gives the return minus the value before the token."""
  half, most, whole = chain.advantages(np.array([-0.9, 0.1, 0.4]), 1.0)
  errors = (1.0, 0.3, 0.6)  # 0.1 + 0.9, 0.4 - 0.1, 1 - 0.4
  assert whole == pytest.approx(1.9)
  assert half == pytest.approx(errors[0] + 0.5 * errors[1] + 0.25 * errors[2])
  assert most == pytest.approx(1.0 + 0.95 * 0.3 + 0.9025 * 0.6)


def test_the_page_of_the_ladder_gives_the_sign_of_each_technique(monkeypatch):
  """Differences are paired by seed; the order of the rows is the ladder's."""
  gains = {"PPO": 0.0, "+ value pretraining": 0.2, chain.LAST: 0.1}
  gains |= {chain.TOKEN_LEVEL: 0.1}

  def run(row, seed, scale=1.0):
    end = 0.1 * seed + scale * gains[row] + 0.01 * seed * gains[row]
    points = dict(step=[0, 15, 30], accuracy=[0, end, end])
    return dict(row=row, seed=seed, evaluate=points)

  rows = [[row, "", {}] for row in gains]
  runs = [run(row, seed) for row in gains for seed in range(3)]
  data = {"chain": dict(rows=rows, seeds=[0, 1, 2], runs=runs)}
  monkeypatch.setattr(results, "read", lambda name: data.get(name, {}))
  first = dict(count=2, advantage=[1.0, 2.0, 3.0], value=[-0.5, 0.5])
  one = dict(tokens=64, row="PPO", seed=0, chain=first)
  text = "\n".join(chain.page(dict(environment={}, runs=[one])))
  assert "| 30.2 ± 25.3 | +20.2 ± 0.5 | reproduced | 3 |" in text
  assert "| -10.1 ± 0.2 | opposite | 3 |" in text
  assert "| VAPO - PPO | +10.1 ± 0.2 |" in text
  assert "| 64 | PPO | 2 | -0.50 | +0.50 | +1.00 | +2.00 | +3.00 |" in text
  assert "128 tokens, after" not in text and "The gap" not in text
  assert "VAPO - PPO, twice" not in text  # a row that was not run
  # VAPO is 10 points ahead of PPO at 64 tokens, and 20 at 256, on two seeds.
  more = [run(row, seed, 2.0) for row in gains for seed in (0, 1)]
  data["chain-256"] = dict(rows=rows, seeds=[0, 1, 2], runs=more)
  text = "\n".join(chain.page(dict(environment={}, runs=[one])))
  assert "| 256 less 64 | +10.0 ± 0.0 | +10.0 ± 0.0 | 2 |" in text
