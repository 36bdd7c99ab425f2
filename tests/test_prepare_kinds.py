"""Preparation by kind: templates, chats, rows without answers, the screen."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import datetime
import threading
import types

import pyarrow.parquet
import pytest
from tiny_data import (  # noqa: F401  (fixtures)
    FIVE,
    make,
    report,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason import verifiers
from rl_reason.data import datasets, preparation_report, screening
from rl_reason.stages import prepare
from rl_reason.verifiers import code, sandbox

FAILS = "assert f(1) == 9"


def test_prompts_without_reference_answers(make, tmp_path):
  """Rewards judge them, and read the turns and all columns of the row."""
  day = datetime.date(2026, 1, 2)
  table = pyarrow.Table.from_pylist(
      [
          {"question": f"Poem {i}?", "limit": {"words": i}, "day": day}
          for i in (3, 4)
      ]
  )
  c = make(kind="none", chat=True, system="Rhyme.")
  c.reward.functions = "length*-1"
  c.data.train = str(tmp_path / "poems.parquet")
  pyarrow.parquet.write_table(table, c.data.train)
  first, second = rows(run(c, tmp_path))
  assert (first.answer, first.kind) == ("", "none")
  assert first.messages == [
      {"role": "system", "content": "Rhyme."},
      {"role": "user", "content": "Poem 3?"},
  ]
  assert second.columns == {
      "question": "Poem 4?",
      "limit": {"words": 4},
      "day": "2026-01-02",
  }
  assert len({first, second, first}) == 2  # rows may be keys
  assert not report(tmp_path / "data")["dropped"]


def test_chats_are_taken_whole(make, tmp_path):
  """Their own system turn comes before that of the config."""
  ask = dict(role="user", content="1+1?")
  system = dict(role="system", content="Count.")
  said = dict(role="assistant", content="2")
  chats = [
      [ask],
      [system, ask],
      [ask, said, ask],
      [system | {"content": "<|e|>"}, ask],
      [ask, said, ask],
      [ask, said | {"content": "3"}, ask, said],
  ]
  c = make(
      [dict(prompt=x, answer="2") for x in chats], chat=True, system="Be short."
  )
  found = rows(run(c, tmp_path / "1"))
  assert [row.prompt for row in found] == [
      "<|s|>system Be short.<|s|>user 1+1?<|s|>",
      "<|s|>system Count.<|s|>user 1+1?<|s|>",
      "<|s|>system Be short.<|s|>user 1+1?<|s|>assistant 2<|s|>user 1+1?<|s|>",
      "<|s|>system Be short.<|s|>user 1+1?<|s|>assistant 3<|s|>user 1+1?<|s|>",
  ]
  assert found[1].messages == chats[1]
  assert [row.response for row in found] == ["", "", "", "2"]
  assert report(tmp_path / "1" / "data")["dropped"] == {
      "the question contains a special token": 1,
      screening.DUPLICATE: 1,
  }
  c.data.chat, c.data.system = False, ""
  [row] = rows(run(c, tmp_path / "2"))
  assert (row.prompt, row.messages) == ("1+1?", [])
  assert (
      "the prompt has several turns; data.chat = True keeps it"
      in report(tmp_path / "2" / "data")["dropped"]
  )


def test_the_screen_says_what_is_dropped(make, tmp_path):
  """Also where the preparation is reused; demonstrations if SFT needs them."""
  train = [*FIVE, *[(f"{i}{'x' * 400}", "1") for i in range(3)], ("?", "x")]
  c = make(train)
  worked = [("2+2?", f"{'2 ' * 60}\n#### 4")]
  c.data.train += ",gsm8k:train@" + write(tmp_path / "worked.jsonl", worked)
  first, second = c.data.train.split(",")
  expected = [
      f"5 of 9 rows of {first} kept",
      f"3 of 9 rows of {first} dropped: the prompt is longer than"
      " rollout.max_prompt = 400; raise it (the longest has 401 tokens)",
      f"1 of 9 rows of {first} dropped: the reference answer cannot be"
      " verified (as in train.jsonl:9: x)",
      f"1 of 1 rows of {second} kept",
      f"1 of 1 rows of {second} have no demonstration: a response is longer"
      " than rollout.max_tokens = 40; raise it",
  ]
  for steps in (1, 0):
    c.sft.steps, said = steps, []
    c.advantage.groups = "prompt" if steps else "type"
    screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
    place = prepare.run(c, tmp_path, screen, threading.Event())
    lines = [line for line in said if " rows of " in line]
    if not steps:
      assert "all rows of data.train have the same one" in lines.pop()
    assert lines == (expected if steps else expected[:-1])
  text = (place / "data.md").read_text()
  assert "- No demonstration in 1 rows that are kept: a response is" in text


def test_math_and_code_in_one_run(make, tmp_path):
  """Each source has its kind, its template and its form of a response."""
  task = dict(
      text="Add one.",
      code="def f(x):\n  return x + 1",
      test_list=["assert f(1) == 2"],
  )
  c = make(FIVE[:1], template="math=qwen_boxed,code=code")
  c.data.train += ",mbpp:train@" + write(tmp_path / "mbpp.jsonl", [task])
  c.data.evaluate = "humaneval@" + write(
      tmp_path / "he.jsonl",
      [dict(prompt="def g():", test="def check(f): assert f", entry_point="g")],
  )
  # The verifier of these tests would not take tests for an answer.
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(verifiers.KINDS, "code", "rl_reason.verifiers.code")
    c.rollout.max_tokens = 80
    place = run(c, tmp_path)
  math, code = rows(place)
  [human] = rows(place, "evaluate")
  assert math.prompt.endswith("put the final answer into \\boxed{}.")
  assert code.prompt.startswith("Solve this task in Python.\n\nAdd one.")
  assert code.response == "```python\ndef f(x):\n  return x + 1\n```"
  assert human.prompt.startswith("Solve this task in Python.")
  assert [x.kind for x in (math, code, human)] == ["math", "code", "code"]


@pytest.mark.parametrize(("programs", "steps"), [(0, 9), (1, 9), (0, 0)])
def test_solutions_that_fail_their_own_tests_are_not_imitated(
    make, tmp_path, monkeypatch, programs, steps
):
  """Their rows stay for RL; a field limits the number that is run."""
  try:
    sandbox.tier()
  except RuntimeError as e:
    pytest.skip(str(e))
  problems = [
      dict(text=f"Add {n}.", code=f"def f(x): return x + {n}", test_list=[test])
      for n, test in enumerate(["assert f(1) == 1", "assert f(1) == 3"])
  ]
  c = make(FIVE[:1], template="math=qwen_boxed,code=code", programs=programs)
  c.data.train += ",mbpp:train@" + write(tmp_path / "mbpp.jsonl", problems)
  c.sft.steps = steps
  monkeypatch.setattr(prepare, "TRIED", 1)
  said = []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(verifiers.KINDS, "code", "rl_reason.verifiers.code")
    c.rollout.max_tokens = 80
    place = prepare.run(c, tmp_path, screen, threading.Event())
  warned = [x for x in said if "fails the tests" in x]
  unchecked = [x for x in said if "were not run" in x]
  imitated = [x.response for x in rows(place) if "Add" in x.prompt]
  assert len(imitated) == 2 and imitated[0]
  if not steps:  # the first one shows that the verifier works
    assert imitated[1] and not warned and not unchecked
    return
  if programs:
    assert imitated[1] and not warned
    assert unchecked[0].startswith("1 programs of mbpp:train")
    assert unchecked[0].endswith("data.programs = 0 runs all")
    return
  assert not imitated[1] and not unchecked
  (warning,) = warned
  assert warning.startswith("warning: 1 of 2 rows of mbpp:train")
  assert (
      "rejects the solution of mbpp.jsonl:2." in (place / "data.md").read_text()
  )


KODCODE = dict(
    question="Add one.",
    solution="def f(x):\n  return x + 1",
    test="from solution import f\n\ndef test_f():\n  assert f(1) == 2\n",
    test_info=[dict(function_declaration="def f(x):")],
)


@pytest.mark.parametrize(
    ("fields", "question", "program"),
    [
        (KODCODE, "Add one.\n\nDefine:\n\ndef f(x):", KODCODE["solution"]),
        (
            dict(
                prompt="Add two numbers.",
                verification_info='{"language": "python", "test_cases":'
                ' [{"type": "stdin_stdout", "input": "1 2", "output": "3"}]}',
                gold_standard_solution="```python\nprint(3)\n```",
            ),
            "Add two numbers.",
            "print(3)",
        ),
        (
            dict(
                question_content="Add one.",
                starter_code="class Solution:\n  def g(self, x):",
                public_test_cases='[{"input": "1", "output": "2",'
                ' "testtype": "functional"}]',
                metadata='{"func_name": "g"}',
            ),
            "Add one.\n\nDefine:\n\nclass Solution:\n  def g(self, x):",
            "",
        ),
        (
            dict(
                question="Add one by `g`.",
                solutions='["#include <x>", "def g(x): return x + 1"]',
                input_output='{"fn_name": "g", "inputs": [[1]],'
                ' "outputs": [2]}',
            ),
            "Add one by `g`.",
            "def g(x): return x + 1",
        ),
        (
            dict(
                prompt=[dict(role="user", content="Add.")],
                reward_model=dict(
                    ground_truth='{"inputs": ["1 2"], "outputs": ["3"]}'
                ),
            ),
            "Add.",
            "",
        ),
        (dict(question="Add.", inputs=["1 2"], outputs=["3"]), "Add.", ""),
    ],
)
def test_rows_of_code_sets(tmp_path, fields, question, program):
  """Their columns are known, and what the program must define is said."""
  source = datasets.parse(write(tmp_path / "rows.jsonl", [fields]))
  mapping = datasets.columns("")
  [row] = datasets.examples(source, mapping, "code")
  assert (row.question, row.solution) == (question, program)
  assert code.usable(row.answer)
  named = next(x for x in ("test", "inputs", *fields) if x in fields)
  if named == "test":
    mapping = datasets.columns("answer=test")
    assert [row] == list(datasets.examples(source, mapping, "code"))


def test_tests_that_no_program_passes_are_named(make, tmp_path):
  """By the solution of the row; and tests of other forms, by all forms."""
  wrong = KODCODE | dict(question="Add 1 to x.", solution="def f(x): return x")
  nothing = KODCODE | dict(question="Add", test="def test_f(): f(1)")
  other = KODCODE | dict(question="Plus", test="import pandas\nassert f(1)")
  c = make([KODCODE, wrong, nothing, other], kind="code", template="code")
  c.data.max_corrupt = 1.0
  c.rollout.max_tokens = 80
  said = []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(verifiers.KINDS, "code", "rl_reason.verifiers.code")
    place = prepare.run(c, tmp_path, screen, threading.Event())
  assert [bool(x.response) for x in rows(place)] == [True, False]
  [dropped] = [x for x in said if "malformed" in x]
  assert dropped.startswith("2 of 4 rows") and "{inputs, outputs}" in dropped
  assert "the tests assert nothing" in dropped
  [failing] = [x for x in said if "fails the tests" in x]
  assert failing.startswith("warning: 1 of 4 rows")
  text = (place / "data.md").read_text()
  assert "rejects the solution of train.jsonl:2." in text
  assert "the tests import pandas" in text


def test_what_sft_imitates_decides_whether_data_are_prepared_again(
    make, tmp_path, monkeypatch
):
  """Only of programs to train on, whose number no field gives."""
  monkeypatch.setitem(verifiers.KINDS, "code", "rl_reason.verifiers.code")
  monkeypatch.setattr(screening.ReferenceChecker, "rejects", lambda *_: None)
  test = dict(text="Add 1.", code="def f(x): return x + 1", test_list=[FAILS])
  mbpp = f"@{write(tmp_path / 'mbpp.jsonl', [test])}"
  c = make(FIVE[:1], template="math=qwen_boxed,code=code")
  math, evaluate, said = c.data.train, c.data.evaluate, []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)

  def is_made_again(workdir="run", **fields):
    said.clear()
    c.sft.update(fields)
    prepare.run(c, tmp_path / workdir, screen, threading.Event())
    return not any("prepared already" in line for line in said)

  c.data.train = f"{math},mbpp:train{mbpp}"
  assert is_made_again(steps=0) and not is_made_again(steps=0)
  assert is_made_again(steps=9) and not is_made_again(steps=8)
  assert is_made_again(samples="x.jsonl"), "SFT imitates the file alone"
  assert not is_made_again(samples="", steps=0)
  c.data.programs = 1
  assert is_made_again(steps=0) and not is_made_again(steps=9)
  c.data.update(programs=0, train=math, evaluate=f"{evaluate},mbpp{mbpp}")
  assert is_made_again(steps=0) and not is_made_again(steps=9)


def test_programs_that_cannot_be_verified_are_said(make, tmp_path):
  """Their verifier raises here, as without a sandbox; SFT imitates them."""
  test = dict(text="Add 1.", code="def f(x): return x + 1", test_list=[FAILS])
  c = make(FIVE[:1], template="math=qwen_boxed,code=code")
  c.data.train += ",mbpp:train@" + write(tmp_path / "mbpp.jsonl", [test])
  said = []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(screening.ReferenceChecker, "fault", lambda *_: None)
    place = prepare.run(c, tmp_path, screen, threading.Event())
  [warning] = [x for x in said if "verifier failed" in x]
  assert "failed on 1 programs of mbpp:train" in warning
  assert [x.response for x in rows(place)][1]


def test_responses_that_the_verifier_rejects_are_not_imitated(make, tmp_path):
  """Their questions stay; the screen shows the prompt as the model reads it."""
  pairs = [
      dict(question=f"{n}+1?", answer=str(n + 1), response=text)
      for n, text in enumerate(["\\boxed{1}", "\\boxed{9}", "\\boxed{3}"])
  ]
  said = []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
  c = make(pairs)
  place = prepare.run(c, tmp_path, screen, threading.Event())
  (warning,) = [x for x in said if "the verifier rejects" in x]
  assert warning.startswith("warning: 1 of 3 rows of ")
  assert warning.endswith(f" have no demonstration: {screening.INCORRECT}")
  kept = [row.response for row in rows(place)]
  assert kept == ["\\boxed{1}", "", "\\boxed{3}"]
  assert "the first prompt, as the model reads it: '0+1?'" in said
  text = (place / "data.md").read_text()
  assert "The first prompt, as the model reads it:\n\n    0+1?\n" in text


def test_a_preference_for_an_incorrect_response_is_not_learned(make, tmp_path):
  """Neither by SFT nor by a reward model; its question stays, and it counts."""
  pairs = [
      dict(question="1+1?", answer="2", response="\\boxed{2}"),
      dict(question="2+2?", answer="4", response="\\boxed{3}"),
  ]
  place = run(make([x | dict(rejected="\\boxed{9}") for x in pairs]), tmp_path)
  found = [(row.response, row.rejected) for row in rows(place)]
  assert found == [("\\boxed{2}", "\\boxed{9}"), ("", "")]
  assert report(place)["undemonstrated"] == {screening.INCORRECT: 1}


def test_rows_without_a_verifier_keep_all_responses(make, tmp_path):
  wrong = dict(question="1+1?", answer="2", response="\\boxed{3}")
  c = make([wrong], kind="none")
  c.reward.functions = "length*-1"
  place = run(c, tmp_path / "none")
  assert [row.response for row in rows(place)] == ["\\boxed{3}"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_row_without_a_place_contradicts_as_well(make, tmp_path, order):
  """Its response has a special token, so that the row itself is dropped."""
  pairs = [
      dict(question="2+2?", answer="5", response="<|s|> \\boxed{5}"),
      dict(question="2+2?", answer="4", response="\\boxed{4}"),
      dict(question="1+1?", answer="2"),
  ]
  place = run(make(pairs[::order]), tmp_path)
  assert [row.answer for row in rows(place)] == ["2"]


def test_a_prompt_is_evaluated_whatever_its_response(make, tmp_path):
  long = dict(question="2+2?", answer="4", response="4" * 99)
  place = run(make(FIVE, [long, long | dict(rejected="5")]), tmp_path)
  [row] = rows(place, "evaluate")
  assert (row.answer, row.response) == ("4", "")


def test_answers_contradict_each_other_whatever_the_responses(make, tmp_path):
  pairs = [
      dict(question="1+1?", answer="2", response="\\boxed{2}"),
      dict(question="1+1?", answer="2.0", response="so \\boxed{2}"),
      dict(question="2+2?", answer="4", response="\\boxed{4}"),
      dict(question="2+2?", answer="5", response="\\boxed{5}"),
  ]
  place = run(make(pairs), tmp_path)
  assert [row.answer for row in rows(place)] == ["2", "2.0"]
  assert report(place)["dropped"] == {screening.CONTRADICTION: 2}


def test_lists_whose_order_does_not_matter_are_said(
    make, tmp_path, monkeypatch
):
  """With the remedy, which compares the order; brackets have one already."""
  for kind in ("math", "ordered"):
    monkeypatch.setitem(verifiers.KINDS, kind, f"rl_reason.verifiers.{kind}")
  data = [
      ("Sort 7, 3, 5!", "3, 5, 7"),
      ("Roots?", "1 and 2"),
      ("Point?", "(3, 5)"),
      ("Thousand?", "1,000"),
      ("Which?", "3 is the only possible value"),
      ("Why?", "the value exists for every number that divides the others"),
      ("When?", "0 is impossible if it has a root"),
  ]
  run(make(data), tmp_path / "math")
  found = report(tmp_path / "math" / "data")
  assert (found["lists"], found["listed"]) == (2, "3, 5, 7")
  assert found["dropped"] == {screening.UNVERIFIABLE: 2}
  [line] = [
      x for x in preparation_report.lines([found], True) if "'ordered'" in x
  ]
  assert "2 reference answers" in line and "'3, 5, 7'" in line
  assert "data.kind = 'ordered'" in line
  first, *_ = rows(run(make(data, kind="ordered"), tmp_path / "ordered"))
  assert first.kind == "ordered"
  assert not report(tmp_path / "ordered" / "data")["lists"]
