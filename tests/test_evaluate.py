"""Metrics of an evaluation, worked by hand; grading; the page of responses."""

import importlib
import itertools
import json
import shutil
import types

import numpy as np
import pytest
from conftest import data_of_page, found_in_browser

from rl_reason.base import feature
from rl_reason.base.structs import Rollouts
from rl_reason.collect import grading
from rl_reason.data import held_out, tokenizer
from rl_reason.evaluation import (
    accuracy,
    results,
    set_table,
    statistics,
)
from rl_reason.report import calibration, page, scores
from rl_reason.stages import evaluate, interim
from rl_reason.stages.run_output import Output
from rl_reason.tasks import Row, arithmetic


def test_mean_interval_by_hand():
  """1, 0, 1, 0.5 have mean 0.625 and std 0.47871355 (ddof 1).

  0.140625 + 0.390625 + 0.140625 + 0.015625 = 0.6875; / 3 = 0.22916667; its
  root is the std; the half-width is 1.96 * 0.47871355 / sqrt(4) = 0.46913928.
  """
  mean, half = statistics.mean_interval(np.array([1, 0, 1, 0.5]))
  assert mean == 0.625
  assert half == pytest.approx(0.46913928, abs=1e-8)
  assert statistics.mean_interval(np.full(5, 0.5)) == (0.5, 0)
  assert statistics.mean_interval(np.array([0.25])) == (0.25, 0)


def test_wilson_interval_by_hand():
  """1 of 1: one trial; z^2 = 3.8415.

  The centre is (1 + z^2 / 2) / (1 + z^2) = 2.9207 / 4.8415 = 0.6033, half of
  the width z^2 / 2 / (1 + z^2) = 0.3967: the interval is 0.2066 to 1.
  16 of 32 prompts and one more observation are 32 * 32 / 33 trials of variance
  1/4, and their interval is symmetric.
  """
  one = statistics.share_interval(np.ones(1))
  assert one == (1, pytest.approx(0.7934, abs=1e-4))
  mean, half = statistics.share_interval(np.arange(32) % 2.0)
  z2, trials = 1.959964**2, 32 * 32 / 33
  wanted = (z2 * (0.25 / trials + z2 / 4 / trials**2)) ** 0.5
  assert (mean, half) == (0.5, pytest.approx(wanted / (1 + z2 / trials)))


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("prompts", [1, 2, 5, 30])
@pytest.mark.parametrize("a, b", [(5, 5), (0.5, 0.5), (9.5, 0.5), (95, 5)])
def test_intervals_cover_the_accuracy(a, b, prompts, samples):
  """Of prompts that differ in difficulty; the normal interval covered 0 to .95.

  At 30 prompts, one sample and an accuracy of .95 it covered .78 to .81.
  """
  rng = np.random.default_rng(0)
  easy_SN = rng.beta(a, b, (1000, prompts))
  values_SN = rng.binomial(samples, easy_SN) / samples
  found = [statistics.share_interval(values_N) for values_N in values_SN]
  covered = np.mean([abs(mean - a / (a + b)) <= half for mean, half in found])
  assert covered > 0.88
  assert np.mean([half for _, half in found]) < 2.1 / (prompts + 1.5) ** 0.5


