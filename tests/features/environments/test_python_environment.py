"""Programs that are run, their tests, and what the policy reads of them."""

import json

import numpy as np
import pytest

from rl_reason import tasks
from rl_reason.features.environments import factory, lines, python
from rl_reason.verifiers import code

RNG = np.random.default_rng(0)
TESTS = "from math import inf\nassert f(3) == 9\nassert f(-2) == 4\nassert f(1)"
ROW = tasks.Row(
    "Square!", json.dumps(dict(tests=TESTS, names=[], prompt="k = 2"))
)
RIGHT = "Now:\n```python\ndef f(x):\n  return x ** k\n```"
HALF = "```python\nprint('hi' * 300)\ndef f(x):\n  return 3 * x\n```"
LOOP = "```python\nwhile True:\n  pass\n```"


@pytest.fixture
def fast(monkeypatch):
  limits = python.LIMITS._replace(cpu=1)
  monkeypatch.setattr(python, "LIMITS", limits)


def play(*responses, row=ROW):
  environment = factory.find("python", tasks.get("arithmetic"))()
  assert environment.reset(row, RNG) is None
  steps = [environment.step(x) for x in responses]
  return environment, steps


def test_a_program_is_repaired():
  """Rewards are changes of the share of passed tests."""
  environment, steps = play("```python\ndef f(x)\n```", HALF, RIGHT)
  (broken, none, _), (half, two, over), (_, last, end) = steps
  assert "SyntaxError" in broken and "0 of 3 tests passed" in broken
  assert half.startswith("Output:\nhihi") and " ... " in half
  assert len(half) < 2 * python.SHOWN and "2 of 3 tests passed" in half
  np.testing.assert_allclose([none, two, last], [0, 2 / 3, 1 / 3])
  assert (over, end, environment.correct()) == (False, True, True)
  assert "9" not in broken + half, "tests are not shown"


def test_programs_that_do_not_end_and_the_last_attempt(fast):
  """A worse program takes back what an earlier one was given."""
  responses = (HALF, LOOP, "no ``` block\n```python\n", "```python\n1 / 0\n```")
  environment, steps = play(*responses)
  assert [round(x[1], 3) for x in steps] == [0.667, -0.667, 0, 0]
  texts = [x[0] for x in steps]
  assert "The program was ended: timeout." in texts[1]
  assert "no program" in texts[2] and "ZeroDivisionError" in texts[3]
  assert [x[2] for x in steps] == [False, False, False, True]
  assert len(steps) == python.ATTEMPTS and not environment.correct()


def test_programs_that_read(fast):
  """The script gets the input of the first case; cases count one by one."""
  cases = [["1 2", "3"], ["4 4", "8"]]
  row = tasks.Row("Add!", json.dumps(dict(cases=cases)))
  adds = "print(sum(map(int, input().split())))"
  found = code.trial("print(3)  # " + adds, row.answer, python.LIMITS)
  assert found == ("3\n", "", 1, 2)
  assert play(adds, row=row)[1][0][1:] == (1.0, True)


def test_demonstrations_of_lines_read_what_the_sandbox_says():
  """For each slope; the same program runs once."""
  task, made = tasks.get("lines"), python.Python()
  row = task.problem(np.random.default_rng(3), 0)
  y = row.prompt.partition(":")[2]
  programs, outcomes = {}, []
  while len(programs) < len(lines.SLOPES):
    for text in task.demonstrate(row, "random", RNG):
      programs[text] = text.removeprefix(f"print({y}+")[0]
  for text in sorted(programs):
    simulated = factory.of_task(task)()
    for one in (simulated, made):
      one.reset(row, RNG)
    outcome = simulated.step(text)
    assert outcome == made.step(text)
    outcomes.append(outcome[1])
  assert sorted(outcomes) == [0, 0, 1]
  assert sorted(programs.values()) == [str(x) for x in lines.SLOPES]


def test_a_program_runs_once(monkeypatch):
  """Against the same tests; against others again."""
  calls = []
  monkeypatch.setattr(
      code, "trial", lambda *x: calls.append(x) or code.Trial("", "", 1, 2)
  )
  rows = [tasks.Row("", f'{{"cases": [["{n}", "4"]]}}') for n in (1, 1, 2)]
  for row in rows:
    assert play("print(4)", row=row)[1][0][1] == 0.5
  assert [x[1] for x in calls] == [rows[0].answer, rows[2].answer]
