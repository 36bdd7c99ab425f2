"""The study of problems that RL has not seen: sets, differences, verdicts."""

import pytest

from rl_reason.base import config
from rl_reason.checks import config_checks
from studies.out_of_distribution import run

pytestmark = pytest.mark.slow  # a study is frozen with its data


def result(**gains):
  """Three seeds: SFT at 20% on all sets, and what GRPO and DAPO gain."""
  runs = []
  for seed, offset in enumerate((-0.01, 0.0, 0.01)):
    scores = {run.SFT: dict.fromkeys(run.SETS, 0.2)}
    for row in run.ROWS:
      scores[row] = {x: 0.2 + gains.get(x, 0.0) + offset for x in run.SETS}
    runs.append(dict(seed=seed, scores=scores))
  return dict(runs=runs, command="", environment={}, seeds=[0, 1, 2])


def test_rl_sees_less_than_sft():
  for name in run.ROWS:
    c, _ = config_checks.checked(run.ROWS[name], run.FIELDS)
    fields = config.flat(c)
    assert {*run.OWN} == {*fields["task.difficulties"]}
    seen = {*fields["sft.difficulties"]}
    for x in run.SEEN:
      assert {*run.SETS[x].difficulties} <= seen - {*run.OWN}
    assert not seen & {*run.SETS["longest"].difficulties}


def test_differences_by_hand():
  found = result(own=0.5, longer=0.3, longest=0.02)
  assert run.gains(found, run.GRPO, "longer") == pytest.approx([29, 30, 31])
  assert run.retained(found, run.GRPO, "longer") == pytest.approx([-20] * 3)
  assert run.gains(found, run.DAPO, "own", run.GRPO) == pytest.approx([0] * 3)


def test_verdicts():
  by_words = {
      words: verdict
      for words, _, verdict in run.verdicts(
          result(own=0.5, numbers=0.5, longer=0.3, both=-0.1, longest=0.02)
      )
  }
  of = {x.split(":")[0] + x[-20:]: y for x, y in by_words.items()}
  assert len(of) == len(by_words)
  assert by_words[f"1. GRPO gains on: {run.SETS['longer'].title}"] == "held"
  assert by_words[f"1. GRPO gains on: {run.SETS['operator'].title}"] == "open"
  assert by_words[f"1. DAPO gains on: {run.SETS['both'].title}"] == "refuted"
  assert [y for x, y in by_words.items() if x[0] in "2345"] == ["held"] * 13


def test_the_page_begins_with_the_finding():
  lines = run.page(result(own=0.5, longer=0.3))
  assert "+50.0" in lines[2] and "+30.0" in lines[2]
