"""An environment that runs the programs of the policy.

A turn is a program, found in the response by the verifier of code. It runs in
the sandbox, first as a script, then against each test of its row. The policy
reads the output of the script and how many tests passed, not which, and may
write another program, up to ATTEMPTS programs. The reward of a turn is the
change of the share of tests that pass, so that the return is the share of the
last program.
"""

import functools

import numpy as np

from rl_reason.tasks import Row
from rl_reason.verifiers import code, sandbox

ATTEMPTS = 4  # maximum number of programs of a trajectory
SHOWN = 400  # characters of the output that the policy reads
LIMITS = sandbox.Limits(cpu=4, output=1 << 20)
KEPT = 4096  # cached results, since small policies repeat programs


class Python:
  """One trajectory of programs; rows are of the kind `code`."""

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a trajectory; the prompt is the row's."""
    del rng
    self._tests, self._programs, self._share = row.answer, 0, 0.0

  def correct(self) -> bool:
    """Whether the last program passes all tests."""
    return self._share == 1

  def step(self, response: str) -> tuple[str, float, bool]:
    """Runs the program of a turn, and its tests."""
    self._programs += 1
    said, share = _run(response, self._tests, LIMITS)
    reward, self._share = share - self._share, share
    return said, reward, share == 1 or self._programs == ATTEMPTS


@functools.lru_cache(KEPT)
def _run(
    response: str, tests: str, limits: sandbox.Limits
) -> tuple[str, float]:
  """The observation, and the share of passed tests."""
  found = code.trial(response, tests, limits)
  return observation(found), found.passed / found.tests


def observation(found: code.Trial) -> str:
  """The observation after a program that does not pass all tests."""
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
