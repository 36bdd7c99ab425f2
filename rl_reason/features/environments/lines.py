"""Short programs for the environment `python`, found by trial and error.

Prompt `3:41` asks for a program that prints 41 for the input 3. The program is
a line of slope 2, 3 or 4, which only the test reveals, by the next input:
`print(41+2*(int(input())-3))`. A policy that repeats no program passes within
three attempts, two on average. A policy that guesses passes within three
attempts in 1 - (2/3)^3 = 70% of the rows.
"""

import json
import re

import numpy as np

from rl_reason.features.environments import python
from rl_reason.tasks import Row
from rl_reason.verifiers import code

SLOPES = (2, 3, 4)
_SLOPE = re.compile(r"print\(\d+\+(\d)\*\(int\(input\(\)\)-\d\)\)")


class Lines:
  """The task; its `step` answers demonstrations without running programs.

  SFT needs tens of thousands of observations, with the same text as in the
  sandbox. RL and evaluation need environment.name = "python".
  """

  DIFFICULTIES = (0,)
  STYLES = ("careful", "random")

  @staticmethod
  def problem(rng: np.random.Generator, difficulty: int) -> Row:
    """A point of the line, with the next point as the only test."""
    x, y = int(rng.integers(2, 10)), int(rng.integers(40, 70))
    case = [str(x + 1), str(y + int(rng.choice(SLOPES)))]
    return Row(f"{x}:{y}", json.dumps(dict(cases=[case])), difficulty)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Programs of random slopes, without repetition in the style `careful`.

    The environment ends the demonstration after the program that passes.
    """
    x, y = row.prompt.split(":")
    slopes = rng.choice(SLOPES, len(SLOPES), replace=style == "random")
    return [f"print({y}+{slope}*(int(input())-{x}))" for slope in slopes]

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a demonstration."""
    del rng
    self._y = int(row.prompt.partition(":")[2])
    ((_, self._expected),) = json.loads(row.answer)["cases"]

  def step(self, response: str) -> tuple[str, float, bool]:
    """The observation that the sandbox would give."""
    found = _SLOPE.fullmatch(response)
    if not found:
      raise ValueError("RL needs environment.name = 'python'")
    printed = str(self._y + int(found[1]))
    passed = printed == self._expected
    said = python.observation(code.Trial(printed, "", int(passed), 1))
    return said, float(passed), passed
