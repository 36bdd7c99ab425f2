"""Process rewards in whole runs: they are placed, kept and learned from."""

import json

import pytest
import tiny_session
from feature_fields import there
from tiny_session import half_correct as half_correct

from rl_reason.stages import learn

pytestmark = pytest.mark.slow
# An untrained model writes no equations: each second character ends a step.
FUNCTION = """
def pairs(response, row):
  places = range(2, len(response.text) + 1, 2)
  return [(n, float(response.text[n - 1].isdigit())) for n in places]
"""

PLACES = {
    "replay": dict(
        advantage__name="returns_by_turn",
        reward__process="potentials",
        **there(rollout__replay=1, correction__name="truncate"),
    ),
    "critic": dict(advantage__name="gae_by_turn", critic__pretrain_steps=1),
    "ahead": dict(advantage__name="process_norm", rl__staleness=1),
}


def session_of(tmp_path, monkeypatch, **fields):
  (tmp_path / "judged_pairs.py").write_text(FUNCTION)
  monkeypatch.syspath_prepend(tmp_path)
  usual = dict(
      reward__functions="judged_pairs:pairs*0.5", reward__process="rewards"
  )
  return tiny_session.make_session(tmp_path / "run", **usual | fields)


@pytest.mark.parametrize("name", PLACES)
def test_runs_with_process_rewards(name, tmp_path, half_correct, monkeypatch):
  (tmp_path / "judged_pairs.py").write_text(FUNCTION)
  monkeypatch.syspath_prepend(tmp_path)
  fields = dict(
      reward__functions="judged_pairs:pairs*0.5", reward__process="rewards"
  )
  session = tiny_session.make_session(tmp_path / "run", **fields | PLACES[name])
  tiny_session.call(learn.run, session, "all")
  lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  rl = [x for x in map(json.loads, lines) if x["stage"] == "rl"]
  assert len(rl) == 2
  for line in rl:
    assert line["process/steps/max"] > 0
    assert line["reward/judged_pairs:pairs/failures"] == 0
    assert line["actor/update_skipped"] == 0
