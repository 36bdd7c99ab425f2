"""Chains of single-digit + and -, evaluated from left to right.

Prompt `5-1+1+9-6=`, careful response `5-1=4;4+1=5;5+9=14;14-6=8;#8`. The
number after the only `#` is the answer; running totals stay in 0..99.
"""

import functools

import numpy as np

from rl_reason.tasks import Row

ALPHABET = "0123456789+-=;#"
DIFFICULTIES = tuple(range(2, 12))  # operands
MAX_RESPONSE = 96
STYLES = ("careful", "leap", "direct", "ramble", "sloppy")


def longest(difficulty: int) -> str:
  """A prompt of the maximum length with `difficulty` operands."""
  return "+".join("9" * difficulty) + "="


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """A chain of `difficulty` operands."""
  total = int(rng.integers(1, 10))
  prompt = str(total)
  for _ in range(difficulty - 1):
    digit = int(rng.integers(1, 10))
    minus = bool(rng.integers(2)) and total >= digit
    total += -digit if minus else digit
    prompt += f"{'-' if minus else '+'}{digit}"
  return Row(prompt + "=", str(total), difficulty)


def renumber(row: Row, rng: np.random.Generator) -> Row:
  """The same signs with other numbers; running totals stay at least 0."""
  signs, least = row.prompt[1:-1:2], [0]  # totals that the later signs need
  for sign in reversed(signs):
    least.append(least[-1] + 1 if sign == "-" else max(least[-1] - 9, 0))
  total = int(rng.integers(max(least.pop(), 1), 10))
  prompt = str(total)
  for sign in signs:
    need = least.pop()
    if sign == "-":
      digit = int(rng.integers(1, min(total - need, 9) + 1))
      total -= digit
    else:
      digit = int(rng.integers(max(need - total, 1), 10))
      total += digit
    prompt += f"{sign}{digit}"
  return Row(prompt + "=", str(total), row.difficulty)


def after(total: int, move: str) -> int:
  """The total after a move such as '+3', '-3' or '*3'."""
  return total * int(move[1:]) if move[0] == "*" else total + int(move)


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """A response in one of STYLES.

  careful: one operation a step; leap: two or three operations a step; direct:
  only the answer; ramble: repeats each step up to three times; sloppy: 30% of
  the steps are incorrect.
  """
  chain = row.prompt[:-1]
  total = int(chain[0])
  moves = [chain[i : i + 2] for i in range(1, len(chain), 2)]
  if style == "direct":
    return f"#{row.answer}"
  steps = []
  while moves:
    count = int(rng.integers(2, 4)) if style == "leap" else 1
    step, moves = moves[:count], moves[count:]
    result = functools.reduce(after, step, total)
    if style == "sloppy":
      error = int(rng.choice([-3, -2, -1, 1, 2, 3])) * (rng.random() < 0.3)
      result = max(0, result + error)
    repeats = 1 + int(rng.integers(3)) if style == "ramble" else 1
    steps += [f"{total}{''.join(step)}={result};"] * repeats
    total = result
  return "".join(steps) + f"#{total}"


def answer(text: str, row: Row) -> str:
  """The number after the only `#`; '' if there is none."""
  _, mark, last = text.partition("#")
  return last if mark and last.isascii() and last.isdigit() else ""


def verify(text: str, row: Row) -> bool:
  """Whether the response has one `#`, followed by the correct number."""
  return answer(text, row) == row.answer
