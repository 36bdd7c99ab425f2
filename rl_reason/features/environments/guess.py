"""Guess a number in as few turns as possible; the best strategy is bisection.

Prompt `17-48:`. A turn is a number in this range, and the observation is `<`
(the number is lower) or `>` (it is higher). The environment chooses no number
beforehand: each answer leaves as many possible numbers as it can. The game is
therefore always the worst case, and its length depends on the guesses and not
on luck. The game ends when the only possible number is guessed, or after
`LIMIT` turns. The reward is 1 for the number and -COST for each other guess.
"""

import numpy as np

from rl_reason.tasks import Row

LIMIT = 12  # maximum number of turns
COST = 0.1  # cost of a turn that does not find the number


def bisection_turns(size: int) -> int:
  """Maximum number of turns of bisection: floor(log2(size)) + 1."""
  return size.bit_length()


class Guess:
  """One game; its class is also the task."""

  ALPHABET = "0123456789-:<>?"
  DIFFICULTIES = (2, 3, 4, 5, 6)  # bits: 2**(d - 1) < size <= 2**d
  STYLES = ("random", "bisect")

  @staticmethod
  def longest(difficulty: int) -> str:
    """A prompt of the maximum length."""
    del difficulty
    return "10-99:"

  @staticmethod
  def problem(rng: np.random.Generator, difficulty: int) -> Row:
    """A range of two-digit numbers; the answer is the turns of bisection."""
    size = int(rng.integers(2 ** (difficulty - 1) + 1, 2**difficulty + 1))
    low = int(rng.integers(10, 101 - size))
    turns = str(bisection_turns(size))
    return Row(f"{low}-{low + size - 1}:", turns, difficulty)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Turns that find the number.

    random: any possible number; bisect: the number in the middle.
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
    """The number of turns: one for each observation, and the last one."""
    del row
    return str(1 + sum(text.count(x) for x in "<>?"))

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a game; the prompt is the row's."""
    del rng
    self.low, self.high = map(int, row.prompt[:-1].split("-"))
    self._turns = 0

  def step(self, response: str) -> tuple[str, float, bool]:
    """Answers a guess, with `?` if it is no number."""
    self._turns += 1
    over = self._turns == LIMIT
    if not (response.isascii() and response.isdigit()):
      return "?", -COST, over
    number = int(response)
    if number == self.low == self.high:
      self.low += 1  # no possible number is left
      return "", 1.0, True
    if number - self.low >= self.high - number:
      self.high = min(self.high, number - 1)
      return "<", -COST, over
    self.low = max(self.low, number + 1)
    return ">", -COST, over
