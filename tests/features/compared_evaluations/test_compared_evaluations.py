"""Evaluations compared: with others, side by side, by difficulty and budget."""

import importlib
import json
import types

import numpy as np
import pytest
from test_evaluate import responses, two_samples
from test_paired import line

from rl_reason.base import errors
from rl_reason.evaluation import accuracy, statistics
from rl_reason.features import compared_evaluations
from rl_reason.features.compared_evaluations import differences, side_by_side
from rl_reason.report import paired
from rl_reason.stages import evaluate
from rl_reason.stages.run_output import Output


def test_what_has_no_partner_is_said():
  new = [line("a", greedy=1), line("a", greedy=0), line("b", greedy=1)]
  old = [line("c", greedy=1), line("a", greedy=0), line("a", greedy=1)]
  new += [line("x", "other", greedy=1)]
  values = paired.values_of(new), paired.values_of(old)
  lines = differences.unpaired(
      "run/sft", paired.differences(*values), values[0]
  )
  assert lines[0].startswith("other: no problem and score in common with run/")
  assert lines[1].startswith("sums: 2 prompts are not in both")
  copies = {("sums~numbers", "acc"): {}}
  [said] = differences.unpaired("run/sft", [], copies)
  assert said.endswith("evaluate both with the same evaluate.perturb")


@pytest.mark.parametrize(
    ("mean_of", "means"), [(2, (0.75, 0.0)), (1, (0.5, 0.0))]
)
def test_a_line_by_difficulty(mean_of, means):
  text = differences.by_difficulty(two_samples()._replace(mean_of=mean_of))
  assert text.startswith(
      f"sums, mean@{mean_of} by difficulty: 2: {means[0]:.1%}"
  )
  assert "; " not in text and ", 3: 0.0% +- " in text


def test_accuracy_by_the_maximum_of_tokens():
  """Of one sampling: what a lower limit would have cut is incorrect."""
  x = two_samples()
  longest = int(x.lengths_NG.max())
  full, half = differences.within_budget(x, longest)
  assert full == x.correct_NG[:, :2].mean() and half > 0
  means = [differences.within_budget(x, t)[0] for t in range(longest + 1)]
  assert means == sorted(means) and means[0] == 0 and means[-1] == full
  cut = x._replace(lengths_NG=x.lengths_NG + 10 * x.correct_NG)
  assert differences.within_budget(cut, longest)[0] == 0


def test_evaluations_are_compared_on_the_screen(tmp_path):
  """With another step of the run, whose name has a comma, and another run."""
  for run in ("one", "two"):
    (tmp_path / run).mkdir()
    (tmp_path / run / "metrics.jsonl").write_text("")
  old = [line(x, greedy=0) for x in "abcd"]
  own, other = tmp_path / "one", tmp_path / "two"
  sft = own / "prompts-sft,task.difficulties=7+8.jsonl"
  paired.write(sft, old)
  paired.write(own / "prompts-newest.jsonl", [line(x, greedy=1) for x in "abc"])
  paired.write(other / "prompts-newest.jsonl", old)
  c = importlib.import_module("configs.base").get_config()
  c.evaluate.against = f"{sft},{other / 'prompts-newest.jsonl'}"
  said, tables = [], []
  display = types.SimpleNamespace(
      say=said.append, table=lambda *x: tables.append(x)
  )
  new = paired.read(own / "prompts-newest.jsonl")
  others = {x: paired.read(x) for x in (sft, other / "prompts-newest.jsonl")}
  assert compared_evaluations.files(c) == [*others]
  place = own / "prompts-newest.jsonl"
  values = differences.compared(others, new, place, display)
  name = "val-aux/sums/minus_two:newest/acc/greedy"
  assert values[name] == 1 and 0 < values[f"{name}/ci95"] < 1
  assert len(values) == 4 and all("1 prompts are not in" in x for x in said)
  [(_, head, rows)] = tables
  assert len(head) == len(rows[0])
  labels = ["one/sft,task.difficulties=7+8", "two/newest"]
  assert [row[0] for row in rows] == labels
  c.evaluate.against = f"{sft},nowhere.jsonl"
  with pytest.raises(errors.ConfigError, match="no file nowhere.jsonl; --sta"):
    compared_evaluations.files(c)
  # A file of another kind is refused before anything is sampled.
  (tmp_path / "samples.jsonl").write_text('{"stage": "rl", "prompt": "1"}\n')
  with pytest.raises(errors.RunError, match="samples.jsonl: is no prompts-WH"):
    differences.Compared([tmp_path / "samples.jsonl"], display)


def evaluation(path, greedy, of_set="sums"):
  """An evaluation of the prompts a, b, c with these greedy scores."""
  lines = [
      line(x, of_set, greedy=y) for x, y in zip("abc", greedy, strict=False)
  ]
  mean = sum(greedy) / len(greedy)
  metrics = {f"val-core/{of_set}/acc/greedy": mean}
  metrics[f"val-aux/{of_set}/response_length/mean"] = 9.0
  metrics[f"val-aux/{of_set}/difficulty_2/acc/mean@1"] = 1.0
  return evaluate.Evaluation(path, metrics, lines, {})


