"""Tasks: verifiers against hostile text, demonstrations, and held-out rows."""

import hashlib
import re

import numpy as np
import pytest

from rl_reason import tasks
from rl_reason.data import held_out
from rl_reason.tasks import (
    Row,
    arithmetic,
    chain,
    countdown,
    operators,
    xor,
)

TASKS = dict(
    arithmetic=arithmetic,
    operators=operators,
    countdown=countdown,
    xor=xor,
    chain=chain,
)
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
def test_arithmetic_correct(text):
  """Only the answer is verified, not the steps before it."""
  assert arithmetic.verify(text, CHAIN)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[(x, "") for x in ("", "8", "8#", "#", "##8", "#8#", "#8#8", "8=8")],
        *[(f"#{x}", x) for x in ("9", "88", "18")],
        ("1;#08", "08"),  # compared as text: one spelling is correct
        *[(f"#{x}", "") for x in ("-8", "+8", "8.0", "8;", "4+4", "0x8")],
        *[(x, "") for x in ("# 8", "#8 ", "#8\n", "\n#8\n", "#8\0")],
        *[(f"#{x}", "") for x in "\u0668\uff18\u2467\u2078"],  # eights, too
        ("#" + "8" * 10**6, "8" * 10**6),  # int() would raise an error
        ("#" * 100_000, ""),
    ],
)
def test_arithmetic_incorrect(text, answer):
  assert not arithmetic.verify(text, CHAIN)
  assert arithmetic.answer(text, CHAIN) == answer


def totals_of(prompt):
  """Running totals of a prompt, by int() and a regular expression."""
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
      totals = totals_of(row.prompt)
      assert row.answer == str(totals[-1])
      assert min(totals) >= 0 and max(totals) <= 99


def steps_of(text):
  """[('5', '-1', '4'), ...] and the answer of a demonstration."""
  *steps, last = text.split(";")
  assert re.fullmatch(r"#-?\d+", last), text
  matches = [re.fullmatch(r"(-?\d+)((?:[+-]\d)+)=(-?\d+)", s) for s in steps]
  assert all(matches), text
  return [m.groups() for m in matches], last[1:]


def is_correct(step):
  total, moves, result = step
  return int(total) + sum(map(int, re.findall(r"[+-]\d", moves))) == int(result)


