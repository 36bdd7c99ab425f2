"""Rows of files (`config.data`), each verified as its kind says.

There is nothing to generate here: --stage=prepare writes the rows, `data.py`
reads them. Responses are scored by worker processes, while the device samples.
"""

import functools
import importlib
import types
from collections.abc import Callable

from rl_reason import verifiers
from rl_reason.tasks import Row
from rl_reason.verifiers import workers

ALPHABET = ""  # the tokenizer is that of a model, and spells everything
DIFFICULTIES = ()
STYLES = ()


@functools.cache
def _verifier(kind: str) -> types.ModuleType:
  return importlib.import_module(verifiers.KINDS[kind])


def check(text: str, kind: str, gold: str, tolerance: float) -> bool:
  """Whether a response is right; runs in a worker, so all of it is JSON."""
  allowed = {"tolerance": tolerance} if tolerance else {}
  return bool(_verifier(kind).verify(text, gold, **allowed))


def answer(text: str, row: Row) -> str:
  """What the response answers; '' if it does not."""
  return _verifier(row.kind).answer(text) or ""


class Verifier:
  """Worker processes that score responses in the background.

  Args:
    count: of processes.
    seconds: CPU time of one response.
  """

  ALPHABET, DIFFICULTIES, STYLES = ALPHABET, DIFFICULTIES, STYLES
  answer = staticmethod(answer)

  def __init__(self, count: int, seconds: float):
    self._pool = workers.Pool(f"{__name__}:check", count, seconds)

  def begin(
      self, pairs: list[tuple[str, Row]]
  ) -> Callable[[], list[bool | None]]:
    """Starts to score; the function that it returns waits for the verdicts."""
    items = [(text, row.kind, row.answer, row.tolerance) for text, row in pairs]
    pending = self._pool.submit(items)

    def wait():
      return [
          None if out.failure else out.value is True
          for out in self._pool.results(pending)
      ]

    return wait

  def close(self) -> None:
    """Ends the processes."""
    self._pool.close()
