"""Differences between evaluations of the same prompts, worked by hand."""

import numpy as np
import pytest
from conftest import data_of_page
from test_evaluate import responses

from rl_reason.base import errors
from rl_reason.evaluation import accuracy
from rl_reason.report import compare, paired
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


def test_runs_are_compared_on_their_page(tmp_path):
  """Evaluations of the same name, paired; a damaged file is named."""
  for run in ("one", "two"):
    (tmp_path / run).mkdir()
    (tmp_path / run / "metrics.jsonl").write_text("")
  own, other = tmp_path / "one", tmp_path / "two"
  paired.write(own / "prompts-newest.jsonl", [line(x, greedy=1) for x in "abc"])
  old = [line(x, greedy=0) for x in "abcd"]
  paired.write(other / "prompts-newest.jsonl", old)
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
