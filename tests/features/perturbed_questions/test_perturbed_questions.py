"""Perturbed copies of prompts, and the drop of the accuracy on them."""

import types

import numpy as np
import pytest
import test_pipelines
import tiny_data
from hypothesis import given, strategies as st
from test_evaluate import responses

from rl_reason import tasks
from rl_reason.data import held_out, templates
from rl_reason.data.datasets import Example
from rl_reason.data.screening import Fault
from rl_reason.evaluation import accuracy
from rl_reason.features.perturbed_questions import (
    perturbations,
    perturbed_sets,
)
from rl_reason.report import paired
from rl_reason.tasks import Row, arithmetic, chain, countdown, xor


@given(st.integers(0, 2**32 - 1), st.sampled_from(arithmetic.DIFFICULTIES))
def test_other_numbers_of_a_chain(seed, difficulty):
  """The same signs, and the answer of Python's own arithmetic."""
  rng = np.random.default_rng(seed)
  row = arithmetic.problem(rng, difficulty)
  found = arithmetic.renumber(row, rng)
  assert found.prompt[1::2] == row.prompt[1::2]
  assert found.prompt[:1].isdigit() and "0" not in found.prompt
  assert eval(found.prompt[:-1]) == int(found.answer)
  totals = [eval(found.prompt[: 2 * n + 1]) for n in range(difficulty)]
  assert min(totals) >= 0 and found.difficulty == difficulty


def test_the_longest_run_of_subtractions_has_other_numbers():
  """Nine times minus one from 9 leaves a single chain; six leave several."""
  rng = np.random.default_rng(0)
  only = Row("9" + "-1" * 9 + "=", "0", 10)
  assert arithmetic.renumber(only, rng) == only
  six = Row("9" + "-1" * 6 + "=", "3", 7)
  found = {arithmetic.renumber(six, rng).prompt for _ in range(50)}
  assert len(found) > 10


@pytest.mark.parametrize("task", [arithmetic, countdown])
def test_copies_with_other_numbers_are_held_out(task):
  rng = np.random.default_rng(1)
  rows = [tasks.draw(task, rng, (3,), evaluation=True) for _ in range(20)]
  made = perturbations.copies(["numbers"], {"set": rows}, task, {}, None)
  again = perturbations.copies(["numbers"], {"set": rows}, task, {}, None)
  assert made == again
  for n, row in made["set~numbers"].items():
    assert row.prompt != rows[n].prompt and tasks.held_out(row.prompt)
    assert row.difficulty == rows[n].difficulty
  alone = types.SimpleNamespace(renumber=lambda row, rng: row)
  made = perturbations.copies(["numbers"], {"set": rows[:1]}, alone, {}, None)
  assert "no other copy is held out" in made["set~numbers"][0].reason


def test_a_copy_depends_on_its_prompt_alone():
  """So that evaluations with other numbers of prompts have pairs."""
  rng = np.random.default_rng(3)
  rows = [tasks.draw(xor, rng, (3,), evaluation=True) for _ in range(4)]
  names = ["numbers", "names"]
  last = [row._replace() for row in rows[2:]]
  few = perturbations.copies(names, {"set": last}, xor, {}, None)
  many = perturbations.copies(names, {"set": rows}, xor, {}, None)
  for name in ("set~numbers", "set~names"):
    assert [*few[name].values()] == [*many[name].values()][2:]
  assert few["set~numbers"] != few["set~names"]


@pytest.mark.parametrize("task", [xor, chain])
def test_other_bits_and_other_names_of_letters(task):
  """The demonstration of the copy is correct for the copy, not for the row.

  Other names: the same cases, in another order of letters, with the same
  answer. Other numbers: the same letters, with other cases.
  """
  rng = np.random.default_rng(5)
  for level in task.DIFFICULTIES:
    row = task.problem(rng, level)
    marks = "".join(x for x in row.prompt if not x.isalpha())
    named, other = task.rename(row, rng), task.renumber(row, rng)
    for copy in (named, other):
      assert copy.difficulty == level and copy.prompt.endswith(marks)
      assert sorted(copy.prompt.lower()) == sorted(row.prompt.lower())
      for style in task.STYLES:
        response = task.demonstrate(copy, style, rng)
        assert task.verify(response, copy)
        assert task.answer(response, copy) == copy.answer
      assert not task.verify(task.demonstrate(row, "steps", rng), copy)
    case = [x.isupper() for x in row.prompt]
    assert [x.isupper() for x in named.prompt] == case
    assert named.prompt.lower() != row.prompt.lower()
    assert named.answer == row.answer
    assert other.prompt.lower() == row.prompt.lower()
    assert [x.isupper() for x in other.prompt] != case
  answers = {task.renumber(row, rng).answer for _ in range(40)}
  assert len(answers) > 4


def example(question, kind="math"):
  return Example(question, "4", kind, 3, "rows", "rows:1")


