"""Differences between evaluations of the same prompts, worked by hand."""

import importlib
import types

import numpy as np
import pytest
from conftest import data_of_page
from test_evaluate import responses

from rl_reason.base import errors
from rl_reason.checks import run_directory
from rl_reason.evaluation import accuracy, side_by_side
from rl_reason.report import compare, paired
from rl_reason.stages import evaluate
from rl_reason.tasks import Row

Z2 = 1.959964**2


def test_the_interval_of_shares_by_hand():
  """1, 1, 0, -1 and half of +1, half of -1, a 0: the centre is 1/6.

  The squares are 3 + 1, so the variance is 4/6 - 1/36 = 23/36, over 6. Equal
  values have the interval of 1 / (N + 2) squared.
  """
  mean, half = paired.interval(np.array([1, 1, 0, -1.0]), share=True)
  assert mean == 1 / 4
  wanted = (Z2 * 23 / 36 / 6) ** 0.5 + 1 / 4 - 1 / 6
  assert half == pytest.approx(wanted, abs=1e-12)
  same = paired.interval(np.zeros(8), share=True)
  assert same == (0, pytest.approx((Z2 / 100) ** 0.5))


def test_the_interval_of_rewards_by_hand():
  """2 and 4: the mean is 3, the standard deviation 2 ** 0.5."""
  found = paired.interval(np.array([2.0, 4.0]), share=False)
  assert found == (3, pytest.approx(Z2**0.5))
  assert paired.interval(np.array([2.0]), share=False) == (2, 0)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("prompts", [2, 10, 100])
@pytest.mark.parametrize("gain", [0.0, 0.3])
def test_paired_intervals_cover_the_difference(gain, prompts, samples):
  """Of prompts whose difficulty both evaluations share."""
  rng = np.random.default_rng(0)
  old_SN = rng.beta(0.5, 0.5, (1000, prompts))
  new_SN = old_SN + gain * (1 - old_SN)
  values = [rng.binomial(samples, x) / samples for x in (new_SN, old_SN)]
  found = [paired.interval(x, share=True) for x in values[0] - values[1]]
  covered = np.mean([abs(mean - gain / 2) <= half for mean, half in found])
  assert covered > 0.93
  # The two means alone say less.
  if prompts == 100 and samples == 4:
    both = (values[0].var(1) + values[1].var(1)) / prompts
    assert np.mean([half for _, half in found]) < 0.75 * np.mean(
        1.96 * both**0.5
    )


def line(prompt, of_set="sums", measure="acc", **scores):
  names = {k.replace("_", "@"): x for k, x in scores.items()}
  return dict(set=of_set, measure=measure, prompt=prompt, scores=names)


def test_pairs_are_of_equal_prompts():
  """Repeated prompts pair in order; what is in one of the two is counted."""
  new = [line("a", greedy=1), line("a", greedy=0), line("b", greedy=1)]
  old = [line("c", greedy=1), line("a", greedy=0), line("a", greedy=1)]
  new += [line("x", "other", greedy=1), line("r", "essays", "reward", mean_4=3)]
  old += [line("r", "essays", "reward", mean_4=1.5, greedy=1)]
  values = paired.values_of(new), paired.values_of(old)
  first, essay = paired.differences(*values)
  assert first[:7] == ("sums", "acc", "greedy", 2, 2, 0.5, 0.5)
  assert first.half == paired.interval(np.array([1.0, -1]), share=True)[1]
  assert essay == ("essays", "reward", "mean@4", 1, 0, 3, 1.5, 0)
  lines = paired.unpaired("run/sft", [first, essay], values[0])
  assert lines[0].startswith("other: no problem and score in common with run/")
  copies = {("sums~numbers", "acc"): {}}
  [said] = paired.unpaired("run/sft", [], copies)
  assert said.endswith("evaluate both with the same evaluate.perturb")
  assert lines[1].startswith("sums: 2 prompts are not in both")
  rows = paired.table({"sft": [first, essay]})
  assert rows[0][:6] == ["sft", "sums", "greedy", "2", "50.0%", "50.0%"]
  assert rows[0][6] == f"+0.0 +- {100 * first.half:.1f}"
  assert rows[1][-1] == "+1.5 +- 0"


