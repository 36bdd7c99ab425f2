"""Stop texts: base models that continue after their answer."""

import json
import string

import numpy as np
import pytest

from rl_reason.data import tokenizer
from rl_reason.evaluation import accuracy, stop_texts
from rl_reason.tasks import Row, files
from rl_reason.verifiers import choice
from tests import test_evaluate

TOK = tokenizer.characters(string.printable)
SLOTS = 24
FOLIO = Row("?", "A", kind="choice", source="folio")
HUMAN_EVAL = Row(
    "def f(x):",
    json.dumps(
        dict(
            tests="def check(f): assert f(1) == 2",
            names=["f"],
            prompt="def f(x):",
            stop=["\nclass", "\ndef"],
        )
    ),
    kind="code",
    source="humaneval",
)


def rollouts_of(texts, truncated):
  return test_evaluate.rollouts_of(TOK, texts, truncated, SLOTS)


def cut(texts, truncated, stop):
  rollouts = rollouts_of(texts, truncated)
  return rollouts, *stop_texts.cut(TOK, rollouts, [stop] * len(texts))


def test_a_response_ends_at_its_first_stop_text():
  """Also where it would have ended later; others do not change."""
  texts = [" A\n------\nContext:------", " A------B", "------", "A -----", "A"]
  truncated = [True, False, True, True, False]
  before, after, found = cut(texts, truncated, ("------",))
  assert found == [" A\n", " A", "", "A -----", "A"]
  assert after.lengths_B.tolist() == [3, 2, 1, 7, 2]  # with EOS of the last
  assert after.truncated_B.tolist() == [False, False, False, True, False]
  assert after.mask_BT.sum(1).tolist() == after.lengths_B.tolist()
  assert before.lengths_B.tolist() == [24, 10, 6, 7, 2], "a copy is changed"
  np.testing.assert_array_equal(after.tokens_BL, before.tokens_BL)


def test_a_token_that_has_more_than_the_stop_text_stays():
  """Its text is cut, so that nothing of the answer is lost."""

  class Pairs:  # tokens of two characters
    eos_token_id = -1

    @staticmethod
    def batch_decode(rows):
      pairs = [[chr(x // 128) + chr(x % 128) for x in row] for row in rows]
      return ["".join(x) for x in pairs]

  text = "A) T------ue"
  ids = [
      128 * ord(a) + ord(b) for a, b in zip(text[::2], text[1::2], strict=True)
  ]
  rollouts = rollouts_of([text[::2]], [True])
  rollouts.tokens_BL[0, 3 : 3 + len(ids)] = ids
  after, found = stop_texts.cut(Pairs, rollouts, [(") T-",)])
  assert found == ["A"] and after.lengths_B.tolist() == [1]
  after, found = stop_texts.cut(Pairs, rollouts, [("---",)])
  assert found == ["A) T"] and after.lengths_B.tolist() == [2]


def test_which_rows_have_stop_texts():
  """Of a known set with the published prompt, and a user's rows of code."""
  assert stop_texts.of_row(FOLIO, "published") == ("------",)
  assert stop_texts.of_row(FOLIO, "choice=published") == ("------",)
  assert stop_texts.of_row(FOLIO, "choice") == ()
  assert stop_texts.of_row(Row("1+1=", "2"), "published") == ()
  assert stop_texts.of_row(HUMAN_EVAL, "published") == ("\nclass", "\ndef")
  assert stop_texts.of_row(HUMAN_EVAL, "r1_zero") == ()
  own = HUMAN_EVAL._replace(source="mine.jsonl")
  assert stop_texts.of_row(own, "code") == ("\nclass", "\ndef")
  streams = json.dumps(dict(cases=[["1", "1"]]))
  for answer in (streams, "", "no tests"):
    row = own._replace(answer=answer)
    assert stop_texts.of_row(row, "published") == ()


def graded(texts, row, style):
  """Responses to a row that reach the limit, two samples of each prompt."""
  return accuracy.respond(
      lambda *_: (rollouts_of(texts, [True] * len(texts)), None),
      TOK,
      files,
      row.source,
      [row] * (len(texts) // 2),
      batch=len(texts) // 2,
      max_prompt=3,
      num_lines=4,
      mean_of=1,
      progress=lambda _: None,
      style=style,
  )


@pytest.fixture
def verifier(monkeypatch):
  """Verifies without workers; code by its text."""

  def begin(pairs):
    found = [
        text == "  x+1\n"
        if row.kind == "code"
        else choice.verify(text, row.answer)
        for text, row in pairs
    ]
    return lambda: found

  monkeypatch.setattr(files, "begin", begin, raising=False)


@pytest.mark.parametrize("style", ["published", "choice"])
def test_the_published_score_of_a_base_model(style, verifier):
  """Four responses that reach the limit; two of them answer before."""
  texts = [" A) True\n------\nContext:", "------", "A", " A\n------"]
  responses = graded(texts, FOLIO, style)
  asked = style == "published"
  assert responses.correct_NG.tolist() == [[asked, 0], [0, asked]]
  assert responses.texts_NG[0] == ([" A) True\n", ""] if asked else texts[:2])
  assert responses.truncated_NG.tolist() == [[not asked] * 2, [1, not asked]]


@pytest.mark.parametrize(
    ("source", "stop"), [("humaneval", "\ndef g"), ("mbpp", "[DONE]")]
)
def test_programs_end_before_what_a_base_model_adds(source, stop, verifier):
  """As their sources do; without tests, no response is correct."""
  answer = json.loads(HUMAN_EVAL.answer) | dict(stop=["\ndef", "[DONE]"])
  row = HUMAN_EVAL._replace(source=source, answer=json.dumps(answer))
  texts = [f"  x+1\n{stop}", f"  x+1\n{stop}\n```", "  x+1", "def f(x):"]
  found = graded(texts, row, "published")
  assert found.correct_NG.tolist() == [[1, 1], [0, 0]]
  assert found.truncated_NG.tolist() == [[0, 0], [1, 1]]
  found = graded(texts, row._replace(answer=""), "published")
  assert found.truncated_NG.all() and not found.correct_NG.any()
