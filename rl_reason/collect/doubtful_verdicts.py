"""Lists a few rejected responses of each step that may be right, for a person.

A task with the method `read_leniently`, as the task of files, finds them. No
reward reads the list.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_reason.tasks import Row

MOST = 8  # responses that are read, of a step or of a held-out set
HEAD, TAIL = 200, 600  # characters of a listed text


def _excerpt(text: str) -> str:
  """The head and the tail of a text."""
  gap = len(text) - HEAD - TAIL
  if gap <= 0:
    return text
  return f"{text[:HEAD]} [... {gap:,} characters ...] {text[-TAIL:]}"


def find(
    task: Any,
    texts: Sequence[str],
    rows: Sequence[Row],
    rejected: np.ndarray,
    most: int = MOST,
) -> list[dict[str, Any]]:
  """Returns rejected responses that equal their reference, read leniently.

  At most `most` of the responses with the indices `rejected` are read, evenly
  spaced.

  Returns:
    prompt, answer and response (long texts: head and tail), and `why`.
  """
  read: Callable | None = getattr(task, "read_leniently", None)
  count = min(most, len(rejected))
  if read is None or count <= 0:
    return []
  at = np.linspace(0, len(rejected) - 1, count).round().astype(int)
  chosen = [int(rejected[i]) for i in at]
  readings = read([(texts[b], rows[b]) for b in chosen])
  return [
      dict(
          prompt=_excerpt(rows[b].prompt),
          answer=_excerpt(rows[b].answer),
          response=_excerpt(texts[b]),
          why=why,
      )
      for b, why in zip(chosen, readings, strict=True)
      if why
  ]


class Doubtful:
  """The doubtful responses of an RL step.

  Args:
    task: has the verifier.
  """

  def __init__(self, task: Any):
    self._task = task
    self.clear()

  def clear(self) -> None:
    """Begins the next step."""
    self._left, self._found = MOST, list[dict[str, Any]]()

  def responses(
      self,
      texts: Sequence[str],
      rows: Sequence[Row],
      correct_B: np.ndarray,
      truncated_B: np.ndarray,
  ) -> None:
    """Reads rejected responses of a round, up to MOST in the step."""
    rejected = np.flatnonzero((correct_B == 0) & ~truncated_B)
    self._found += find(self._task, texts, rows, rejected, self._left)
    self._left -= min(self._left, len(rejected))

  def counts(self) -> dict[str, float]:
    """The number of responses as a metric, if the task can read leniently."""
    if not hasattr(self._task, "read_leniently"):
      return {}
    return {"train/perhaps_right": len(self._found)}

  def found(self) -> list[dict[str, Any]]:
    """The responses, as `find` returns them."""
    return list(self._found)
