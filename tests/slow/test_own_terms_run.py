"""A run with terms and metrics of the user: docs/own_functions.md."""

import json
import re

import pytest
import tiny_session
from conftest import ROOT

from rl_reason import api

pytestmark = pytest.mark.slow
EXAMPLE = re.search(
    r'```python\n("""My own terms .*?)```',
    (ROOT / "docs" / "own_functions.md").read_text(),
    re.DOTALL,
)[1]
LOGGED = {
    "loss/my_terms:confidence(least=9)/mean",
    "loss/my_terms:imitation/mean",
    *("own/my_terms:lengths/all", "own/my_terms:lengths/correct"),
}


def test_a_run_with_own_terms_and_metrics(tmp_path, monkeypatch):
  """Terms without a coefficient change no number; others change the loss."""
  (tmp_path / "my_terms.py").write_text(EXAMPLE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  found = {}
  for name, terms in dict(
      plain="",
      watched="my_terms:confidence(least=9)*0,my_terms:imitation*0",
      added="my_terms:confidence(least=9)*0.5,my_terms:imitation*1..0.5",
  ).items():
    c = tiny_session.tiny_config()
    c.loss.terms, c.updates.minibatches = terms, 2
    c.log.metrics = "my_terms:lengths" if terms else ""
    c.reward.functions, c.dynamic_sampling.signal = "length*-0.1", "reward"
    api.train(c, workdir=tmp_path / name, show=False)
    lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    found[name] = [x for x in map(json.loads, lines) if x["stage"] == "rl"]
    page = (tmp_path / name / "report.html").read_text()
    assert ("my_terms:imitation" in page) == bool(terms)
  for plain, watched, added in zip(*found.values(), strict=True):
    assert watched.keys() - plain.keys() == LOGGED
    same = {x for x in plain if not x.startswith(("timing_s", "perf"))}
    assert {x: watched[x] for x in same} == {x: plain[x] for x in same}
    assert added.keys() == watched.keys()
    assert added["actor/loss"] != plain["actor/loss"]
