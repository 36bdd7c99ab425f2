"""Countdown: reach a target from given numbers with + - *, each used once.

Prompt `2,3,7:13=`. A response is one or more attempts, each a chain of steps.
A step replaces two of the available numbers by its result:
`2+3=5;5*7=35?2*3=6;6+7=13#`. `?` abandons an attempt, and `#` claims success.
Many responses are correct, and RL can discover that further attempts help.
"""

import collections
import re

import numpy as np

from rl_reason.tasks import Row

ALPHABET = "0123456789+-*=;?#,:"
DIFFICULTIES = (2, 3)  # numbers
MAX_RESPONSE = 96
STYLES = ("careful", "search", "hasty")
BEHAVIOURS = {"retries": r"\?"}  # abandoned attempts
_NUMBER = r"(0|[1-9][0-9]{0,3})"
_STEP = re.compile(rf"{_NUMBER}([+*-]){_NUMBER}={_NUMBER}")
_APPLY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def _attempt(numbers: list[int], rng: np.random.Generator):
  """Random legal steps down to one number: (text, that number)."""
  numbers, steps = list(numbers), []
  while len(numbers) > 1:
    i, j = rng.permutation(len(numbers))[:2]
    a, b = numbers[i], numbers[j]
    sign = "+-*"[rng.integers(3)]
    if sign == "-" and a < b:
      a, b = b, a
    result = _APPLY[sign](a, b)
    steps.append(f"{a}{sign}{b}={result}")
    numbers = [n for k, n in enumerate(numbers) if k not in (i, j)] + [result]
  return ";".join(steps), numbers[0]


def longest(difficulty: int) -> str:
  """A prompt of the maximum length with `difficulty` numbers."""
  return ",".join("9" * difficulty) + ":99="


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """`difficulty` numbers in 1..9, and a reachable target in 1..99."""
  while True:
    numbers = sorted(int(n) for n in rng.integers(1, 10, difficulty))
    _, target = _attempt(numbers, rng)
    if 1 <= target <= 99:
      prompt = f"{','.join(map(str, numbers))}:{target}="
      return Row(prompt, str(target), difficulty)


def renumber(row: Row, rng: np.random.Generator) -> Row:
  """As many other numbers, and another target."""
  return problem(rng, row.difficulty)


def _numbers(row: Row) -> list[int]:
  return [int(n) for n in row.prompt.split(":")[0].split(",")]


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """A response in one of STYLES.

  careful: a correct attempt; search: random attempts until one is correct,
  drawn again if that takes too long; hasty: claims success after one attempt.
  """
  numbers, text = _numbers(row), ""
  while True:
    attempt, result = _attempt(numbers, rng)
    if style == "hasty" or str(result) == row.answer:
      return text + attempt + "#"
    if style == "search":
      text += attempt + "?"
      if len(text) > MAX_RESPONSE - 24:
        text = ""


def answer(text: str, row: Row) -> str:
  """The last attempt, if the response claims success once, at its end."""
  attempts, mark, rest = text.partition("#")
  return attempts.rpartition("?")[2] if mark and not rest else ""


def verify(text: str, row: Row) -> bool:
  """Whether the last attempt is legal and uses every number for the target."""
  available = collections.Counter(_numbers(row))
  for step in answer(text, row).split(";"):
    match = _STEP.fullmatch(step)
    if not match:
      return False
    a, b, result = int(match[1]), int(match[3]), int(match[4])
    available.subtract([a, b])
    if min(available.values()) < 0 or _APPLY[match[2]](a, b) != result:
      return False
    available[result] += 1
  return +available == collections.Counter([int(row.answer)])
