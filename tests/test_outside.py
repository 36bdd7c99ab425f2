"""Rows of files; tasks and verifiers that a user brings."""

import re
import sys
import types

import numpy as np
import pytest
import tiny_session
from conftest import ROOT
from tiny_session import call

from rl_reason import tasks, verifiers
from rl_reason.base.errors import ConfigError
from rl_reason.data import held_out, tokenizer
from rl_reason.stages import evaluate
from rl_reason.tasks import Row, files


def test_verdicts_come_from_other_processes():
  """In order; a verifier that fails costs that response alone."""
  kinds = dict(math="rl_reason.verifiers.math", bad="no.such.module")
  row = Row("", "4", 0, kind="math")
  task = files.Verifier(2, 10.0)
  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(verifiers, "KINDS", kinds)
      verdicts = task.begin(
          [
              (r"\boxed{4}", row),
              (r"\boxed{5}", row),
              (r"\boxed{4}", row._replace(kind="bad")),
              (r"so it is \boxed{2+2}", row),
              (r"\boxed{4}", row._replace(kind="none")),  # nobody is asked
              (r"\boxed{4.1}", row),
              (r"\boxed{4.1}", row._replace(tolerance=0.1)),
          ]
      )
      assert verdicts() == [True, False, None, True, False, False, True]
    assert task.answer(r"\boxed{4}", row) == "4"
    assert task.answer("", row) == ""
  finally:
    task.close()


VERIFIER = """
def check(text, reference):
  if text == "raise":
    raise ValueError(f"no {reference}")
  if text == "hang":
    while True:
      pass
  return text.endswith(reference)

constant = 3
"""


def test_a_verifier_of_the_user(tmp_path, monkeypatch):
  """In worker processes; the first failure is shown, the rest are counted."""
  (tmp_path / "verifier_of_test.py").write_text(VERIFIER)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  kind, shown = "verifier_of_test:check", []
  files.check_kind(kind)
  for wrong in ("verifier_of_test:constant", "verifier_of_test:no", "poetry"):
    with pytest.raises(ValueError):
      files.check_kind(wrong)
  row = Row("", "4", 0, kind=kind)
  task = files.Verifier(1, 0.3, shown.append)
  try:
    texts = ["2+2=4", "raise", "5", "hang", "raise"]
    verdicts = task.begin([(text, row) for text in texts])()
    assert verdicts == [True, None, False, None, None]
    assert task.answer("so\nit is 4\n", row) == "it is 4"
  finally:
    task.close()
  [text] = shown
  assert "verifier_of_test.py" in text and "ValueError: no 4" in text


@pytest.mark.slow
def test_the_task_of_the_documentation(tmp_path, monkeypatch):
  """As printed: checks, problems, demonstrations, and a sampled round."""
  text = (ROOT / "docs" / "tasks.md").read_text()
  [code] = re.findall(r'```python\n("""Add digits.*?)```', text, re.DOTALL)
  assert code.count("\n") <= 40
  (tmp_path / "my_task.py").write_text(code)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  session = tiny_session.make_session(
      tmp_path,
      task__name="my_task",
      sft__habits__mixture="",
      evaluate__prompts=8,
      rollout__batch=8,
  )
  task = session.task
  rows = held_out.evaluation_sets(session.row_source, 8)["my_task"]
  assert len(rows) == 8 and {row.difficulty for row in rows} <= {2, 3, 4, 5, 6}
  for row in rows:
    assert int(row.answer) == sum(map(int, row.prompt[:-1])) % 10
    for style in ("careful", "direct"):
      assert task.verify(task.demonstrate(row, style, None), row)
    assert not task.verify(row.answer, row)
  careful = task.demonstrate(Row("3142=", "0", 4), "careful", None)
  assert careful == "3480#0" and task.answer(careful, rows[0]) == "0"
  params = tiny_session.random_params(session)
  numbers, [responses] = call(evaluate.evaluate, session, params, 8, "testing")
  assert responses.name == "my_task" and len(responses.texts_NG) == 8
  assert 0 <= numbers["val-core/my_task/acc/mean@1"] < 1
  assert numbers["val-aux/verifier_failures"] == 0


MINIMAL = """
from rl_reason.tasks import Row

def problem(rng, difficulty):
  a = int(rng.integers(10 ** difficulty))
  return Row(f"double {a}", str(2 * a))

def verify(text, row):
  return int(text.split()[-1]) == int(row.answer)

class Object:
  ALPHABET = "0123456789 double"
  DIFFICULTIES = (1, 2)
  problem, verify = staticmethod(problem), staticmethod(verify)
  def answer(self, text, row):
    return text.split()[0]

"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
  """A task in the working directory, which is not on the import path."""
  (tmp_path / "task_of_test.py").write_text(MINIMAL)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  yield "task_of_test"
  sys.modules.pop("task_of_test", None)


def test_a_task_of_a_module_has_defaults(outside):
  task = tasks.get(outside)
  row = tasks.draw(task, np.random.default_rng(0), (3,), evaluation=False)
  assert row.prompt.startswith("double ") and row.difficulty == 0
  assert set(row.prompt) <= set(task.ALPHABET)
  assert len(tokenizer.characters(task.ALPHABET)) == 98  # 95, \n, EOS, padding
  assert task.DIFFICULTIES == task.STYLES == () and not task.has_demonstrations
  assert len(task.longest(3)) == len("double 999")
  assert task.answer("First this,\n then 4 \n", row) == "then 4"


def test_a_task_may_be_an_object_or_a_class(outside):
  task = tasks.get(f"{outside}:Object")
  assert task.DIFFICULTIES == (1, 2) and len(task.ALPHABET) == 17
  row = Row("double 2", "4")
  assert task.begin([("4", row), ("5", row)])() == [True, False]
  assert task.answer("4 5", row) == "4"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chess", "none of arithmetic, operators, .*files, .*no module chess"),
        ("task_of_test:Missing", "task_of_test has no Missing"),
        ("math", "has no function problem"),
    ],
)
def test_a_task_that_cannot_be(outside, name, words):
  with pytest.raises(ValueError, match=words):
    tasks.get(name)


def test_a_task_that_raises_is_incorrect_and_shown_once(outside):
  shown = []
  task = tasks.get(outside, shown.append)
  row = Row("double 2", "4")
  verdicts = task.begin([("4", row), ("four", row), ("", row)])()
  assert verdicts == [True, None, None]
  [text] = shown
  assert "task task_of_test failed" in text and "Traceback" in text
  assert "task_of_test.py" in text and "'four'" in text
  raising = tasks.get(f"{outside}:Object", shown.append)
  assert raising.answer("", row) == "", "no vote"
  assert len(shown) == 2 and "IndexError" in shown[1]


def test_a_task_with_too_few_prompts_is_named():
  task = tasks.Task(
      "one",
      types.SimpleNamespace(
          problem=lambda rng, level: Row("1+1=", "2"), verify=None.__eq__
      ),
  )
  rng = np.random.default_rng(0)
  assert tasks.draw(task, rng, (1,), evaluation=False).answer == "2"
  with pytest.raises(ConfigError, match="difficulty 1 none is held out"):
    tasks.draw(task, rng, (1,), evaluation=True)
