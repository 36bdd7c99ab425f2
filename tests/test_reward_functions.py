"""Reward functions of text: by hand, rules of a file, functions of users."""

import asyncio
import decimal
import json
import math

import numpy as np
import pytest

from rl_reason.tasks import Row, reward_functions, reward_terms
from rl_reason.tasks.reward_functions import Response, RewardBatch, number

ROW = Row("5-1+1=", "5", 2)


def score(name, text, row=ROW):
  found = reward_terms.find(name).function(Response(text, 0.5, False), row)
  return number(found)


SCORES = {
    "boxed": {
        r"so \boxed{42}": 1,
        r"\boxed{\frac{1}{2}} and done": 1,
        r"\boxed{}": 1,
        "42": 0,
        r"\boxed{42": 0,
        r"\boxed{\frac{1}{2}": 0,
        r"\boxed{1} or \boxed{2}": 0,
        r"\boxed{1 \boxed{2}}": 0,
    },
    "tags": {
        "<think>a</think><answer>b</answer>": 1,
        " <think>a\nb</think>\n<answer>5</answer>\n": 1,
        "<think>a</think><answer>b</answer> more": 0,
        "so <think>a</think><answer>b</answer>": 0,
        "<think></think><answer>b</answer>": 0,
        "<think>a</think>": 0,
        "<answer>b</answer><think>a</think>": 0,
        "<think>a</think><think>b</think><answer>c</answer>": 0,
        "<think>a</think><answer>b</answer><answer>c</answer>": 0,
        "a</think><answer>b</answer>": 0,
    },
    "steps": {
        "5-1=4;4+1=5;#5": 1,
        "5-1=4;4+1=6;#6": 1 / 2,
        "2 * 3 = 6 and 7 / 2 = 3.5, 1/3=0.3": 2 / 3,
        "0.1+0.2=0.3": 1,
        "-3+5=2": 1,
        "8/0=1": 0,
        "1+2+3=6": 1,
        r"$\frac{1}{2}+\frac12=1$, 3 \times 4 = 13, x + 1 = 3": 1 / 2,
        "3+4=7.5": 0,
        "no steps": 0,
    },
    "repetition": {
        "a b c": 0,
        "a b c d e": 0,
        "a b c a b c a": 1 / 4,  # abca, bcab, cabc, abca
        "no " * 103: 99 / 100,
    },
    "length": {"anything": 0.5},
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
  for text, expected in SCORES[name].items():
    assert score(name, text) == pytest.approx(expected), text


def test_the_first_tag_may_be_the_end_of_the_prompt():
  row = Row("Assistant: <think>\n", "", 0)
  assert score("tags", "a</think><answer>b</answer>", row=row) == 1
  assert score("tags", "<think>a</think><answer>b</answer>", row=row) == 0


def constitution(name, texts, row=ROW):
  """The score and the rules of each response, none of which is truncated."""
  batch = RewardBatch(
      prompts=[row.prompt] * len(texts),
      texts=texts,
      token_ids=[[1, 2]] * len(texts),
      truncated=[False] * len(texts),
      rows=[row] * len(texts),
      max_tokens=4,
  )
  function = reward_terms.find(name)
  return asyncio.run(function.finish(function.start(batch), len(texts)))


RULES = [
    {"name": "shows work", "weight": 2, "require": r"\d="},
    {"name": "no excuses", "weight": 1, "forbid": "sorry"},
    {"name": "steps", "weight": 1, "function": "steps"},
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1+1=2", 1.0), ("1+1=3", 3 / 4), ("sorry", 0), ("sorry 1+1=2", 3 / 4)],
)
def test_a_constitution_is_the_share_of_rules_kept(text, expected, tmp_path):
  path = tmp_path / "rules.json"
  path.write_text(json.dumps(RULES))
  [found] = constitution(str(path), [text])
  assert found["score"] == expected


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ([{"name": "a", "weight": 1}], "rule 'a': needs name"),
        ([{"name": "a", "weight": 1, "forbid": "x", "require": "y"}], "'a'"),
        ([{"name": "a", "weight": 1, "forbid": "("}], "rules.json"),
        ([{"name": "a", "weight": 1, "function": "none"}], "'none' is none of"),
        (
            [dict(name="a", weight=1, function="mine_of_test:of_batch")],
            "a rule needs",
        ),
        ([{"name": "a", "weight": -1, "forbid": "x"}], "must be positive"),
        ([{"name": "a", "weight": 1, "forbid": "x", "why": ""}], "'a'"),
        ([], "must be positive"),
        ({}, "must be positive"),
        (3, "not a list of rules"),
    ],
)
def test_bad_rules_are_named(mine, rules, named, tmp_path):
  path = tmp_path / "rules.json"
  path.write_text(json.dumps(rules))
  with pytest.raises(ValueError, match=named):
    reward_terms.find(str(path))