def test_pairs_are_of_equal_problems():
  """Rows of files pair across templates, and copies by their originals."""
  rows = [Row(f"{n}?", "1", columns={"n": n, "b": [1]}) for n in range(3)]
  other = [
      x._replace(prompt=f"<user> {x.prompt}", columns={"b": [1], **x.columns})
      for x in rows[::-1]
  ]
  made = responses([[1, 1], [0, 1], [0, 0]], [[0] * 2] * 3, [["1"] * 2] * 3)
  made = made._replace(mean_of=1)
  take = dict(answer=lambda text, row: text)
  values = [
      paired.values_of(accuracy.lines_of_prompts(made._replace(rows=x), **take))
      for x in (rows, other)
  ]
  found = {x.name: x for x in paired.differences(*values)}
  assert found["mean@1"].prompts == 3 and found["mean@1"].alone == 0
  [of_set] = values[0].values()
  [there] = values[1].values()
  assert [x["mean@1"] for x in of_set.values()] == [1, 0, 0]
  assert [there[x]["mean@1"] for x in of_set] == [0, 0, 1]
  copies = made._replace(
      rows=[Row("7?", "1"), Row("8?", "1")],
      correct_NG=made.correct_NG[:2],
      truncated_NG=made.truncated_NG[:2],
      texts_NG=made.texts_NG[:2],
  )
  lines = accuracy.lines_of_prompts(copies, originals=rows[1:], **take)
  assert [x["prompt"] for x in lines] == ["7?", "8?"]
  assert [*paired.values_of(lines)["sums", "acc"]] == [*of_set][1:]
  generated = accuracy.lines_of_prompts(made, **take)
  assert all(x["problem"] == x["prompt"] for x in generated)


def test_what_an_evaluation_writes_is_read(tmp_path):
  """The mean over the lines is the metric."""
  made = responses(
      [[1, 1, 0], [0, 1, 1], [0, 0, 0]], [[0] * 3] * 3, [["1"] * 3] * 3
  )
  take = dict(answer=lambda text, row: text)
  lines = accuracy.lines_of_prompts(made, **take)
  paired.write(tmp_path / "prompts-7.jsonl", lines)
  found = paired.read(tmp_path / "prompts-7.jsonl")
  assert found == paired.values_of(lines)
  metrics = accuracy.summarize(made, **take)
  [of_prompts] = found.values()
  for name in ("mean@2", "greedy", "maj@2", "pass@2"):
    mean = np.mean([x[name] for x in of_prompts.values()])
    assert metrics[f"val-core/sums/acc/{name}"] == pytest.approx(mean)


def test_evaluations_are_compared_on_the_screen_and_on_the_page(tmp_path):
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
  assert run_directory.evaluations(c.evaluate.against) == [*others]
  place = own / "prompts-newest.jsonl"
  values = evaluate._compared(others, new, place, display)
  name = "val-aux/sums/minus_two:newest/acc/greedy"
  assert values[name] == 1 and 0 < values[f"{name}/ci95"] < 1
  assert len(values) == 4 and all("1 prompts are not in" in x for x in said)
  [(_, head, rows)] = tables
  assert len(head) == len(rows[0])
  labels = ["one/sft,task.difficulties=7+8", "two/newest"]
  assert [row[0] for row in rows] == labels
  c.evaluate.against = f"{sft},nowhere.jsonl"
  with pytest.raises(errors.ConfigError, match="no file nowhere.jsonl; --sta"):
    run_directory.evaluations(c.evaluate.against)
  (tmp_path / "samples.jsonl").write_text('{"stage": "rl", "prompt": "1"}\n')
  with pytest.raises(errors.RunError, match="samples.jsonl: is no prompts-WH"):
    paired.read(tmp_path / "samples.jsonl")
  path = compare.write([own, other])
  page = data_of_page(path.read_text(encoding="utf-8"), "compare")
  assert len(page["paired"][0]) == len(page["paired"][1])
  assert page["paired"][1][:6] == [
      *("two/newest", "sums", "greedy", "3", "100.0%", "0.0%")
  ]
  assert page["paired"][1][6].startswith("-100.0 ± ")


def evaluation(path, greedy, of_set="sums"):
  """An evaluation of the prompts a, b, c with these greedy scores."""
  lines = [
      line(x, of_set, greedy=y) for x, y in zip("abc", greedy, strict=False)
  ]
  mean = sum(greedy) / len(greedy)
  metrics = {f"val-core/{of_set}/acc/greedy": mean}
  metrics[f"val-aux/{of_set}/response_length/mean"] = 9.0
  metrics[f"val-aux/{of_set}/difficulty_2/acc/mean@1"] = 1.0
  return side_by_side.Evaluation(path, metrics, paired.values_of(lines))


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
