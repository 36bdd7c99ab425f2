"""Tasks: verifiers against hostile text, demonstrations, and held-out rows."""

import hashlib
import re
import sys
import types

import numpy as np
import pytest

from rl_reason import tasks
from rl_reason.config import ConfigError
from rl_reason.data import tokenizer
from rl_reason.tasks import Row, arithmetic, countdown

TASKS = dict(arithmetic=arithmetic, countdown=countdown)
CHAIN = Row("5-1+1+9-6=", "8", 5)  # 4, 5, 14, 8


def some(task, count=200, levels=None, seed=0):
  """Training rows and the generator that drew them."""
  rng = np.random.default_rng(seed)
  levels = levels or task.DIFFICULTIES
  for _ in range(count):
    yield tasks.draw(task, rng, levels, evaluation=False), rng


# --- arithmetic --------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["#8", "5-1=4;4+1=5;5+9=14;14-6=8;#8", "nonsense#8", "5-1=7;7+1=8;#8"],
)
def test_arithmetic_right(text):
  """Only the answer is judged: the work before it may be anything."""
  assert arithmetic.verify(text, CHAIN)
  assert arithmetic.answer(text, CHAIN) == "8"


@pytest.mark.parametrize(
    "text",
    [
        *["", "8", "8#", "#", "##8", "#8#", "#8#8", "#7#8", "8=8"],
        *["#9", "#88", "#18", "#-8", "#+8", "#8.0", "#8;", "#4+4", "#0x8"],
        "#08",  # compared as text: one spelling of a number is right
        *["# 8", "#8 ", "#8\n", "\n#8\n", "#8\0"],
        *["#\u0668", "#\uff18", "#\u2467", "#\u2078"],  # other scripts' eights
        "#" + "8" * 100_000,
        "#" * 100_000,
    ],
)
def test_arithmetic_wrong(text):
  assert not arithmetic.verify(text, CHAIN)


@pytest.mark.parametrize(
    "text, answer",
    [
        *[("1;#08", "08"), ("#7", "7"), ("#-7", ""), ("7", ""), ("", "")],
        *[("#", ""), ("#7#", ""), ("#\u0667", ""), ("#\u00b2", "")],
    ],
)
def test_arithmetic_answer(text, answer):
  """What votes for maj@k: '' does not."""
  assert arithmetic.answer(text, CHAIN) == answer


def test_arithmetic_verifies_huge_texts_quickly():
  """Neither int() of a million digits (an error) nor backtracking."""
  assert not arithmetic.verify("9" * 10**6 + "#" + "9" * 10**6, CHAIN)


def evaluate_chain(prompt):
  """Running totals of a prompt, worked out here with int() and a regex."""
  totals = [int(prompt[0])]
  for sign, digit in re.findall(r"([+-])(\d)", prompt):
    totals.append(totals[-1] + int(sign + digit))
  return totals


def test_arithmetic_problems():
  for level in arithmetic.DIFFICULTIES:
    for row, _ in some(arithmetic, 60, [level]):
      assert re.fullmatch(r"[1-9]([+-][1-9])*=", row.prompt)
      assert len(row.prompt) == 2 * level == len(arithmetic.longest(level))
      assert row.difficulty == level
      totals = evaluate_chain(row.prompt)
      assert row.answer == str(totals[-1])
      assert min(totals) >= 0 and max(totals) <= 99


def steps_of(text):
  """[('5', '-1', '4'), ...] and the answer of a demonstration."""
  *steps, last = text.split(";")
  assert re.fullmatch(r"#-?\d+", last), text
  matches = [re.fullmatch(r"(-?\d+)((?:[+-]\d)+)=(-?\d+)", s) for s in steps]
  assert all(matches), text
  return [m.groups() for m in matches], last[1:]


def worked(step):
  """Whether one step is right."""
  total, moves, result = step
  return int(total) + sum(map(int, re.findall(r"[+-]\d", moves))) == int(result)


