"""Values of prefixes in whole runs: sampled, judged and learned from."""

import json

import jax
import numpy as np
import pytest
import tiny_session
from tiny_session import half_correct as half_correct

from rl_reason.collect.experience import credit_inputs
from rl_reason.data import tokenizer
from rl_reason.stages import build_step, learn

pytestmark = pytest.mark.slow
# An untrained model writes no equations: each second character ends a step.
FUNCTION = """
def pairs(response, row):
  places = range(2, len(response.text) + 1, 2)
  return [(n, float(response.text[n - 1].isdigit())) for n in places]
"""


def session_of(tmp_path, monkeypatch, **fields):
  (tmp_path / "judged_pairs.py").write_text(FUNCTION)
  monkeypatch.syspath_prepend(tmp_path)
  usual = dict(
      reward__functions="judged_pairs:pairs*0.5",
      reward__process="rewards",
      advantage__name="vine",
  )
  return tiny_session.make_session(tmp_path / "run", **usual | fields)


def test_a_run_learns_from_values_of_prefixes(
    tmp_path, half_correct, monkeypatch
):
  session = session_of(tmp_path, monkeypatch, rollout__slots=8)
  tiny_session.call(learn.run, session, "all")
  lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  rl = [x for x in map(json.loads, lines) if x["stage"] == "rl"]
  assert len(rl) == 2
  for line in rl:
    assert line["train/prefixes"] > 0 and line["actor/update_skipped"] == 0


@pytest.mark.parametrize("temperature", [1e-6, 1.0])
def test_continuations(temperature, tmp_path, half_correct, monkeypatch):
  """Prefixes are kept, and judged with their continuations.

  At temperature 0 there is one continuation of a prefix: the response itself.
  """
  session = session_of(
      tmp_path,
      monkeypatch,
      advantage__continuations=4,
      rollout__temperature=temperature,
      rollout__slots=24,
  )
  reward, seen = build_step.reward(session.config), []
  with jax.set_mesh(session.mesh):
    collector = tiny_session.collector(
        session, "rollout", engine=session.engine
    )
    params = tiny_session.random_params(session)
    weights = session.engine.weights(params, "same")
    rows = collector.collect(weights)
    grade = collector._grade

    def watched(parts, rows_B):
      seen.append(grade(parts, rows_B))
      return seen[-1]

    monkeypatch.setattr(collector, "_grade", watched)
    metrics = {"tokens/generated": 1000}
    out, metrics = collector.finish(rows, metrics, weights=weights, step=1)
  total_B = np.asarray(reward(credit_inputs(rows, progress=np.float32(0.5))))
  assert metrics["train/prefixes_failed"] == 0
  np.testing.assert_array_equal(out.correct_B, rows.correct_B)

  # The prefixes, in order; all calls but the last one are full.
  r, ends_BT = rows.rollouts, rows.steps.ends_BT
  prefixes = [
      (b, t) for b, t in np.argwhere(ends_BT).tolist() if t + 1 < r.lengths_B[b]
  ]
  assert metrics["train/prefixes"] == len(prefixes) > 6
  found = [
      jax.tree.map(lambda x, n=n: x[4 * n : 4 * n + 4], call[0])
      for call in seen
      for n in range(6)
  ][: len(prefixes)]
  slots = r.tokens_BL.shape[1] - r.mask_BT.shape[1]
  tokens, several = 0, 0
  for (b, t), continued in zip(prefixes, found, strict=True):
    until = slots + t + 1
    same = continued.tokens_BL[:, :until] == r.tokens_BL[b, :until]
    assert same.all()
    tokens += (continued.lengths_B - t - 1).sum()
    several += len({x.tobytes() for x in continued.tokens_BL}) > 1
  assert metrics["tokens/continuations"] == tokens > 0
  assert metrics["tokens/generated"] == 1000 + tokens

  # The mean of their rewards, of verdicts and of steps.
  places = np.zeros_like(ends_BT)
  places[tuple(np.array(prefixes).T)] = True
  assert not out.steps.returns_BT[~places].any()
  if temperature < 1:
    wanted = np.repeat(total_B, places.sum(1))
    np.testing.assert_allclose(out.steps.returns_BT[places], wanted, rtol=1e-6)
    assert not several
    return
  assert several > len(prefixes) / 2
  for (b, t), continued in zip(prefixes, found, strict=True):
    texts = tokenizer.decode(
        session.tok, continued.tokens_BL[:, slots:], continued.lengths_B
    )
    verdicts = np.array([len(x) % 2 for x in texts]) & ~continued.truncated_B
    steps = [sum(map(str.isdigit, x[1::2])) for x in texts]
    mean = np.mean(2 * verdicts - 1 + 0.5 * np.array(steps))
    assert out.steps.returns_BT[b, t] == pytest.approx(mean, rel=1e-5)