def demonstrations(style, count):
  """(row, text, steps, number of operations of each step)."""
  for row, rng in some(arithmetic, count):
    text = arithmetic.demonstrate(row, style, rng)
    steps, _ = steps_of(text)
    yield row, text, steps, [len(moves) // 2 for _, moves, _ in steps]


def test_careful_demonstrations():
  """At most 83 tokens with EOS: ten steps of 7, then 8, then '#dd'."""
  rng = np.random.default_rng(0)
  text = arithmetic.demonstrate(CHAIN, "careful", rng)
  assert text == "5-1=4;4+1=5;5+9=14;14-6=8;#8"
  assert arithmetic.demonstrate(CHAIN, "direct", rng) == "#8"
  text = arithmetic.demonstrate(Row("9+9+9+9+9+9=", "54", 6), "careful", rng)
  assert text == "9+9=18;18+9=27;27+9=36;36+9=45;45+9=54;#54"
  for row, text, steps, sizes in demonstrations("careful", 500):
    assert arithmetic.verify(text, row) and all(map(is_correct, steps))
    assert sizes == [1] * (row.difficulty - 1)
    assert len(text) + 1 <= 83 <= arithmetic.MAX_RESPONSE


def test_leap_takes_two_or_three_operations_a_step():
  seen = set()
  for row, text, steps, sizes in demonstrations("leap", 300):
    assert arithmetic.verify(text, row) and all(map(is_correct, steps))
    assert sum(sizes) == row.difficulty - 1
    assert sizes[-1] in (1, 2, 3)  # the rest
    seen.update(sizes[:-1])
  assert seen == {2, 3}


def test_ramble_repeats_each_step_up_to_twice():
  rng = np.random.default_rng(0)
  for row, text, steps, _ in demonstrations("ramble", 200):
    assert arithmetic.verify(text, row)
    careful, _ = steps_of(arithmetic.demonstrate(row, "careful", rng))
    assert list(dict.fromkeys(steps)) == list(dict.fromkeys(careful))
    assert len(careful) <= len(steps) <= 3 * len(careful)


def test_sloppy_gets_three_steps_in_ten_wrong():
  """Its steps are consistent: each one starts from the incorrect total.

  An error towards below 0 is held at 0 and may be none: a little under 0.3.
  About 1800 steps: one standard error is 0.011. 0.7 ** 3 = 0.34 of 3 steps.
  """
  incorrect, correct_answers = [], []
  for row, text, steps, _ in demonstrations("sloppy", 600):
    assert [s[0] for s in steps] == [row.prompt[0]] + [s[2] for s in steps[:-1]]
    assert text.endswith(f"#{steps[-1][2]}")
    assert all(0 <= int(s[2]) <= 99 for s in steps)
    incorrect += [not is_correct(s) for s in steps]
    correct_answers.append(arithmetic.verify(text, row))
  assert 0.25 < np.mean(incorrect) < 0.33
  assert 0.2 < np.mean(correct_answers) < 0.6


# --- countdown ---------------------------------------------------------------

HAND = Row("2,3,7:13=", "13", 3)


@pytest.mark.parametrize(
    "text",
    [
        "2*3=6;6+7=13#",
        "3*2=6;7+6=13#",  # either order
        "2+3=5;5*7=35?2*3=6;6+7=13#",  # a retry
        "2+3=9?7?2*3=6;6+7=13#",  # an abandoned attempt may be anything
        "?2*3=6;6+7=13#",
    ],
)
def test_countdown_correct(text):
  assert countdown.verify(text, HAND)
  assert countdown.answer(text, HAND) == text[:-1].split("?")[-1]


@pytest.mark.parametrize(
    "text",
    [
        *["", "#", "?#", ";#", "13#", "=13#", "2*3=6;6+7=13", "#2*3=6;6+7=13"],
        "2*3=6;6+7=13?",  # correct, but abandoned
        "2*3=7;7+7=14#",  # incorrect arithmetic
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
def test_countdown_incorrect(text):
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
  """search tries again until it is correct; hasty claims its first attempt."""
  retried, hasty_right = 0, 0
  for row, rng in some(countdown, 200):
    search = countdown.demonstrate(row, "search", rng)
    assert countdown.verify(search, row)
    for failed in search[:-1].split("?")[:-1]:
      assert not countdown.verify(failed + "#", row), "abandoned a correct one"
    retried += "?" in search
    hasty = countdown.demonstrate(row, "hasty", rng)
    assert "?" not in hasty and hasty.endswith("#")
    hasty_right += countdown.verify(hasty, row)
  assert retried > 60
  assert 5 < hasty_right < 140


# --- operators ---------------------------------------------------------------


def from_left_to_right(chain):
  """The totals of a chain, by Python's own arithmetic of pairs."""
  total, out = int(chain[0]), []
  for i in range(1, len(chain), 2):
    total = eval(f"{total}{chain[i : i + 2]}")
    out.append(total)
  return out


@pytest.mark.parametrize("level", operators.DIFFICULTIES)
def test_the_difficulty_says_which_operators_there_are(level):
  kind, operands = divmod(level, 10)
  rng = np.random.default_rng(level)
  found = set()
  for _ in range(30):
    row = operators.problem(rng, level)
    other = operators.renumber(row, rng)
    assert other.prompt[1::2] == row.prompt[1::2]
    for x in (row, other):
      signs = set(x.prompt[1:-1:2])
      assert signs - {"+"} == set("+-*"[kind]) - {"+"}
      assert len(x.prompt) == 2 * operands == len(operators.longest(level))
      totals = from_left_to_right(x.prompt[:-1])
      assert 0 <= min(totals) and max(totals) <= 99
      assert x.answer == str(totals[-1]) and x.difficulty == level
      careful = operators.demonstrate(x, "careful", rng)
      assert operators.verify(careful, x)
      assert [int(y.split("=")[1]) for y in careful.split(";")[:-1]] == totals
    found.add(row.prompt)
  assert len(found) > 5


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
  expected = (
      "1+2= 2+7= 3+4= 3+7= 4+5= 4+9= 5+6= 6+3= 6+7= 7+5= 7+8= 8+3= 8+6= 9+3="
  )
  assert [s for s in sums if tasks.held_out(s)] == expected.split()
  assert [s for s in sums if hashed(s)] == expected.split()


@pytest.mark.parametrize("name", TASKS)
def test_training_never_sees_a_held_out_prompt(name):
  rows = [row for row, _ in some(TASKS[name], 500)]
  assert not any(hashed(row.prompt) for row in rows)
  assert {row.difficulty for row in rows} == set(TASKS[name].DIFFICULTIES)


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_rows(name):
  """Distinct, held out, a mix of levels from the start, always the same."""
  task = TASKS[name]
  rows = held_out.rows_of_task(task, task.DIFFICULTIES, 150)
  assert len({row.prompt for row in rows}) == len(rows) == 150
  assert all(hashed(row.prompt) for row in rows)
  assert {row.difficulty for row in rows[:80]} == set(task.DIFFICULTIES)
  np.random.seed(7)  # whoever seeds the global generator changes nothing
  held_out.rows_of_task.cache_clear()
  assert held_out.rows_of_task(task, task.DIFFICULTIES, 150) == rows


def test_evaluation_rows_are_pinned():
  """Results of different versions are on the same prompts."""
  rows = held_out.rows_of_task(arithmetic, tuple(range(2, 7)), 1000)
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
  expected = {p for p in prompts if hashed(p)}
  rows = held_out.rows_of_task(arithmetic, (2,), len(expected))
  assert {row.prompt for row in rows} == expected and len(expected) == 27


# --- xor ---------------------------------------------------------------------

# The parities so far are 01001101, 10000111 and 00000001.
BITS = "aBCdEfGHIJklmNopqrstuvwX:"
FIRST = "a0b1c0d0e1f1g0h1"
SECOND = "i1j0k0l0m0n1o1p1"
THIRD = "q0r0s0t0u0v0w0x1"


@pytest.mark.parametrize(
    "text",
    [
        "h1p1x1",
        FIRST + "p1x1",
        FIRST + SECOND + THIRD,
        "a0c0h1p1x1",  # some of the letters
    ],
)
def test_xor_correct(text):
  row = Row(BITS, "111", xor.FREE)
  assert xor.verify(text, row)
  assert xor.answer(text, row) == "111"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h1p1",  # a block without its last letter
        "h0p1x1",
        "a1b0c1d1e0f0g1h1p1x1",  # errors that cancel
        "p1h1x1",  # not in order
        "h1h1p1x1",
        "h1p1x1\n",
        "h1p1x",
        "H1p1x1",
        "h1p1x1?1",
        "h1p1x1" * 10_000,
    ],
)
def test_xor_incorrect(text):
  assert not xor.verify(text, Row(BITS, "111", xor.FREE))


def test_xor_named_blocks_are_written_out():
  row = Row(BITS[:-1] + "13:", "111", xor.NAMED)
  assert xor.verify(FIRST + "p1" + THIRD, row)
  assert xor.verify(FIRST + SECOND + THIRD, row)
  assert not xor.verify(FIRST + "p1x1", row)
  assert xor.demonstrate(row, "mixed", np.random.default_rng(0)) == (
      FIRST + "p1" + THIRD
  )


def test_xor_never_writes_out_all_blocks_that_could_be_named():
  for row, rng in some(xor, 300, (xor.NAMED,)):
    text = xor.demonstrate(row, "mixed", rng)
    named = len(row.prompt) - 4 * xor.SIZE - 1
    assert xor.verify(text, row) and len(text) == 2 * (7 * named + 4)
    assert 1 <= named <= 3


def test_xor_writes_out_a_twentieth_of_the_blocks_that_are_not_named():
  """2,000 responses have 6,000 blocks: 300 +- 17 of them are written out."""
  starts, whole, lengths = 0, 0, set()
  for row, rng in some(xor, 2000, (xor.FREE,)):
    text = xor.demonstrate(row, "mixed", rng)
    written = len(re.findall(xor.BEHAVIOURS["written_out"], text))
    starts, whole = starts + written, whole + (written == 3)
    lengths.add(len(text) - 6 - 2 * (xor.SIZE - 1) * written)
    assert len(xor.demonstrate(row, "steps", rng)) == 2 * 3 * xor.SIZE
  assert 230 < starts < 370 and whole <= 3 and lengths == {0}


# --- chain -------------------------------------------------------------------

# Capital letters add 1, small letters multiply by 3, modulo 10.
INSTRUCTIONS = "ABcDeFGhijklmnopqrstuvwxyzαβγδεΖ"  # the last one is a zeta
VALUES = "12671239" + "71397139" * 2 + "71397134"


def written_out():
  letters = chain.LETTERS[:32]
  return "".join(x + y for x, y in zip(letters, VALUES, strict=True))


def test_chain_is_right_in_one_token_or_in_all():
  """A prompt that asks for the chain does not accept the value alone."""
  for mark, level, value_alone in ((":", 2, True), ("!", 1, False)):
    row = Row(INSTRUCTIONS + mark, "4", level)
    assert chain.verify(written_out(), row)
    assert chain.verify("4", row) == value_alone
    for wrong in ("", "7", "44", "4:", written_out()[:-2], written_out() + "4"):
      assert not chain.verify(wrong, row)
    assert not chain.verify("a2" + written_out()[2:], row)
    assert chain.answer(written_out(), row) == "4"


def test_chain_in_full_states_the_instruction_and_the_value_before():
  """Four tokens for a letter, where 0 + 1 = 1, 1 * 3 = 3, 3 + 1 = 4."""
  row = Row("AbC:", "4", 6)
  assert chain.demonstrate(row, "steps", None) == "aA01bb13cC34"
  assert chain.verify("aA01bb13cC34", row) and chain.verify("4", row)
  for wrong in ("a1b3c4", "aA01bb13cC44", "aA01bB13cC34", "aA01bb13"):
    assert not chain.verify(wrong, row)


def test_chain_problems():
  """Alphabets are unambiguous, and every value is the last one as often."""
  assert len(set(chain.ALPHABET)) == len(chain.ALPHABET)
  for level, size in chain.SIZES.items():
    answers = []
    for row, rng in some(chain, 500, (level,)):
      assert len(row.prompt) == size + 1 == len(chain.longest(level))
      text = chain.demonstrate(row, "steps", rng)
      tokens = 4 if level in chain.IN_FULL else 2
      assert len(text) == tokens * size and chain.verify(text, row)
      answers.append(row.answer)
    counts = np.unique(answers, return_counts=True)[1]
    assert len(counts) == 10 and counts.max() < 90


def test_chain_is_rarely_written_out_unless_the_prompt_asks():
  for levels, low, high in (((1, 3, 5), 1, 1), ((2, 4, 6), 0.02, 0.04)):
    written = [
        bool(re.match(chain.BEHAVIOURS["written_out"], text))
        for row, rng in some(chain, 2000, levels)
        for text in (chain.demonstrate(row, "mixed", rng),)
        if chain.verify(text, row)
    ]
    assert len(written) == 2000 and low <= np.mean(written) <= high
