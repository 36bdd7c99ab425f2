"""Guess a number in as few turns as possible; the best strategy is bisection.

Prompt `17-48:`. A turn is a number in this range, and its answer `<` (the
number is lower) or `>` (it is higher). The game ends when the number is found,
or after `LIMIT` turns. The reward is 1 for the number and -COST for each other
guess.
"""

import numpy as np

from rl_reason.tasks import Row

LIMIT = 12  # turns of a game
COST = 0.1  # of a turn that does not find the number


def bisection_turns(size: int) -> float:
  """Turns that bisection needs on average for a range of `size` numbers."""
  left, turns, depth = size, 0, 1
  while left > 0:  # 2 ** (depth - 1) numbers are found at this depth
    found = min(left, 2 ** (depth - 1))
    turns += depth * found
    left, depth = left - found, depth + 1
  return turns / size


class Guess:
  """One game; its class is also the task."""

  ALPHABET = "0123456789-:<>?"
  DIFFICULTIES = (2, 3, 4, 5, 6)  # bits: 2**d numbers at most, and above 2**d/2
  STYLES = ("random", "bisect")

  @staticmethod
  def longest(difficulty: int) -> str:
    """A prompt of the greatest length."""
    del difficulty
    return "10-99:"

  @staticmethod
  def problem(rng: np.random.Generator, difficulty: int) -> Row:
    """A range of two-digit numbers, and the number to be found."""
    size = int(rng.integers(2 ** (difficulty - 1) + 1, 2**difficulty + 1))
    low = int(rng.integers(10, 101 - size))
    answer = int(rng.integers(low, low + size))
    return Row(f"{low}-{low + size - 1}:", str(answer), difficulty)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Turns that find the number.

    random: any number that is still possible; bisect: the one in the middle.
    """
    low, high = map(int, row.prompt[:-1].split("-"))
    turns: list[str] = []
    while not turns or turns[-1] != row.answer:
      guess = (low + high) // 2
      if style == "random":
        guess = int(rng.integers(low, high + 1))
      turns.append(str(guess))
      low, high = (
          (low, guess - 1) if int(row.answer) < guess else (guess + 1, high)
      )
    return turns

  @staticmethod
  def answer(text: str, row: Row) -> str:
    """The last guess."""
    del row
    return text.replace(">", "<").rpartition("<")[2]

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a game; the prompt is the row's."""
    del rng
    self._number, self._turns = row.answer, 0

  def step(self, response: str) -> tuple[str, float, bool]:
    """Answers a guess; `?` if it is no number."""
    self._turns += 1
    if response == self._number:
      return "", 1.0, True
    observation = "?"
    if response.isascii() and response.isdigit():
      observation = "<" if int(self._number) < int(response) else ">"
    return observation, -COST, self._turns == LIMIT
