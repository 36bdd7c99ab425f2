"""Rejected responses that may be right are listed, and only listed."""

import functools
import types

import numpy as np
import pytest
import test_collect
import test_evaluate
import test_no_verifier
import test_report
import tiny

from rl_reason import tasks
from rl_reason.base import json_files
from rl_reason.collect import doubtful_verdicts
from rl_reason.evaluation import accuracy
from rl_reason.monitoring import run_log, samples
from rl_reason.report import page
from rl_reason.tasks import files

ROWS = [
    tasks.Row("a third?", "\\frac13", kind="math"),
    tasks.Row("which?", "B", kind="choice"),
    tasks.Row("a length?", "5 cm", kind="math"),
    tasks.Row("a story", "", kind="none"),
]
TEXTS = ["\\boxed{0.333}", "B or C", "\\boxed{5 m}", "5"]
FOUND = dict(prompt="p", answer="1/3", response="0.333", why="equal")


class Reader:
  """Reads every response leniently, and counts them."""

  def __init__(self):
    self.read = []

  def read_leniently(self, pairs):
    self.read += [text for text, _ in pairs]
    return ["a reason" if text.endswith("!") else "" for text, _ in pairs]


def test_the_verifiers_of_files_read_leniently_in_their_processes():
  """No verdict changes: what is listed was rejected, and stays so."""
  verifier = files.Verifier(1, 20.0)
  try:
    pairs = list(zip(TEXTS, ROWS, strict=True))
    assert verifier.begin(pairs)() == [False, False, False, False]
    assert verifier.read_leniently(pairs) == [
        "equal up to rounding",
        "",
        "the same but for units or brackets",
        "",
    ]
    assert verifier.begin(pairs)() == [False, False, False, False]
  finally:
    verifier.close()


def test_few_responses_are_read_evenly_spaced():
  task, texts = Reader(), [f"{n}{'!' * (n % 2)}" for n in range(100)]
  rows = [tasks.Row(f"p{n}", "x" * 2000) for n in range(100)]
  found = doubtful_verdicts.find(task, texts, rows, np.arange(2, 100))
  assert len(task.read) == doubtful_verdicts.MOST
  assert task.read[0] == "2" and task.read[-1] == "99!"
  assert [x["response"] for x in found] == [
      x for x in task.read if x[-1] == "!"
  ]
  assert {x["why"] for x in found} == {"a reason"}
  assert all(len(x["answer"]) < 900 for x in found)
  assert doubtful_verdicts.find(object(), texts, rows, np.arange(100)) == []


def test_a_step_reads_its_first_rounds_only():
  """Neither truncated responses, nor any that nothing could judge."""
  task = Reader()
  step = doubtful_verdicts.Doubtful(task)
  texts = [f"{n}!" for n in range(6)]
  rows = [tasks.Row("p", "a")] * 6
  correct_B = np.array([0, 1, -1, 0, 0, 0])
  truncated_B = np.array([0, 0, 0, 0, 0, 1]) > 0
  for _ in range(4):
    step.responses(texts, rows, correct_B, truncated_B)
  assert len(task.read) == doubtful_verdicts.MOST == len(step.found())
  assert set(task.read) == {"0!", "3!", "4!"}
  assert step.counts() == {"train/perhaps_right": doubtful_verdicts.MOST}
  step.clear()
  assert step.found() == [] and step.counts() == {"train/perhaps_right": 0}
  assert doubtful_verdicts.Doubtful(object()).counts() == {}


@pytest.mark.parametrize("reads", [False, True])
def test_a_collector_counts_and_hands_them_on(tmp_path, reads, monkeypatch):
  collector = test_collect.instant(tmp_path)()
  if reads:
    reader = types.SimpleNamespace(read_leniently=lambda x: ["why"] * len(x))
    monkeypatch.setattr(
        collector, "doubtful", doubtful_verdicts.Doubtful(reader)
    )
  collector.start_step()
  rows = collector.collect("weights")
  counts = collector.counts()
  assert len(counts["doubtful"]) == (doubtful_verdicts.MOST if reads else 0)
  assert ("train/perhaps_right" in counts["responses"]) is reads
  if reads:
    incorrect = int((rows.correct_B == 0).sum())
    assert incorrect >= doubtful_verdicts.MOST
    assert set(counts["doubtful"][0]) == set(FOUND)


def test_their_lines_are_of_a_stage_of_their_own(tmp_path):
  log = run_log.Log(tmp_path)
  samples.SampleLog.doubtful(types.SimpleNamespace(_log=log), 3, [FOUND])
  samples.SampleLog.doubtful(types.SimpleNamespace(_log=log), 4, [])
  lines = json_files.read_jsonl(tmp_path / "samples.jsonl")
  assert lines == [dict(stage="doubtful", step=3) | FOUND]


def test_the_report_lists_each_once_and_the_screen_counts(tmp_path):
  """They are no group of responses, and there is no line without any."""
  rows = [test_report.sample("rl", 1), test_report.sample("evaluate", 0)]
  folder = test_report.put(tmp_path, rows=rows)
  before = test_report.data_of(folder)
  assert before["doubtful"] == [] and page.doubtful_summary(folder) == []
  extra = [
      dict(stage="doubtful", step=step) | FOUND | dict(response=text)
      for step, text in ((1, "0.3"), (2, "0.3"), (3, "<b>"))
  ]
  folder = test_report.put(tmp_path, rows=[*rows, *extra])
  after = test_report.data_of(folder)
  assert [x["response"] for x in after["doubtful"]] == ["<b>", "0.3"]
  assert after["doubtful"][0]["why"] == "equal"
  assert after["groups"] == before["groups"]
  assert after["pairs"] == before["pairs"]
  (line,) = page.doubtful_summary(folder)
  assert line.startswith("rejected, perhaps right: 3 responses")


def test_an_evaluation_reads_rejected_responses():
  """Only of its own prompts, not of the ones that fill up a batch."""
  task = Reader()
  task.verify = lambda text, row: row.prompt == "1+1"
  task.answer = lambda text, row: text
  task.begin = lambda pairs: lambda: [task.verify(*pair) for pair in pairs]
  rows = [tasks.Row(f"{n}+1", "a", kind="math") for n in (1, 2)]
  respond = functools.partial(
      accuracy.respond,
      lambda *_: (test_no_verifier.rollouts(), None),
      tiny.TOK,
      task,
      "sums",
      rows,
      batch=3,
      max_prompt=3,
      num_lines=1,
      mean_of=1,
      progress=lambda _: None,
  )
  found = respond()
  assert found.correct_NG.tolist() == [[1, 1], [0, 0]]
  assert len(task.read) == 2 and found.doubtful == []
  task.read_leniently = lambda pairs: ["why"] * len(pairs)
  found = respond()
  assert [x["prompt"] for x in found.doubtful] == ["2+1", "2+1"]
  assert found.correct_NG.tolist() == [[1, 1], [0, 0]]


def test_an_evaluation_counts_them():
  """Only where the task can read leniently, so that no metric is new."""
  sets = [test_evaluate.two_samples()]
  summarize = lambda sets: accuracy.summarize_sets(  # noqa: E731
      sets, {"sums"}, lambda text, row: text, score_of=2
  )
  assert "val-aux/perhaps_right" not in summarize(sets)
  found = summarize([sets[0]._replace(doubtful=[FOUND])])
  assert found["val-aux/perhaps_right"] == 1
  text = test_evaluate.results.responses_page(
      "a run", {}, [sets[0]._replace(doubtful=[FOUND])]
  )
  assert '"why":"equal"' in text and "Rejected, perhaps right" in text
