"""Programs that are run: the policy reads what happened, and may repair them.

A turn is a program, as the verifier of code finds it in a response. It runs in
that verifier's sandbox, first as a script, then against each test of its row.
The policy reads what the script printed and how many tests passed, not which,
and may write the whole program again, up to ATTEMPTS of them. The reward of a
turn is by how much the share of passed tests rises or falls: their sum is the
share that the last program passes.
"""

import numpy as np

from rl_reason.tasks import Row
from rl_reason.verifiers import code, sandbox

ATTEMPTS = 4  # programs of a trajectory
SHOWN = 400  # characters of what a program prints
LIMITS = sandbox.Limits(cpu=4, output=1 << 20)


class Python:
  """One response and its repairs; rows are of the kind `code`."""

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins; the prompt is the row's."""
    del rng
    self._tests, self._programs, self._share = row.answer, 0, 0.0

  def correct(self) -> bool:
    """Whether the last program passes all tests."""
    return self._share == 1

  def step(self, response: str) -> tuple[str, float, bool]:
    """Runs the program of a turn, and its tests."""
    self._programs += 1
    found = code.trial(response, self._tests, LIMITS)
    share = found.passed / found.tests
    reward, self._share = share - self._share, share
    return observation(found), reward, share == 1 or self._programs == ATTEMPTS


def observation(found: code.Trial) -> str:
  """What the policy reads about a program that does not pass all tests."""
  if found.reason == "refused":
    said = "There is no program in one block of Python."
  else:
    text = found.output.strip()
    if len(text) > SHOWN:
      text = f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
    said = f"Output:\n{text or '(none)'}"
    if found.reason not in ("", "error"):  # an error is in the output
      said += f"\nThe program was ended: {found.reason}."
  return (
      f"{said}\n{found.passed} of {found.tests} tests passed. Give the whole"
      " program again.\n"
  )
