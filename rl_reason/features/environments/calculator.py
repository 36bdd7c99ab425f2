"""The task `arithmetic` with a calculator.

A turn that ends with `?` asks for the value of the chain before it, as in
`5-1+1+9-6?`, and the observation is this value. Any other turn is the response,
`#8` or with steps as in `arithmetic`. The reward is 1 for a correct response, 0
for an incorrect one, and -COST for each question, so that a question pays only
if the policy is likely to be wrong without it.
"""

import re

import numpy as np

from rl_reason.tasks import Row, arithmetic

COST = 0.1  # of a question
_CHAIN = re.compile(r"\d{1,3}([+-]\d{1,3})*", re.ASCII)


class Calculator:
  """One response with its questions; the class is also the task."""

  ALPHABET = arithmetic.ALPHABET + "?"
  DIFFICULTIES = arithmetic.DIFFICULTIES
  STYLES = ("tool", "direct", "careful", "sloppy")
  longest = staticmethod(arithmetic.longest)
  problem = staticmethod(arithmetic.problem)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Turns in one of STYLES; `tool` asks once, for the whole chain."""
    if style == "tool":
      return [f"{row.prompt[:-1]}?", f"#{row.answer}"]
    return [arithmetic.demonstrate(row, style, rng)]

  @staticmethod
  def answer(text: str, row: Row) -> str:
    """The number after the only `#`; '' if there is none."""
    return arithmetic.answer(text, row)

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a response; the prompt is the row's."""
    del rng
    self._row = row

  def step(self, response: str) -> tuple[str, float, bool]:
    """Answers a question, or `?` if it is no chain; judges a response."""
    if response.endswith("?"):
      chain = response[:-1]
      if not _CHAIN.fullmatch(chain):
        return "?", -COST, False
      terms = re.findall(r"[+-]?\d+", chain)
      return f"{sum(map(int, terms))};", -COST, False
    return "", float(arithmetic.verify(response, self._row)), True