def test_careful_demonstration_by_hand():
  rng = np.random.default_rng(0)
  got = arithmetic.demonstrate(CHAIN, "careful", rng)
  assert got == "5-1=4;4+1=5;5+9=14;14-6=8;#8"
  assert arithmetic.demonstrate(CHAIN, "direct", rng) == "#8"


def test_careful_is_right_and_fits():
  """At most 83 tokens with its EOS: ten steps of 7, then 8, then '#dd'.

  Six operands take 43 at most.
  """
  longest = 0
  for row, rng in some(arithmetic, 500):
    text = arithmetic.demonstrate(row, "careful", rng)
    assert arithmetic.verify(text, row)
    steps, _ = steps_of(text)
    assert len(steps) == row.difficulty - 1
    assert all(map(worked, steps))
    longest = max(longest, len(text) + 1)
  assert longest <= 83 <= arithmetic.MAX_RESPONSE
  worst = Row("9+9+9+9+9+9=", "54", 6)
  text = arithmetic.demonstrate(worst, "careful", rng)
  assert text == "9+9=18;18+9=27;27+9=36;36+9=45;45+9=54;#54"
  assert len(text) + 1 == 43


def test_leap_takes_two_or_three_operations_a_step():
  sizes = set()
  for row, rng in some(arithmetic, 300):
    text = arithmetic.demonstrate(row, "leap", rng)
    assert arithmetic.verify(text, row)
    steps, _ = steps_of(text)
    assert all(map(worked, steps))
    counts = [len(moves) // 2 for _, moves, _ in steps]
    assert sum(counts) == row.difficulty - 1
    assert counts[-1] in (1, 2, 3)  # what is left
    sizes.update(counts[:-1])
  assert sizes == {2, 3}


def test_direct_and_ramble_are_right():
  for row, rng in some(arithmetic):
    assert arithmetic.demonstrate(row, "direct", rng) == f"#{row.answer}"
    text = arithmetic.demonstrate(row, "ramble", rng)
    assert arithmetic.verify(text, row)
    steps, _ = steps_of(text)
    assert all(map(worked, steps))
    # Each careful step is there, in order, one to three times.
    careful, _ = steps_of(arithmetic.demonstrate(row, "careful", rng))
    at = 0
    for step in careful:
      repeats = 0
      while at < len(steps) and steps[at] == step and repeats < 3:
        at, repeats = at + 1, repeats + 1
      assert repeats >= 1
    assert at == len(steps)


def test_sloppy_gets_three_steps_in_ten_wrong():
  """Its work is consistent: each step goes on from the (wrong) total."""
  wrong, right_answers = [], []
  for row, rng in some(arithmetic, 600):
    text = arithmetic.demonstrate(row, "sloppy", rng)
    steps, last = steps_of(text)
    assert [s[0] for s in steps] == [row.prompt[0]] + [s[2] for s in steps[:-1]]
    assert steps[-1][2] == last
    wrong += [not worked(s) for s in steps]
    right_answers.append(arithmetic.verify(text, row))
  # A mistake towards below 0 is held at 0 and may be none: a little under 0.3.
  # About 1800 steps: one standard error is 0.011.
  assert 0.25 < np.mean(wrong) < 0.33
  assert 0.2 < np.mean(right_answers) < 0.6  # 0.7 ** 3 = 0.34 of 3 steps


def test_sloppy_totals_stay_in_range():
  """From a total that is too low, a minus must not lead below 0."""
  for row, rng in some(arithmetic, 600):
    text = arithmetic.demonstrate(row, "sloppy", rng)
    steps, _ = steps_of(text)
    assert all(0 <= int(s[2]) <= 99 for s in steps)


# --- countdown ---------------------------------------------------------------

HAND = Row("2,3,7:13=", "13", 3)


@pytest.mark.parametrize(
    "text",
    [
        "2*3=6;6+7=13#",
        "3*2=6;7+6=13#",  # either order
        "2+3=5;5*7=35?2*3=6;6+7=13#",  # a retry
        "2+3=9?7?2*3=6;6+7=13#",  # an attempt given up may be anything
        "?2*3=6;6+7=13#",
    ],
)
def test_countdown_right(text):
  assert countdown.verify(text, HAND)
  assert countdown.answer(text, HAND) == text[:-1].split("?")[-1]


@pytest.mark.parametrize(
    "text",
    [
        *["", "#", "?#", ";#", "13#", "=13#", "2*3=6;6+7=13", "#2*3=6;6+7=13"],
        "2*3=6;6+7=13?",  # right, and given up
        "2*3=7;7+7=14#",  # wrong arithmetic
        "2*3=5;5+7=13#",  # all numbers used, the target claimed
        "2*3=5;6+7=13#",
        "2+3=5;5*7=35#",  # claims success after failing
        "2*3=6;6+7=13#?2+3=5;5*7=35#",
        "6+7=13#",  # a number that was never there
        "6+7=13;2*3=6#",  # used before it is made
        "2*3=6;6+6=12#",  # one used twice
        "2*3=6;6+7=13;13+2=15#",
        "2*3=6;2*3=6;6+7=13#",
        "2*3=6#",  # 7 is unused
        "3+7=10#",
        "7-3=4;2-4=-2#",  # no negative numbers
        "2-3=-1;7--1=8#",
        "2-7=5;5+3=8#",
        "x2*3=6;6+7=13#",  # garbage before, between, behind
        " 2*3=6;6+7=13#",
        "2*3=6;;6+7=13#",
        "2*3=6; 6+7=13#",
        "2*3=6;6+7=13;#",
        "2*3=6;6+7=13##",
        "2*3=6;6+7=13#\n",
        "2*3=6;6+7=13\n#",
        "2+3+7=12#",  # two numbers a step
        "2*3=6;6/7=13#",
        "\u0662*3=6;6+7=13#",  # an Arabic-Indic two
        "2*3=6.0;6+7=13#",
        "99999*2=199998#",  # more digits than a step may have
        "2*3=6;" * 20_000 + "#",
        "9" * 100_000 + "#",
    ],
)
def test_countdown_wrong(text):
  assert not countdown.verify(text, HAND)


def test_countdown_counts_numbers_with_their_multiplicity():
  """2, 2, 5: a result of 0 must be used up as well."""
  row = Row("2,2,5:5=", "5", 3)
  assert countdown.verify("2-2=0;0+5=5#", row)
  assert countdown.verify("5-2=3;3+2=5#", row)
  assert not countdown.verify("2-2=0#", row)
  assert not countdown.verify("5*2=10;10-5=5#", row)
  assert countdown.verify("2*2=4#", Row("2,2:4=", "4", 2))
  assert not countdown.verify("2*2=4#", Row("2,3:4=", "4", 2))


def test_countdown_problems_can_be_solved():
  for row, rng in some(countdown, 100):
    numbers, target = re.fullmatch(r"([1-9,]+):(\d+)=", row.prompt).groups()
    numbers = numbers.split(",")
    assert len(numbers) == row.difficulty and numbers == sorted(numbers)
    assert target == row.answer and 1 <= int(target) <= 99
    assert len(row.prompt) <= len(countdown.longest(row.difficulty))
    careful = countdown.demonstrate(row, "careful", rng)
    assert countdown.verify(careful, row)
    assert "?" not in careful


def test_countdown_styles():
  """search tries again until it is right; hasty claims its first attempt."""
  retried, hasty_right = 0, 0
  for row, rng in some(countdown, 200):
    search = countdown.demonstrate(row, "search", rng)
    assert countdown.verify(search, row)
    for failed in search[:-1].split("?")[:-1]:
      assert not countdown.verify(failed + "#", row), "gave up a right one"
    retried += "?" in search
    hasty = countdown.demonstrate(row, "hasty", rng)
    assert "?" not in hasty and hasty.endswith("#")
    hasty_right += countdown.verify(hasty, row)
  assert retried > 60
  assert 5 < hasty_right < 140


# --- both --------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_texts_stay_inside_the_alphabet(name):
  task = TASKS[name]
  assert len(set(task.ALPHABET)) == len(task.ALPHABET)
  for style in task.STYLES:
    for row, rng in some(task, 40):
      text = task.demonstrate(row, style, rng)
      assert set(row.prompt + text) <= set(task.ALPHABET)
      if style != "ramble":  # meant to run into the limit
        assert len(text) + 1 <= task.MAX_RESPONSE


@pytest.mark.parametrize("name", TASKS)
def test_rows_depend_on_the_generator_only(name):

  def rows(seed):
    return [row for row, _ in some(TASKS[name], 30, seed=seed)]

  assert rows(0) == rows(0) != rows(1)


def hashed(prompt):
  """The split, from its definition: SHA-256, first 64 bits, modulo 5."""
  return int(hashlib.sha256(prompt.encode()).hexdigest()[:16], 16) % 5 == 0


def test_split_is_pinned():
  """These 14 of the 81 sums are held out, today and in every version."""
  sums = [f"{a}+{b}=" for a in range(1, 10) for b in range(1, 10)]
  wanted = (
      "1+2= 2+7= 3+4= 3+7= 4+5= 4+9= 5+6= 6+3= 6+7= 7+5= 7+8= 8+3= 8+6= 9+3="
  )
  assert [s for s in sums if tasks.held_out(s)] == wanted.split()
  assert [s for s in sums if hashed(s)] == wanted.split()


@pytest.mark.parametrize("name", TASKS)
def test_training_never_sees_a_held_out_prompt(name):
  rows = [row for row, _ in some(TASKS[name], 500)]
  assert not any(hashed(row.prompt) for row in rows)
  assert {row.difficulty for row in rows} == set(TASKS[name].DIFFICULTIES)


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_rows(name):
  """Distinct, held out, a mix of levels from the start, always the same."""
  task = TASKS[name]
  rows = tasks.evaluation_rows(task, task.DIFFICULTIES, 150)
  assert len({row.prompt for row in rows}) == len(rows) == 150
  assert all(hashed(row.prompt) for row in rows)
  assert {row.difficulty for row in rows[:80]} == set(task.DIFFICULTIES)
  np.random.seed(7)  # whoever seeds the global generator changes nothing
  tasks.evaluation_rows.cache_clear()
  assert tasks.evaluation_rows(task, task.DIFFICULTIES, 150) == rows


def test_evaluation_rows_are_pinned():
  """Results of different versions are on the same prompts."""
  rows = tasks.evaluation_rows(arithmetic, tuple(range(2, 7)), 1000)
  assert rows[:3] == (
      Row("5+9+7-7+3=", "17", 5),
      Row("4-1-3=", "0", 3),
      Row("2+7-4=", "5", 3),
  )
  levels = [row.difficulty for row in rows]
  assert [levels.count(n) for n in range(2, 7)] == [27, 244, 243, 243, 243]


def test_evaluation_rows_of_a_small_level():
  """Of the 126 prompts with two operands, 27 are held out: no more are given.

  81 sums, and 45 differences that are not negative.
  """
  prompts = [f"{a}+{b}=" for a in range(1, 10) for b in range(1, 10)]
  prompts += [f"{a}-{b}=" for a in range(1, 10) for b in range(1, a + 1)]
  wanted = {p for p in prompts if hashed(p)}
  rows = tasks.evaluation_rows(arithmetic, (2,), len(wanted))
  assert {row.prompt for row in rows} == wanted and len(wanted) == 27


# --- tasks of users ----------------------------------------------------------

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

half = Object()
half.verify = None
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
        ("chess", "none of arithmetic, countdown, files, .*No module named"),
        ("task_of_test:Missing", "no attribute 'Missing'"),
        ("task_of_test:half", "has no function verify"),
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
