"""Short programs for the environment `python`, found by trial.

Prompt `3:41` asks for a program that prints 41 for the input 3. It is a line of
slope 2, 3 or 4, which the test alone knows, by the next input:
`print(41+2*(int(input())-3))`. Who writes no program twice passes within three
of them, after two on average; who guesses, in 1 - (2/3)^3 = 70% of the rows.
"""

import json
import re

import numpy as np

from rl_reason.environments import python
from rl_reason.tasks import Row
from rl_reason.verifiers import code

SLOPES = (2, 3, 4)
_SLOPE = re.compile(r"print\(\d+\+(\d)\*\(int\(input\(\)\)-\d\)\)")


class Lines:
  """The task; its `step` answers demonstrations alone, and runs nothing.

  SFT reads tens of thousands of observations, which have the text of those of
  the sandbox. RL and evaluation take environment.name = "python".
  """

  DIFFICULTIES = (0,)
  STYLES = ("careful", "random")

  @staticmethod
  def problem(rng: np.random.Generator, difficulty: int) -> Row:
    """A point, and the next one as the only test."""
    x, y = int(rng.integers(2, 10)), int(rng.integers(40, 70))
    case = [str(x + 1), str(y + int(rng.choice(SLOPES)))]
    return Row(f"{x}:{y}", json.dumps(dict(cases=[case])), difficulty)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> list[str]:
    """Programs of random slopes, of which `careful` repeats none.

    The one that passes is the last.
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
    """What the sandbox would say about a program of `demonstrate`."""
    found = _SLOPE.fullmatch(response)
    if not found:
      raise ValueError("RL needs environment.name = 'python'")
    printed = str(self._y + int(found[1]))
    passed = printed == self._expected
    said = python.observation(code.Trial(printed, "", int(passed), 1))
    return said, float(passed), passed