def test_evaluations_of_a_command_are_in_one_table(tmp_path):
  """Three policies; the last one has two of the three prompts.

  Of the common prompts, 1 and 0 against 0 and 0: half of a point in two.
  """
  sft = evaluation(tmp_path / "a" / "prompts-sft.jsonl", [1, 0, 0])
  best = evaluation(tmp_path / "a" / "prompts-best.jsonl", [1, 1, 0])
  other = evaluation(tmp_path / "b" / "prompts-best.jsonl", [0, 0])
  head, rows = side_by_side.table([sft, best, other])
  assert head == ["set", "score", "pairs", "a/sft", "a/best", "b/best"]
  score, length = rows
  halves = [
      paired.interval(np.array(x, float), share=True)[1]
      for x in ([0, 1, 0], [-1, 0])
  ]
  assert score == [
      *("sums", "greedy", "2", "33.3%"),
      f"66.7% (+33.3 +- {100 * halves[0]:.1f})",
      f"0.0% (-50.0 +- {100 * halves[1]:.1f})",
  ]
  assert length == ["sums", "response length", side_by_side.NONE] + ["9.0"] * 3
  essays = evaluation(tmp_path / "c" / "prompts-1.jsonl", [1], "es|says")
  head, rows = side_by_side.table([sft, essays])
  assert rows[-2] == ["es|says", "greedy", *side_by_side.NONE * 2, "100.0%"]
  first, second, *_, last = side_by_side.markdown(head, rows).splitlines()
  assert first == "| set | score | pairs | a/sft | c/1 |"
  assert second == "| --- | --- | --- | --- | --- |"
  assert last == "| es\\|says | response length | – | – | 9.0 |"


def test_checkpoints_of_one_command_are_compared(tmp_path, monkeypatch):
  """Both with the first one; a table has all of them."""
  truncated_NG, texts_NG = [[0] * 3] * 3, [["1"] * 3] * 3
  correct = dict(
      sft=[[0, 0, 0], [0, 1, 0], [0, 0, 0]],
      best=[[1, 1, 0], [0, 1, 0], [1, 1, 1]],
  )
  answer = lambda text, row: text  # noqa: E731

  def evaluated(c, session, params, *_, **__):
    made = [responses(correct[params], truncated_NG, texts_NG)]
    made[0].lengths_NG[0, 0] = 20
    found = accuracy.summarize_sets(made, (), answer, score_of=2)
    return found | {"val-aux/perhaps_right": 2}, made

  tables = []
  monkeypatch.setattr(evaluate, "evaluate", evaluated)
  monkeypatch.setattr(
      evaluate.trained_parameters,
      "policy",
      lambda c, x, **_: (x, None, 7, f"policy {x}"),
  )
  monkeypatch.setattr(
      evaluate.trained_parameters,
      "require",
      lambda c, x, output: None,
  )
  c = importlib.import_module("configs.base").arithmetic()
  c.evaluate.update(mean_of=2, validation=False)
  display = types.SimpleNamespace(
      say=lambda text: None, table=lambda *x: tables.append(x)
  )
  session = types.SimpleNamespace(
      output=Output(tmp_path, None, display, None),
      row_source=types.SimpleNamespace(
          task=types.SimpleNamespace(answer=answer), files=None
      ),
      model=types.SimpleNamespace(mesh=None),
      **dict.fromkeys(("tok", "engine", "reward_runner", "environments")),
  )
  done = evaluate.run(c, session, "sft, best,sft")
  assert len(done) == 2
  names = [x.path.name for x in done]
  assert names == ["prompts-sft.jsonl", "prompts-best.jsonl"]
  metrics = json.loads((tmp_path / "evaluation-best.json").read_text())
  name = "val-aux/sums/minus_sft/acc"
  assert metrics[f"{name}/mean@2"] == pytest.approx(2 / 3)
  assert metrics[f"{name}/greedy"] == pytest.approx(1 / 3)
  first = json.loads((tmp_path / "evaluation-sft.json").read_text())
  assert not any("minus" in x for x in first)
  title, head, rows = tables[-1]
  assert "difference from sft, paired" in title and head[3:] == ["sft", "best"]
  mean = next(row for row in rows if row[1] == "mean@2")
  assert mean[3].startswith("16.7% +- ") and "(+66.7 +- " in mean[4]
  assert (tmp_path / side_by_side.FILE).read_text().count("\n") == 2 + len(rows)
  # Another work directory, whose policy comes second.
  (tmp_path / "other").mkdir()
  session.output = session.output._replace(workdir=tmp_path / "other")
  done = evaluate.run(c, session, "best", earlier=done[:1])
  assert tables[-1][1][3:] == ["sft", "other/best"]
  # A correct response has 20 tokens: at an eighth and a quarter it is cut.
  for tokens, mean_N in ((6, [0.5, 0.5, 1]), (24, [1, 0.5, 1])):
    name = f"val-aux/sums/within_{tokens}_tokens/mean@2"
    mean, half = statistics.interval("acc", np.array(mean_N))
    assert metrics[name] == pytest.approx(mean)
    assert metrics[f"{name}/ci95"] == pytest.approx(half)
  # One evaluation has no table of several.
  count = len(tables)
  assert len(evaluate.run(c, session, "best")) == 1
  assert len(tables) == count + 1