def test_copies_of_questions_of_files():
  """Built by the builder of rows; what has no copy says why."""
  questions = [example(f"What is {n} + 1?") for n in range(20)]
  questions += [example("def f(x):", "code"), example("a" * 200)]
  rows = [Row(x.question, "4") for x in questions]

  def build(x):
    if len(x.question) > 200:
      return Fault("too long", x.question)
    columns = dict.fromkeys(Row._fields, "") | x._asdict()
    return columns | dict(prompt=f"<{x.question}>", messages=[])

  names = ["paraphrase", "distractor"]
  made = perturbations.copies(
      names, {"rows": rows}, None, {"rows": questions}, build
  )
  assert list(made) == ["rows~paraphrase", "rows~distractor"]
  worded = {f"<{x}>": x for x in templates.PARAPHRASES[1:]}
  used = set()
  for n in range(20):
    row = made["rows~paraphrase"][n]
    [wording] = [
        x
        for x in worded
        if row.prompt == x.replace("{question}", questions[n].question)
    ]
    used.add(wording)
    sentence, _, rest = made["rows~distractor"][n].prompt[1:].partition(". ")
    assert rest == questions[n].question + ">" and row.answer == "4"
    assert sentence + "." in perturbations.DISTRACTORS
  assert used == {*worded}, "every wording but the unchanged one"
  assert "program" in made["rows~distractor"][20].reason
  assert made["rows~paraphrase"][21].reason == "too long"
  ask = lambda x: build(x) | dict(prompt="the task")  # noqa: E731
  made = perturbations.copies(
      names, {"rows": rows[:1]}, None, {"rows": questions}, ask
  )
  for of_set in made.values():  # a prompt of its own would equal the original
    assert of_set[0].reason == "the template writes the question itself"


def test_distractors_have_numbers_and_no_equal_sentence():
  for text in perturbations.DISTRACTORS:
    assert any(x.isdigit() for x in text) and text.endswith(".")
  assert len({*perturbations.DISTRACTORS}) == len(perturbations.DISTRACTORS)


def test_which_copies_a_task_can_have():
  parse = perturbations.parse
  assert parse("", "arithmetic") == []
  assert parse("numbers, numbers", "countdown") == ["numbers"]
  assert parse("distractor,paraphrase", "files") == ["distractor", "paraphrase"]
  for text, task, words in (
      ("number", "arithmetic", "'number' is none of paraphrase, dis"),
      ("paraphrase", "arithmetic", "is for questions of files"),
      ("numbers", "files", "the task files has no function renumber"),
      ("numbers", "guess", "the task guess has no function renumber.*numbers$"),
      ("paraphrase", "xor", "form of their own; it can have numbers, names"),
      ("names", "arithmetic", "no function rename.* can have numbers$"),
      ("names", "files", "no function rename.* can have paraphrase, dist"),
  ):
    with pytest.raises(ValueError, match=words):
      parse(text, task)


def test_the_drop_is_paired_by_prompt():
  """Copies of the first and the third prompt: 1 -> 0 and 1 -> 1, greedy."""
  no, texts = [[0, 0]] * 3, [["1", "1"]] * 3
  first = responses([[1, 1], [0, 0], [0, 1]], no, texts, mean_of=1)
  other = [Row("9+9=", "18", 2), Row("8+8=", "16", 2)]
  second = first._replace(
      name="sums~numbers",
      rows=other,
      correct_NG=np.array([[1, 0], [1, 1.0]]),
      truncated_NG=np.zeros((2, 2)),
      texts_NG=texts[:2],
  )
  rows = dict(first=None, second=[first.rows[0], first.rows[2]])
  lines = [
      line
      for x, originals in zip((first, second), rows.values(), strict=True)
      for line in accuracy.lines_of_prompts(
          x, lambda text, row: text, originals=originals
      )
  ]
  tables = []
  display = types.SimpleNamespace(table=lambda *x: tables.append(x))
  copies = {"sums~numbers": {0: other[0], 2: other[1]}}
  values = perturbed_sets.robustness(copies, lines, display)
  name = "val-aux/sums/numbers_minus_original/acc"
  assert values[f"{name}/greedy"] == -0.5 and values[f"{name}/mean@1"] == 0.5
  half = paired.interval(np.array([-1.0, 0]), share=True)[1]
  assert values[f"{name}/greedy/ci95"] == pytest.approx(half)
  [(_, head, rows)] = tables
  row = dict(zip(head, rows[1], strict=True))
  assert row[""] == "sums~numbers" and row["score"] == "greedy"
  assert (row["originals"], row["copies"]) == ("100.0%", "50.0%")
  assert row["prompts"] == "2"


tok_dir, make = tiny_data.tok_dir, tiny_data.make


def test_copies_of_rows_of_files_have_their_template(make, tmp_path):
  """The rows of `evaluation_sets`, in its order, with the limit of a prompt."""
  c = make((), test_pipelines.FIVE, template="dapo")
  names = ["paraphrase", "distractor"]
  source, said = test_pipelines.of_files(tiny_data.run(c, tmp_path)), []
  tok = tiny_data.byte_tokenizer()
  sets = held_out.evaluation_sets(source, c.evaluate.prompts)
  take = names, sets, source, tok, said.append
  found = perturbed_sets.copies(c, *take)
  [rows] = held_out.evaluation_sets(source, 9).values()
  assert list(found) == ["evaluate~paraphrase", "evaluate~distractor"]
  for name, copies in found.items():
    for n, row in enumerate(rows):
      asked = row.prompt.split("\n\n")[1]
      assert asked in copies[n].prompt and "Answer:" in copies[n].prompt
      assert copies[n].answer == row.answer and copies[n].kind == row.kind
      extra = len(copies[n].prompt) - len(row.prompt)
      assert extra > 10, name
  assert not said
  # Characters are tokens: the paraphrases still fit, the sentences do not.
  c.rollout.max_prompt = 32 + max(len(row.prompt) for row in rows)
  found = perturbed_sets.copies(c, *take)
  assert list(found) == ["evaluate~paraphrase"]
  [line] = said
  assert line.startswith("warning: evaluate~distractor: 5 of 5 prompts have no")
  assert "longer than rollout.max_prompt" in line
