"""Rows of files, and the tasks and verifiers of users."""

import re
import sys

import pytest
import tiny_session
from conftest import ROOT

from rl_reason import tasks, verifiers
from rl_reason.evaluation import evaluate
from rl_reason.tasks import files


def test_verdicts_come_from_other_processes():
  """In order; a verifier that fails costs that response alone."""
  kinds = dict(math="rl_reason.verifiers.math", bad="no.such.module")
  row = tasks.Row("", "4", 0, kind="math")
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
              (r"\boxed{4.1}", row),
              (r"\boxed{4.1}", row._replace(tolerance=0.1)),
          ]
      )
      assert verdicts() == [True, False, None, True, False, True]
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
  row = tasks.Row("", "4", 0, kind=kind)
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


def test_the_task_of_the_documentation(tmp_path, monkeypatch):
  """As printed: checks, problems, demonstrations, and a sampled round."""
  text = (ROOT / "docs" / "data.md").read_text()
  [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  assert code.count("\n") <= 40
  (tmp_path / "my_task.py").write_text(code)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  session = tiny_session.make_session(
      tmp_path, task__name="my_task", evaluate__prompts=8, rollout__batch=8
  )
  task = session.task
  rows = session.rows.evaluation_sets(8)["my_task"]
  assert len(rows) == 8 and {row.difficulty for row in rows} <= {2, 3, 4, 5, 6}
  for row in rows:
    assert int(row.answer) == sum(map(int, row.prompt[:-1])) % 10
    for style in ("careful", "direct"):
      assert task.verify(task.demonstrate(row, style, None), row)
    assert not task.verify(row.answer, row)
  careful = task.demonstrate(tasks.Row("3142=", "0", 4), "careful", None)
  assert careful == "3480#0" and task.answer(careful, rows[0]) == "0"
  params = tiny_session.random_params(session)
  numbers, [responses] = evaluate.evaluate(session, params, 8, "testing")
  assert responses.name == "my_task" and len(responses.texts_NG) == 8
  assert 0 <= numbers["val-core/my_task/acc/mean@1"] < 1
  assert numbers["val-aux/verifier_failures"] == 0
