"""The endless stream of training prompts, with statistics by difficulty."""

import zlib

import numpy as np

from rl_reason.base.errors import RunError
from rl_reason.tasks import Row

MAX_RETIRED_IN_A_ROW = 100_000  # draws before the run stops
DECAY = 0.9  # of the moving averages by difficulty


class PromptStream:
  """Draws prompts; keeps moving averages of accuracy and length by difficulty.

  Args:
    source: rows by id.
    iterator: checkpointable iterator over batches of one (id, row).
    retire_after: number of consecutive rounds in which all responses to a
      prompt were correct, after which the prompt is no longer drawn; 0 to draw
      prompts forever.
  """

  def __init__(self, source, iterator, *, retire_after: int = 0):
    self._source, self._iterator = source, iterator
    self._retire_after = retire_after
    self._averages: dict[str, list[float]] = {}  # difficulty: accuracy, length
    self._solved: dict[str, int] = {}  # prompt: times solved in a row

  def get_state(self) -> dict:
    """The state for a checkpoint, as JSON."""
    return dict(
        iterator=self._iterator.get_state(),
        averages=self._averages,
        solved=self._solved,
    )

  def set_state(self, state: dict) -> None:
    """Restores the state of `get_state`."""
    self._iterator.set_state(state["iterator"])
    self._averages, self._solved = state["averages"], state["solved"]

  def row(self, prompt_id: int) -> Row:
    """The row of an id."""
    return self._source[prompt_id][1]

  def draw(self, count: int) -> tuple[list[int], list[Row]]:
    """The ids and rows of the next prompts that are not retired.

    Raises:
      RunError: all prompts seem to be retired.
    """
    ids, rows, skipped = [], [], 0
    while len(rows) < count:
      (prompt_id, row), *_ = next(self._iterator)
      solved = self._solved.get(str(prompt_hash(row)), 0)
      if solved < (self._retire_after or np.inf):
        ids.append(prompt_id)
        rows.append(row)
      elif (skipped := skipped + 1) > MAX_RETIRED_IN_A_ROW:
        raise RunError(
            f"rollout.retire_after = {self._retire_after}: {skipped} prompts in"
            " a row are retired because all responses to them were correct;"
            " stop the run, or add harder prompts"
        )
    return ids, rows

  def expected(self, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Expected accuracy and response length of prompts, by their difficulty.

    A difficulty without samples gets the mean of all difficulties.
    """
    default = np.mean(list(self._averages.values()) or [[0.5, 1.0]], 0)
    found = [self._averages.get(str(row.difficulty), default) for row in rows]
    accuracy_N, length_N = np.array(found, np.float32).T
    return accuracy_N, length_N

  def update(self, rows: list[Row], accuracies, lengths) -> None:
    """Updates the averages and the count of solved prompts.

    Each row has a share of correct responses and a mean length in tokens.
    """
    for row, accuracy, length in zip(rows, accuracies, lengths, strict=True):
      new = [float(accuracy), float(length)]
      old = self._averages.setdefault(str(row.difficulty), new)
      self._averages[str(row.difficulty)] = [
          DECAY * a + 0.1 * b for a, b in zip(old, new, strict=True)
      ]
      solved = self._solved.pop(str(prompt_hash(row)), 0)
      if accuracy == 1 and self._retire_after:
        self._solved[str(prompt_hash(row))] = solved + 1


def prompt_hash(row: Row) -> int:
  """A hash of the prompt, 31 bits."""
  return zlib.crc32(row.prompt.encode()) >> 1
