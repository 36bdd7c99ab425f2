"""Chains of single digits whose operators are part of the difficulty.

As `arithmetic`, but which operators occur is chosen: the last digit of the
difficulty is the number of operands, and its tens say which operator there is
besides +. Difficulty 4 has + alone, `5+1+9+6=`; 14 has at least one -,
`5-1+9-6=`; 24 has at least one *, `5*1+9+6=`. Chains are evaluated from left to
right, and running totals stay in 0..99. A run that has trained on some
difficulties can be evaluated on operators and lengths that it has never seen.
"""

import functools

import numpy as np

from rl_reason.tasks import Row, arithmetic

OPERATORS = "+-*"  # by the tens of the difficulty
ALPHABET = arithmetic.ALPHABET + "*"
DIFFICULTIES = tuple(
    10 * kind + operands
    for kind in range(len(OPERATORS))
    for operands in range(2, 9)
)
MAX_RESPONSE = arithmetic.MAX_RESPONSE
STYLES = arithmetic.STYLES
demonstrate = arithmetic.demonstrate
answer, verify = arithmetic.answer, arithmetic.verify


def longest(difficulty: int) -> str:
  """A prompt of the maximum length."""
  kind, operands = divmod(difficulty, 10)
  return OPERATORS[kind].join("9" * operands) + "="


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """A chain of + and, at least once, of the operator of the difficulty."""
  kind, operands = divmod(difficulty, 10)
  own = rng.integers(0, 2, operands - 1)
  own[rng.integers(operands - 1)] = 1
  signs = "".join(OPERATORS[kind] if x else "+" for x in own)
  return _with_numbers(signs, rng, difficulty)


def renumber(row: Row, rng: np.random.Generator) -> Row:
  """The same signs with other numbers."""
  return _with_numbers(row.prompt[1:-1:2], rng, row.difficulty)


def _with_numbers(signs: str, rng: np.random.Generator, difficulty: int) -> Row:
  """A chain with these signs, whose totals stay in 0..99."""
  first, *later = _possible(signs)
  total = int(rng.choice([x for x in range(1, 10) if x in first]))
  prompt = str(total)
  for sign, possible in zip(signs, later, strict=True):
    moves = [f"{sign}{digit}" for digit in range(1, 10)]
    moves = [x for x in moves if arithmetic.after(total, x) in possible]
    prompt += (move := moves[rng.integers(len(moves))])
    total = arithmetic.after(total, move)
  return Row(prompt + "=", str(total), difficulty)


@functools.cache
def _possible(signs: str) -> tuple[frozenset[int], ...]:
  """The totals before each sign from which a chain can go on, and the last."""
  out = [frozenset(range(100))]
  for sign in reversed(signs):
    moves = [f"{sign}{digit}" for digit in range(1, 10)]
    found = (
        total
        for total in range(100)
        if any(arithmetic.after(total, x) in out[0] for x in moves)
    )
    out.insert(0, frozenset(found))
  return tuple(out)
