"""Numbers of an evaluation, worked by hand; and the judge."""

import itertools
import shutil
import types

import numpy as np
import pytest
from conftest import found_in_browser

from rl_reason.data import tokenizer
from rl_reason.evaluation import command, evaluate
from rl_reason.structs import Rollouts
from rl_reason.tasks import Row, arithmetic


def test_mean_interval_by_hand():
  """1, 0, 1, 0.5 have mean 0.625 and std 0.47871355 (ddof 1).

  0.140625 + 0.390625 + 0.140625 + 0.015625 = 0.6875; / 3 = 0.22916667; its
  root is the std; the half-width is 1.96 * 0.47871355 / sqrt(4) = 0.46913928.
  """
  mean, half = evaluate.mean_interval(np.array([1, 0, 1, 0.5]))
  assert mean == 0.625
  assert half == pytest.approx(0.46913928, abs=1e-8)


def test_mean_interval_of_equal_or_single_values():
  assert evaluate.mean_interval(np.full(5, 0.5)) == (0.5, 0)
  assert evaluate.mean_interval(np.array([0.25])) == (0.25, 0)


def test_pass_at_k_by_hand():
  """G = 4, 1 right: pass@2 = 1 - C(3,2)/C(4,2) = 1 - 3/6; pass@4 = 1.

  2 right: 1 - C(2,2)/C(4,2) = 1 - 1/6. None right: 0. All right: 1.
  """
  correct_NG = np.array(
      [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32
  )
  wanted = {1: [1 / 4, 2 / 4, 0, 1], 2: [1 / 2, 5 / 6, 0, 1], 4: [1, 1, 0, 1]}
  for k, values in wanted.items():
    np.testing.assert_allclose(evaluate.pass_at_k(correct_NG, k), values)


def test_pass_at_k_is_the_share_of_subsets():
  rng = np.random.default_rng(0)
  correct_NG = rng.integers(0, 2, (5, 6))
  for k in (1, 2, 3, 5):
    wanted = np.mean(
        [
            correct_NG[:, list(some)].any(1)
            for some in itertools.combinations(range(6), k)
        ],
        axis=0,
    )
    np.testing.assert_allclose(evaluate.pass_at_k(correct_NG, k), wanted)


def test_pass_at_k_of_very_many_samples():
  """C(2000, 1000) is far beyond a float: the ratio must not overflow."""
  correct_NG = np.zeros((1, 2000))
  correct_NG[0, 0] = 1
  np.testing.assert_allclose(evaluate.pass_at_k(correct_NG, 1000), 0.5)


def test_vote_by_hand():
  """First: 7 wins two to one. Second: a tie of 3 and 4, 3 came first.

  Third: the two without an answer do not vote, so 9 wins with one. Fourth:
  nobody votes.
  """
  answers_NG = [["7", "5", "7"], ["3", "4", ""], ["", "", "9"], ["", "", ""]]
  correct_NG = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
  share_N, right_N = evaluate.vote(answers_NG, correct_NG)
  assert right_N.tolist() == [1, 0, 1, 0]
  np.testing.assert_allclose(share_N, [2 / 3, 1 / 3, 1 / 3, 0])
  _, right_N = evaluate.vote([["4", "3", ""]], correct_NG[1:2])
  assert right_N.tolist() == [0]
  late_NG = [["8", "7", "7", "8", "7"]]
  assert evaluate.vote(late_NG, [[0, 1, 1, 0, 1]])[1].tolist() == [1]


def test_calibration_error_by_hand():
  """Two bins: .5 and .55, half of them right; .9 and 1, half of them too."""
  sure_N = np.array([0.5, 0.55, 0.9, 1.0])
  right_N = np.array([1.0, 0.0, 1.0, 0.0])
  got = evaluate.calibration_error(sure_N, right_N)
  assert got == pytest.approx(0.5 * 0.025 + 0.5 * 0.45)
  assert evaluate.calibration_error(right_N, right_N) == 0


def responses(tok, texts, truncated=None, slots=6):
  """Rollouts with prompt '1=' in three slots and these responses."""
  tokens_BT = np.full((len(texts), slots), tok.pad_token_id, np.int32)
  lengths_B = np.zeros(len(texts), np.int32)
  truncated = truncated or [False] * len(texts)
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


@pytest.fixture(scope="module")
def tok():
  return tokenizer.characters(arithmetic.ALPHABET)


def test_judge_gives_each_response_its_own_row(tok):
  """Two prompts with answers 1 and 2, three samples each; the last is cut."""
  rollouts = responses(
      tok,
      ["#1", "#2", "1;#1", "#1", "#2", "#2"],
      [False, False, False, False, False, True],
  )
  rows = [Row("1=", "1", 2), Row("1=", "2", 2)]
  texts, correct_B, failures = evaluate.judge(arithmetic, tok, rollouts, rows)
  assert texts == ["#1", "#2", "1;#1", "#1", "#2", "#2"]
  assert correct_B.tolist() == [1, 0, 1, 0, 1, 0], "cut off: wrong"
  assert correct_B.dtype == np.float32
  assert failures == 0


def test_judge_survives_its_verifier(tok):
  """Whatever a verifier raises is a wrong answer, counted, and no crash."""
  seen = []

  def verify(text, row):
    seen.append((text, row))
    if text == "#2":
      raise RecursionError("too deep")
    if text == "#3":
      raise ValueError("not a number")
    return True

  rollouts = responses(
      tok, ["#1", "#2", "#3", "#2"], [False, False, False, True]
  )
  row = Row("1=", "1", 2)
  _, correct_B, failures = evaluate.judge(
      types.SimpleNamespace(verify=verify), tok, rollouts, [row]
  )
  assert correct_B.tolist() == [1, 0, 0, 0]
  assert failures == 2
  assert seen == [("#1", row), ("#2", row), ("#3", row)], "not the cut one"


def test_summarize_by_hand():
  """Three prompts with four samples, two of which make the mean@2.

  right:  1 1 0 0 | 0 1 0 0 | 0 0 0 0
  mean@2: 1, 1/2, 0 -> 1/2; of the first two prompts 3/4
  pass@1: 2/4, 1/4, 0 -> 1/4
  pass@2: 1 - C(2,2)/6 = 5/6, 1 - C(3,2)/6 = 1/2, 0 -> 4/9
  pass@4: 1, 1, 0 -> 2/3
  maj@4: '4' wins 2:1:1 and is right; '9' wins 3:1 and is wrong; nobody votes
  """
  rows = [Row("2+2=", "4", 2), Row("1+2+5=", "8", 3), Row("3+4=", "7", 2)]
  correct_NG = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], np.float32)
  answers_NG = [["4", "4", "5", "6"], ["9", "8", "9", "9"], ["", "", "", ""]]
  got = evaluate.summarize(
      "sums",
      rows,
      correct_NG,
      np.array([1, 1, 0], np.float32),
      answers_NG,
      mean_of=2,
      score_of=2,
  )
  half = 1.96 * np.std([1, 0.5, 0], ddof=1) / 3**0.5
  wanted = {
      "val-core/sums/acc/mean@2": 1 / 2,
      "val-core/sums/acc/mean@2/ci95": half,
      "val-core/sums/acc/greedy": 2 / 3,
      "val-core/sums/acc/maj@4": 1 / 3,
      "val-core/sums/acc/pass@1": 1 / 4,
      "val-core/sums/acc/pass@2": 4 / 9,
      "val-core/sums/acc/pass@4": 2 / 3,
      # Votes: 1/2 sure and right, 3/4 and wrong, 0 and wrong.
      "val-aux/sums/maj_calibration_error": (1 / 2 + 3 / 4) / 3,
      "val-aux/score": 3 / 4,
      "val-aux/sums/difficulty_2/acc/mean@2": 1 / 2,
      "val-aux/sums/difficulty_3/acc/mean@2": 1 / 2,
  }
  assert {k: got[k] for k in wanted} == pytest.approx(wanted)
  intervals = {k for k in got if k.endswith("/ci95")}
  assert set(got) == set(wanted) | intervals
  assert len(intervals) == 6
  assert all(type(v) is float for v in got.values())