MINE = """
def short(response, row, *, limit=10):
  return 1 - len(response.text) / limit

def needs(response, row, *, what):
  return 0

def of_batch(batch, *, scale=1):
  return [0] * len(batch.texts)

def alone(text):
  return 0

def odd(response, row, *, where=object()):
  return 0
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
  (tmp_path / "mine_of_test.py").write_text(MINE)
  monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mine_of_test:short", "12345", 0.5),
        ("mine_of_test:short(limit=20)", "12345", 0.75),
        ("mine_of_test:needs(what=(1, 'a, b'))", "", 0),
        ("repetition(run=1)", "a a", 0.5),
        ("mine_of_test:odd", "", 0),
    ],
)
def test_a_function_of_the_user_and_its_keywords(mine, name, text, expected):
  assert score(name, text) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine_of_test:tall", "mine_of_test"),
        ("no_such_module:f", "no_such_module"),
        ("mine_of_test:__name__", "is not a function"),
        ("mine_of_test:short(limits=20)", "limits = 20: .* takes limit; did"),
        ("boxed(run=2)", "run = 2: boxed takes no arguments"),
        ("mine_of_test:needs", "what: .* needs it"),
        ("mine_of_test:of_batch(limit=2)", "takes scale"),
        ("mine_of_test:alone", r"alone takes \(text\): .* \(completions"),
        ("mine_of_test:short(20)", "must look like"),
        ("mine_of_test:short(limit=other)", "must look like"),
        ("mine_of_test:short(limit=20", "must look like"),
    ],
)
def test_a_function_that_cannot_be(mine, name, words):
  with pytest.raises(ValueError, match=words):
    reward_terms.find(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps*0.5", ("steps", 0.5, 0.5)),
        ("length*-0.3", ("length", -0.3, -0.3)),
        ("boxed*0.2..0", ("boxed", 0.2, 0.0)),
        ("a/b*c.json*1e-1..2", ("a/b*c.json", 0.1, 2.0)),
    ],
)
def test_a_term_is_a_name_and_weights(text, expected):
  found = reward_terms.term(text)
  assert found == expected
  other = "mine:f(a=1, b=(2, 3))*1"
  assert reward_terms.terms(f" {text}, length*1,{other}") == (
      found,
      ("length", 1, 1),
      ("mine:f(a=1, b=(2, 3))", 1, 1),
  )
  assert "/" not in found.label and ".json" not in found.label


@pytest.mark.parametrize("text", ["steps*", "*1", "a*x", "a*1..", "a*inf"])
def test_a_term_that_looks_otherwise_is_refused(text):
  with pytest.raises(ValueError, match="must look like"):
    reward_terms.term(text)


@pytest.mark.parametrize(
    ("returned", "scores"),
    [
        *[([1, None], [1, None]), (np.array([1, 0.5]), [1, 0.5])],
        *[((True, np.float32(0)), [1, 0]), (iter([1, 2]), [1, 2])],
        ([decimal.Decimal("0.5"), np.array(1.0)], [0.5, 1]),
        *[(x, "one number each") for x in ({1, 2}, {0: 1, 1: 1}, "10", b"10")],
        *[(x, "one number each") for x in (None, 1.0, [1], [1, 1, 1])],
        *[([x, x], "no finite number") for x in (math.nan, 1e39, -4e38, 1j)],
        *[
            ([x, x], "no finite number")
            for x in (10**400, np.ones(1), {"a": 1})
        ],
        ([[(1, 1e39)], [(1, -1e39)]], "finite numbers"),
    ],
)
def test_what_a_function_of_trl_may_return(returned, scores):
  """A number for each response, in their order, that stays one in float32."""
  function = reward_functions.RewardFunction("f", None, "completions")
  found = asyncio.run(function.finish([returned], 2))
  if isinstance(scores, list):
    assert found == scores
  else:
    assert all(scores in x and isinstance(x, str) for x in found)
