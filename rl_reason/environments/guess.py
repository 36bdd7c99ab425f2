"""Guess a number in as few turns as possible; the best strategy is bisection.

Prompt `17-48:`. A turn is a number in this range, and its answer `<` (the
number is lower) or `>` (it is higher). The opponent has not chosen a number
beforehand: of those that are still possible, its answer leaves as many as it
can. The number of turns is that of the worst case, so it depends on the guesses
and not on luck. The game ends when the only number left is
guessed, or after `LIMIT` turns. The reward is 1 for the number and -COST for
each other guess.
"""

import numpy as np

from rl_reason.tasks import Row

LIMIT = 12  # turns of a game
COST = 0.1  # of a turn that does not find the number


def bisection_turns(size: int) -> int:
  """Turns of bisection for `size` numbers, floor(log2(size)) + 1: the least."""
  return size.bit_length()


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
    """A range of two-digit numbers; the answer is the least number of turns."""
    size = int(rng.integers(2 ** (difficulty - 1) + 1, 2**difficulty + 1))
    low = int(rng.integers(10, 101 - size))
    turns = str(bisection_turns(size))
    return Row(f"{low}-{low + size - 1}:", turns, difficulty)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Turns that find the number.

    random: any number that is still possible; bisect: the one in the middle.
    """
    game, turns = Guess(), []
    game.reset(row, rng)
    while game.low <= game.high:
      guess = (game.low + game.high) // 2
      if style == "random":
        guess = int(rng.integers(game.low, game.high + 1))
      turns.append(str(guess))
      game.step(turns[-1])
    return turns

  @staticmethod
  def answer(text: str, row: Row) -> str:
    """The number of turns: one for each answer, and the last one."""
    del row
    return str(1 + sum(text.count(x) for x in "<>?"))

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a game; the prompt is the row's."""
    del rng
    self.low, self.high = map(int, row.prompt[:-1].split("-"))
    self._turns = 0

  def step(self, response: str) -> tuple[str, float, bool]:
    """Answers a guess; `?` if it is no number."""
    self._turns += 1
    over = self._turns == LIMIT
    if not (response.isascii() and response.isdigit()):
      return "?", -COST, over
    number = int(response)
    if number == self.low == self.high:
      self.low += 1  # no number is left
      return "", 1.0, True
    if number - self.low >= self.high - number:
      self.high = min(self.high, number - 1)
      return "<", -COST, over
    self.low = max(self.low, number + 1)
    return ">", -COST, over