def told(name="sums"):
  """Three prompts of two difficulties; two samples each, and a greedy one."""
  rows = [Row("2+2=", "4", 2), Row("1+2+5=", "8", 3), Row("3+4=", "7", 2)]
  correct_NG = np.array([[1, 1, 1], [0, 0, 1], [0, 1, 1]], np.float32)
  cut_NG = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 0]], np.float32)
  return evaluate.Responses(
      name=name,
      rows=rows,
      texts_NG=[[f"{n} {g} </td>" for g in range(3)] for n in range(3)],
      correct_NG=correct_NG,
      lengths_NG=np.full((3, 3), 4),
      truncated_NG=cut_NG,
      samples=[],
      failures=0,
      repeated=0.0,
  )


@pytest.mark.parametrize(
    ("mean_of", "means"), [(2, (0.75, 0.0)), (1, (0.5, 0.0))]
)
def test_levels_by_hand(mean_of, means):
  """Difficulty 2: 1 and 1/2 right, or 1 and 0; its second prompt all cut."""
  two, three = evaluate.levels(told(), mean_of)
  half = 1.96 * (2 * (1 - means[0])) / 2**0.5 / 2**0.5
  assert two == (2, 2, means[0], pytest.approx(half), 0.5)
  assert three == (3, 1, means[1], 0.0, 0.5)
  values = evaluate.summarize(
      "sums",
      told().rows,
      told().correct_NG[:, :-1],
      told().correct_NG[:, -1],
      [["4", "4"], ["1", "1"], ["7", "7"]],
      mean_of=mean_of,
      score_of=3,
  )
  for level in (two, three):
    key = f"val-aux/sums/difficulty_{level.difficulty}/acc/mean@{mean_of}"
    assert values[key] == level.mean


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_the_page_of_responses_in_a_browser(tmp_path):
  """Its table of difficulties is that of the numbers; names stay text."""
  name = "<img src=x onerror=alert(1)>"
  page = tmp_path / "responses.html"
  both = [told(), told(name)]
  page.write_text(command.browse("a run", {"x": 0.5}, both, 2))
  probe = """<script>
    const rows = [...document.querySelectorAll("#levels tr")];
    document.body.textContent = "FOUND" + JSON.stringify([
      document.images.length, document.querySelectorAll("#list details").length,
      ...rows.map(row => [...row.children].map(cell => cell.textContent)),
    ]) + "FOUND";
  </script>"""
  images, prompts, head, *rows = found_in_browser(page, probe)
  assert not images and prompts == 3
  assert head == ["set", "difficulty", "prompts", "avg@2", "truncated"]
  # The std of 1 and 1/2 is 0.354; 1.96 * 0.354 / sqrt(2) = 0.49.
  low = ["2", "2", "75.0% ± 49.0", "50.0%"]
  high = ["3", "1", "0.0% ± 0.0", "50.0%"]
  wanted = [[x, *row] for x in ("sums", name) for row in (low, high)]
  assert rows == wanted