def test_pass_at_k_by_hand():
  """G = 4, 1 correct: pass@2 = 1 - C(3,2)/C(4,2) = 1 - 3/6; pass@4 = 1.

  2 correct: 1 - C(2,2)/C(4,2) = 1 - 1/6. None correct: 0. All correct: 1.
  """
  correct_NG = np.array(
      [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32
  )
  expected = {1: [1 / 4, 2 / 4, 0, 1], 2: [1 / 2, 5 / 6, 0, 1], 4: [1, 1, 0, 1]}
  for k, values in expected.items():
    np.testing.assert_allclose(statistics.pass_at_k(correct_NG, k), values)


def test_pass_at_k_is_the_share_of_subsets():
  correct_NG = np.random.default_rng(0).integers(0, 2, (5, 6))
  for k in (1, 2, 3, 5):
    subsets = itertools.combinations(range(6), k)
    expected = np.mean([correct_NG[:, list(x)].any(1) for x in subsets], axis=0)
    np.testing.assert_allclose(statistics.pass_at_k(correct_NG, k), expected)


def test_pass_at_k_of_many_samples():
  """C(2000, 1000) overflows a float."""
  correct_NG = np.zeros((1, 2000))
  correct_NG[0, 0] = 1
  np.testing.assert_allclose(statistics.pass_at_k(correct_NG, 1000), 0.5)


def test_best_of_k_by_hand():
  """Scores 1 2 2, correct 0 1 0: the pairs 1,2 | 1,2' | 2,2'.

  Their best is correct, incorrect, and correct half of the time: 1.5 / 3. Of
  one sample it is the mean, and of all three one of the two best.
  """
  correct_NG, score_NG = np.array([[0, 1, 0]]), np.array([[1.0, 2.0, 2.0]])
  for k, wanted in ((1, 1 / 3), (2, 1 / 2), (3, 1 / 2)):
    found = statistics.best_of_k(correct_NG, score_NG, k)
    np.testing.assert_allclose(found, [wanted])


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_best_of_k_is_the_mean_over_subsets(k):
  """With few different scores, so that many are equal; NaN is the lowest."""
  rng = np.random.default_rng(0)
  correct_NG = rng.integers(0, 2, (7, 6))
  score_NG = rng.choice([0.1, 0.5, 0.7, np.nan], (7, 6))
  wanted_N = []
  for correct_G, score_G in zip(correct_NG, score_NG, strict=True):
    known_G, means = np.nan_to_num(score_G, nan=-9), []
    for subset in map(list, itertools.combinations(range(6), k)):
      best = known_G[subset] == known_G[subset].max()
      means.append(correct_G[subset][best].mean())
    wanted_N.append(np.mean(means))
  found_N = statistics.best_of_k(correct_NG, score_NG, k)
  np.testing.assert_allclose(found_N, wanted_N)
  # A score that is the verdict finds what pass@k finds; a constant one nothing.
  passed_N = statistics.pass_at_k(correct_NG, k)
  found_N = statistics.best_of_k(correct_NG, correct_NG, k)
  np.testing.assert_allclose(found_N, passed_N)
  found_N = statistics.best_of_k(correct_NG, 0 * correct_NG, k)
  np.testing.assert_allclose(found_N, correct_NG.mean(1))


def test_majority_vote_by_hand():
  """First: 7 wins two to one. Second: 3 and 4 tie, and 3 came first.

  Third: the two without an answer do not vote, so 9 wins with one. Fourth:
  no votes.
  """
  answers_NG = [["7", "5", "7"], ["3", "4", ""], ["", "", "9"], ["", "", ""]]
  correct_NG = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
  share_N, correct_N = statistics.majority_vote(answers_NG, correct_NG)
  assert correct_N.tolist() == [1, 0, 1, 0]
  np.testing.assert_allclose(share_N, [2 / 3, 1 / 3, 1 / 3, 0])
  _, correct_N = statistics.majority_vote([["4", "3", ""]], correct_NG[1:2])
  assert correct_N.tolist() == [0]
  late_NG = [["8", "7", "7", "8", "7"]]
  vote = statistics.majority_vote(late_NG, [[0, 1, 1, 0, 1]])
  assert vote[1].tolist() == [1]


def test_calibration_error_by_hand():
  """Two bins: .5 and .55, half of them correct; .9 and 1, half of them too."""
  confidence_N = np.array([0.5, 0.55, 0.9, 1.0])
  correct_N = np.array([1.0, 0.0, 1.0, 0.0])
  error = statistics.calibration_error(confidence_N, correct_N)
  assert error == pytest.approx(0.5 * 0.025 + 0.5 * 0.45)
  assert statistics.calibration_error(correct_N, correct_N) == 0


def test_the_calibration_curve_by_hand(tmp_path):
  """Bins of .5 and .55, of .9 and 1; the error is their weighted gap.

  The report has the first and the last evaluation of each set.
  """
  confidence_N = np.array([0.5, 0.55, 0.9, 1.0])
  correct_N = np.array([1.0, 0.0, 1.0, 1.0])
  low, high = statistics.calibration_curve(confidence_N, correct_N)
  half = statistics.share_interval(np.array([1.0, 0]))[1]
  assert low == (2, 0.525, 0.5, pytest.approx(half))
  assert high[:3] == (2, 0.95, 1)
  error = statistics.calibration_error(confidence_N, correct_N)
  gaps = [x.prompts / 4 * abs(x.accuracy - x.confidence) for x in (low, high)]
  assert error == pytest.approx(sum(gaps))
  # Responses: '4' has 2 of 4 votes and is right, '9' 3 of 4 and is wrong.
  made = responses(
      [[1, 1, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]],
      [[0] * 5, [0] * 5, [1] * 4 + [0]],
      [list("44564"), list("98998"), list("77777")],
  )
  answer = lambda text, row: text  # noqa: E731
  bins = accuracy.calibration(made, answer)
  assert [x[:3] for x in bins] == [(1, 0, 0), (1, 0.5, 1), (1, 0.75, 0)]
  essays = made._replace(rewards_NG=made.correct_NG)
  assert accuracy.calibration(essays, answer) == []
  calibration.write(tmp_path, 0, {"sums": [low]})
  calibration.write(tmp_path, 5, {"sums": [low]})
  calibration.write(tmp_path, 40, {"sums": [low, high]})
  data = page.data_of(tmp_path)
  chart = data["charts"][-1]
  first, last, diagonal = chart["series"]
  assert [x["label"] for x in (first, last)] == ["step 0", "step 40"]
  assert last["y"] == (0.5, 1) and last["counts"] == (2, 2)
  assert data["axes"][last["axis"]]["step"] == (0.525, 0.95)
  assert data["axes"][diagonal["axis"]]["step"] == diagonal["y"] == [0, 1]
  shown = results.responses_page("a run", {}, [made], answer)
  rows = data_of_page(shown, "responses")["calibration"]["rows"]
  assert [x["cells"][1][0] for x in rows] == ["0.0%", "50.0%", "75.0%"]


# --- grading -----------------------------------------------------------------


def rollouts_of(tok, texts, truncated, slots=6):
  """Rollouts with prompt '1=' in three slots and these responses."""
  tokens_BT = np.full((len(texts), slots), tok.pad_token_id, np.int32)
  lengths_B = np.zeros(len(texts), np.int32)
  encoded = tokenizer.encode(tok, texts)
  for b, (ids, cut) in enumerate(zip(encoded, truncated, strict=True)):
    ids = ids + ([] if cut else [tok.eos_token_id])
    tokens_BT[b, : len(ids)] = ids
    lengths_B[b] = len(ids)
  prompt = [tok.pad_token_id, *tokenizer.encode(tok, ["1="])[0]]
  prompt_BP = np.tile(np.array(prompt, np.int32), (len(texts), 1))
  return Rollouts(
      tokens_BL=np.concatenate([prompt_BP, tokens_BT], 1),
      start_B=np.ones(len(texts), np.int32),
      ids_B=np.arange(len(texts)),
      mask_BT=np.arange(slots) < lengths_B[:, None],
      logps_BT=np.zeros((len(texts), slots), np.float32),
      lengths_B=lengths_B,
      truncated_B=np.array(truncated),
  )


def grade(*args):
  return grading.start_grading(*args)()


@pytest.fixture(scope="module")
def tok():
  return tokenizer.characters(arithmetic.ALPHABET)


def test_each_response_is_graded_with_its_own_row(tok):
  """Two prompts with answers 1 and 2, three samples each."""
  texts = ["#1", "#2", "1;#1", "#1", "#2", "#2"]
  rollouts = rollouts_of(tok, texts, [False] * 5 + [True])
  rows = [Row("1=", "1", 2), Row("1=", "2", 2)]
  graded, correct_B, failures = grade(arithmetic, tok, rollouts, rows)
  assert graded == texts
  assert correct_B.tolist() == [1, 0, 1, 0, 1, 0], "truncated: incorrect"
  assert correct_B.dtype == np.float32
  assert failures == 0


def test_grading_survives_its_verifier(tok):
  """A response whose verifier raises is unknown, counted, and no crash."""
  seen = []

  def verify(text, row):
    seen.append((text, row))
    if text == "#2":
      raise RecursionError("too deep")
    if text == "#3":
      raise ValueError("not a number")
    return True

  truncated = [False, False, False, True]
  rollouts = rollouts_of(tok, ["#1", "#2", "#3", "#2"], truncated)
  row, task = Row("1=", "1", 2), types.SimpleNamespace(
      problem=lambda rng, level: None, verify=verify
  )
  _, correct_B, failures = grade(task, tok, rollouts, [row])
  assert correct_B.tolist() == [1, -1, -1, 0]
  assert failures == 2
  assert seen == [("#1", row), ("#2", row), ("#3", row)], "not the truncated"


# --- metrics -----------------------------------------------------------------

ROWS = [Row("2+2=", "4", 2), Row("1+2+5=", "8", 3), Row("3+4=", "7", 2)]


def responses(correct_NG, truncated_NG, answers_NG, name="sums", **fields):
  """Responses to ROWS; the last one of each prompt is greedy."""
  return accuracy.Responses(
      name=name,
      rows=ROWS,
      texts_NG=answers_NG,
      correct_NG=np.array(correct_NG, float),
      lengths_NG=np.full(np.shape(correct_NG), 4),
      truncated_NG=np.array(truncated_NG, float),
      **dict(lines=[], failures=0, repetition=0.0, mean_of=2) | fields,
  )


def two_samples(name="sums"):
  """Two samples and a greedy response to each of three prompts."""
  return responses(
      [[1, 1, 1], [0, 0, 1], [0, 1, 1]],
      [[0, 0, 0], [1, 0, 1], [1, 1, 0]],
      [[f"{n} {g} </td>" for g in range(3)] for n in range(3)],
      name,
      failures=2,
      repetition=0.25,
  )


def test_summarize_by_hand():
  """Three prompts with four samples, two of which make the mean@2.

  correct: 1 1 0 0 | 0 1 0 0 | 0 0 0 0
  mean@2:  1, 1/2, 0 -> 1/2
  pass@1:  2/4, 1/4, 0 -> 1/4
  pass@2:  1 - C(2,2)/6 = 5/6, 1 - C(3,2)/6 = 1/2, 0 -> 4/9
  pass@4:  1, 1, 0 -> 2/3
  maj@4:   '4' wins 2:1:1 and is correct; '9' wins 3:1 and is not; the last
           samples are truncated, so nobody votes
  """
  metrics = accuracy.summarize(
      responses(
          [[1, 1, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]],
          [[0] * 5, [0] * 5, [1] * 4 + [0]],
          [list("44564"), list("98998"), list("77777")],
      ),
      lambda text, row: text,
  )
  _, half = statistics.share_interval(np.array([1, 0.5, 0]))
  expected = {
      "val-core/sums/acc/mean@2": 1 / 2,
      "val-core/sums/acc/mean@2/ci95": half,
      "val-core/sums/acc/greedy": 2 / 3,
      "val-core/sums/acc/maj@4": 1 / 3,
      "val-core/sums/acc/pass@1": 1 / 4,
      "val-core/sums/acc/pass@2": 4 / 9,
      "val-core/sums/acc/pass@4": 2 / 3,
      # Confidence 1/2 and correct, 3/4 and incorrect, 0 and incorrect.
      "val-aux/sums/maj_calibration_error": (1 / 2 + 3 / 4) / 3,
      "val-aux/sums/difficulty_2/acc/mean@2": 1 / 2,
      "val-aux/sums/difficulty_3/acc/mean@2": 1 / 2,
      "val-aux/sums/response_length/mean": 4,
      "val-aux/sums/response_length/clip_ratio": 1 / 3,
  }
  assert {k: metrics[k] for k in expected} == pytest.approx(expected)
  intervals = {k for k in metrics if k.endswith("/ci95")}
  assert set(metrics) == set(expected) | intervals
  assert len(intervals) == 8
  assert all(type(v) is float for v in metrics.values())


def test_metrics_of_all_sets_by_hand():
  """Samples are truncated in 3 of 6; greedy responses do not count."""
  sets = [two_samples(), two_samples("products")]
  metrics = accuracy.summarize_sets(
      sets, {"sums"}, lambda text, row: text, score_of=2
  )
  assert "val-aux/products/response_length/mean" in metrics
  assert metrics["val-aux/response_length/mean"] == 4
  assert metrics["val-aux/response_length/clip_ratio"] == 0.5
  assert metrics["val-aux/repetition/mean"] == 0.25
  assert metrics["val-aux/verifier_failures"] == 4
  assert metrics["val-core/products/acc/greedy"] == 1


@pytest.mark.parametrize(
    ("scored", "score"),
    [(("sums",), 3 / 4), (("validation",), 1 / 4), ((), None)],
)
def test_the_score_is_of_the_prompts_that_choose(scored, score):
  """mean@2 of the first two prompts of a set; missing where nothing chooses.

  sums: 1 and 1/2; validation: 1/2 and 0. Both hold another prompt: 0 and 1.
  """
  truncated_NG, texts_NG = [[0] * 3] * 3, [["1"] * 3] * 3
  sets = [
      responses([[1, 1, 1], [0, 1, 0], [0, 0, 0]], truncated_NG, texts_NG),
      responses(
          [[1, 0, 1], [0, 0, 0], [1, 1, 1]],
          truncated_NG,
          texts_NG,
          "validation",
      ),
  ]
  metrics = accuracy.summarize_sets(
      sets, scored, lambda text, row: text, score_of=2
  )
  assert metrics.get(accuracy.SCORE) == score


def test_a_table_has_a_column_for_each_set():
  """Correct: 1 1 1 | 0 0 1 | 0 1 1; truncated samples: 0 0 | 1 0 | 1 1."""
  sets = [two_samples(), two_samples("validation")]
  rewarded = two_samples("essays")._replace(rewards_NG=np.full((3, 3), 0.25))
  found = accuracy.summarize_sets(
      [*sets, rewarded], (), lambda text, row: text, score_of=2
  )
  head, rows = set_table.as_text(found, [*sets, rewarded])
  assert head == ["", "sums", "validation", "essays", ""]
  rows = {name: cells for name, *cells in rows}
  assert rows["prompts"][:3] == ["3", "3", "3"]
  _, half = statistics.share_interval(np.array([1, 0, 0.5]))
  assert rows["mean@2"][:2] == [f"50.0% +- {100 * half:.1f}"] * 2
  assert rows["mean@2"][2] == "0.25 +- 0"
  assert rows["greedy"][0].startswith("100.0% +-")
  assert rows["pass@2"][2] == "–", "a reward has no verdicts"
  assert rows["response length"][0] == "4.0 +- 0.0"
  assert rows["truncated"][0].startswith("50.0% +-")
  page = set_table.for_page(found, sets)
  shares = {row["name"]: row["cells"][0][1] for row in page["rows"]}
  assert (shares["mean@2"], shares["response length"]) == (0.5, None)


def test_more_samples_of_the_same_prompts_are_no_more_prompts():
  """pass@1 of the table: 1, 1/2, 0; each sample four times changes nothing."""
  cells = []
  for times in (1, 4):
    drawn = np.repeat([[1, 1], [0, 1], [0, 0]], times, axis=1)
    correct_NG = np.hstack([drawn, [[1], [1], [0]]])
    texts_NG = [["1"] * correct_NG.shape[1]] * 3
    x = responses(
        correct_NG, np.zeros_like(correct_NG), texts_NG, mean_of=2 * times
    )
    found = accuracy.summarize(x, lambda text, row: text)
    _, rows = set_table.as_text(found, [x])
    [[_, cell, about]] = [row for row in rows if row[0] == "pass@1"]
    assert about == "a response is correct, mean of all samples"
    cells.append(cell)
  _, half = statistics.share_interval(np.array([1, 0.5, 0]))
  assert cells == [f"50.0% +- {100 * half:.1f}"] * 2


@pytest.mark.parametrize("unknown, measured", [(0, 1), (1, 1), (2, 0), (18, 0)])
def test_a_verifier_that_is_down_measures_nothing(unknown, measured):
  """18 responses; a tenth may fail, and counts as incorrect."""
  sets = [two_samples("validation"), two_samples("other")]
  sets[0] = sets[0]._replace(
      unknown=unknown, lengths_NG=np.ones((3, 6)), truncated_NG=np.ones((3, 6))
  )
  found = accuracy.summarize_sets(
      sets, {"validation", "other"}, lambda text, row: text, score_of=2
  )
  assert (accuracy.SCORE in found) == measured
  assert ("val-core/validation/acc/mean@2" in found) == measured
  assert "val-core/other/acc/mean@2" in found
  assert "validation" not in scores.by_set(found) or measured
  set_table.as_text(found, sets)


def test_an_evaluation_that_measured_nothing_has_no_score(tmp_path):
  sets = [two_samples()._replace(unknown=9)]
  found = accuracy.summarize_sets(
      sets, {"sums"}, lambda text, row: text, score_of=2
  )
  score, said = interim_run(tmp_path, found, sets)
  assert score is None
  [failed, chooses] = [x for x in said if "warning" in x]
  assert "sums has no score: the verifier failed on 9 of 9" in failed
  assert "at step 0 chooses no checkpoint" in chooses


def test_an_evaluation_says_its_failures_and_its_rewards(tmp_path):
  """Scores 0 and 1, 2 and 3, 4 and 5: the means are 0.5, 2.5 and 4.5."""
  judged = dict(judge=np.array([[0, 1, 9], [2, 3, 9], [4, 5, 9]]))
  sets = [two_samples()._replace(terms_NG=judged)]
  found = accuracy.summarize_sets(
      sets, {"sums"}, lambda text, row: text, score_of=2
  )
  assert found[accuracy.SCORE] == 0.5
  score, said = interim_run(tmp_path, found, sets)
  assert score == 0.5
  [bins] = calibration.read(tmp_path)["0"].values()
  assert sum(prompts for prompts, *_ in bins) == len(ROWS)
  assert said[0].startswith("held-out accuracy at step 0: 50.0%")
  assert said[1] == "held-out mean of reward functions: judge 2.5 +- 2.3"
  assert "held-out prompts choose the best checkpoint" in said[2]
  assert "failed 2 times in this evaluation" in said[3]


def test_an_evaluation_says_what_the_verifier_may_not_have_read():
  shown = evaluate.perhaps_right({"val-aux/perhaps_right": 3})
  assert shown.startswith("rejected, perhaps right: 3 of up to 8 rejected")
  assert not evaluate.perhaps_right({"val-aux/perhaps_right": 0})
  assert not evaluate.perhaps_right({})


def interim_run(tmp_path, found, sets):
  """The score of an evaluation during a run, and what it says."""
  said: list[str] = []
  c = importlib.import_module("configs.base").arithmetic()
  c.evaluate.mean_of = 2
  do_nothing = lambda *_: None  # noqa: E731
  output = Output(
      tmp_path,
      types.SimpleNamespace(metrics=do_nothing, samples=do_nothing),
      types.SimpleNamespace(say=said.append, steps_begin=do_nothing),
      None,
  )
  evaluate = lambda *_, **__: (found, sets)  # noqa: E731
  state = types.SimpleNamespace(
      step=0,
      parts=feature.Part(),
      collector=types.SimpleNamespace(rewards=None),
      counters=dict(tokens=0, flops=0.0),
  )
  answer = lambda text, row: text  # noqa: E731
  return interim.run(c, evaluate, output, None, answer, None, state), said


def test_checkpoints_of_one_command(tmp_path, monkeypatch):
  """Each writes its files; equal names are evaluated once."""
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

  said, tables, checked = [], [], []
  monkeypatch.setattr(evaluate, "evaluate", evaluated)
  monkeypatch.setattr(
      evaluate.trained_parameters,
      "policy",
      lambda c, x, **_: (x, None, 7, f"policy {x}"),
  )
  monkeypatch.setattr(
      evaluate.trained_parameters,
      "require",
      lambda c, x, output: checked.append(x),
  )
  c = importlib.import_module("configs.base").arithmetic()
  c.evaluate.update(mean_of=2, validation=False)
  display = types.SimpleNamespace(
      say=said.append, table=lambda *x: tables.append(x)
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
  assert checked == ["sft", "best"] and len(done) == 2
  assert sum("perhaps right: 2 of up to 8" in x for x in said) == 2
  names = [x.path.name for x in done]
  assert names == ["prompts-sft.jsonl", "prompts-best.jsonl"]
  for which, mean in (("sft", 1 / 6), ("best", 5 / 6)):
    metrics = json.loads((tmp_path / f"evaluation-{which}.json").read_text())
    assert metrics["step"] == 7
    assert metrics["val-core/sums/acc/mean@2"] == pytest.approx(mean)
    lines = (tmp_path / f"prompts-{which}.jsonl").read_text().splitlines()
    assert [json.loads(x)["prompt"] for x in lines] == [x.prompt for x in ROWS]
  done = evaluate.run(c, session, "best", earlier=done)
  assert [x.path for x in done] == [
      tmp_path / f"prompts-{x}.jsonl" for x in ("sft", "best", "best")
  ]
  assert any("held-out scores of step 7 (best)" in x[0] for x in tables)


def test_a_score_on_prompts_that_chose_is_said():
  cases = [("best", False), ("best", True), ("newest", False), ("40", False)]
  found = [evaluate.chose(which, lambda x=x: x) for which, x in cases]
  assert found == [True] + [False] * 3


@pytest.mark.parametrize("validation", [0, 2])
def test_what_chooses_reads_no_held_out_prompt(monkeypatch, validation):
  """Without validation prompts it reads the held-out ones, as ever."""
  sets = dict(validation=two_samples("validation")) if validation else {}
  for name, value in [
      ("evaluation_sets", lambda rows, count: {"sums": [0] * count}),
      ("validation_sets", lambda rows, count, evaluated: sets),
  ]:
    monkeypatch.setattr(held_out, name, value)
  c = importlib.import_module("configs.base").arithmetic()
  engine = types.SimpleNamespace(weights=lambda params: None)
  task = types.SimpleNamespace(answer=lambda text, row: text)
  monkeypatch.setattr(evaluate, "key", lambda *_: None)
  monkeypatch.setattr(
      evaluate,
      "respond",
      lambda s, tok, task, name, rows, **_: two_samples(name),
  )
  session = types.SimpleNamespace(
      model=types.SimpleNamespace(mesh=None),
      row_source=types.SimpleNamespace(task=task),
      engine=engine,
      **dict.fromkeys(("output", "tok", "environments")),
  )
  names = {
      purpose: [
          x.name
          for x in evaluate.evaluate(c, session, None, 2, "", purpose=purpose)[
              1
          ]
      ]
      for purpose in ("held out", "choose", "both")
  }
  chooses = ["validation"] if validation else ["sums"]
  both = ["sums", "validation"] if validation else ["sums"]
  assert names == {"held out": ["sums"], "choose": chooses, "both": both}


@pytest.mark.parametrize(
    ("mean_of", "means"), [(2, (0.75, 0.0)), (1, (0.5, 0.0))]
)
def test_levels_by_hand(mean_of, means):
  """Difficulty 2: 1 and 1/2 correct, or 1 and 0; one prompt truncated."""
  x = two_samples()._replace(mean_of=mean_of)
  two, three = accuracy.levels(x)
  values = [[1, 0.5] if mean_of == 2 else [1, 0], [0]]
  halves = [statistics.share_interval(np.array(x, float))[1] for x in values]
  assert two == (2, 2, means[0], pytest.approx(halves[0]), 0.5)
  assert three == (3, 1, means[1], pytest.approx(halves[1]), 0.5)


def test_results_in_the_layout_of_lm_evaluation_harness():
  fields = {
      "evaluate.temperature": 1.0,
      "evaluate.top_p": 1.0,
      "evaluate.top_k": 20,
      "evaluate.min_p": 0.0,
      "evaluate.samples": 2,
      "rollout.max_tokens": 9,
      "data.template": "published",
  }
  values = {"val-core/sums/acc/mean@2": 0.5, "val-aux/score": 0.1}
  values["val-core/sums/acc/mean@2/ci95"] = 0.196
  harness = results.harness_results(values, [two_samples()], fields, {})
  assert harness["results"]["sums"] == {
      "alias": "sums",
      "mean@2,none": 0.5,
      "mean@2_stderr,none": pytest.approx(0.1),
  }
  assert harness["n-samples"]["sums"]["effective"] == 3
  how = harness["configs"]["sums"]["generation_kwargs"]
  assert (how["max_gen_toks"], how["top_k"]) == (9, 20) and "min_p" not in how
  assert "until" not in how
  row = Row("?", "A", kind="choice", source="folio")
  sets = [two_samples()._replace(rows=[row] * 3)]
  harness = results.harness_results(values, sets, fields, {})
  how = harness["configs"]["sums"]["generation_kwargs"]
  assert how["until"] == ["------"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_the_page_of_responses_in_a_browser(tmp_path):
  """Its table of difficulties has the metrics; names stay text."""
  name = "<img src=x onerror=alert(1)>"
  path = tmp_path / "responses.html"
  sets = [two_samples(), two_samples(name)]
  values = accuracy.summarize_sets(sets, (), lambda text, row: text, score_of=2)
  path.write_text(results.responses_page("a run", values, sets))
  probe = """<script>
    const rows = [...document.querySelectorAll("#levels tr")];
    rows.push(...document.querySelectorAll("#scores tr:nth-child(2)"));
    document.body.textContent = "FOUND" + JSON.stringify([
      document.images.length, document.querySelectorAll("#list details").length,
      ...rows.map(row => [...row.children].map(cell => cell.textContent)),
    ]) + "FOUND";
  </script>"""
  images, prompts, head, *rows, counted = found_in_browser(path, probe)
  assert not images and prompts == 3
  assert head == ["set", "difficulty", "prompts", "avg@2", "truncated"]
  # Of 1 and 1/2, and of a single 0.
  low = ["2", "2", "75.0% ± 52.7", "50.0%"]
  high = ["3", "1", "0.0% ± 79.3", "50.0%"]
  assert rows == [[x, *row] for x in ("sums", name) for row in (low, high)]
  assert counted == ["promptsof the set that were evaluated", "3", "3"]
