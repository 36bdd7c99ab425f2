"""The endless stream of training prompts, with statistics by their types."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_reason.base.errors import RunError
from rl_reason.tasks import Row

MAX_PASSED_IN_A_ROW = 100_000  # rows without a draw before the run stops
# Weights of the old and of the new value in the moving averages. A prompt comes
# again after a pass over the rows, when the policy has changed.
DECAY, DECAYS = (0.9, 0.1), dict(pass_rate=(0.5, 0.5))
Pair = Sequence[float | None]  # accuracy and length; None: not known
HARDEST = 10  # the type of prompts that are never solved, by pass rate


class PromptStream:
  """Draws prompts; keeps moving averages of accuracy and length by their types.

  Args:
    source: rows by id.
    iterator: checkpointable iterator over batches of one (id, row).
    drawn: which prompts are drawn again, by `keeps(row)`, from what
      `note(row, accuracy)` told it; `why(passed)` says why a number of prompts
      in a row are not, and `get_state` and `set_state` save it as JSON. None:
      all are.
    types: what the type of a prompt is: 'difficulty', 'subject' or 'pass_rate'.
      By pass rate, each prompt has averages of its own, which begin with what
      its file says.
  """

  def __init__(
      self,
      source,
      iterator,
      *,
      drawn: Any = None,
      types: str = "difficulty",
  ):
    self._source, self._iterator, self._types = source, iterator, types
    self._drawn = drawn
    self._averages: dict[str, Pair] = {}  # by type

  def get_state(self) -> dict:
    """The state for a checkpoint, as JSON."""
    return dict(
        iterator=self._iterator.get_state(),
        averages=self._averages,
        solved=self._drawn.get_state() if self._drawn else {},
    )

  def set_state(self, state: dict) -> None:
    """Restores the state of `get_state`."""
    self._iterator.set_state(state["iterator"])
    self._averages = state["averages"]
    if self._drawn:
      self._drawn.set_state(state["solved"])

  def row(self, prompt_id: int) -> Row:
    """The row of an id."""
    return self._source[prompt_id][1]

  def draw(self, count: int) -> tuple[list[int], list[Row]]:
    """The ids and rows of the next prompts that may be drawn.

    Raises:
      RunError: none seems to be left.
    """
    ids, rows, passed = [], [], 0
    while len(rows) < count:
      (prompt_id, row), *_ = next(self._iterator)
      if not self._drawn or self._drawn.keeps(row):
        ids.append(prompt_id)
        rows.append(row)
      elif (passed := passed + 1) > MAX_PASSED_IN_A_ROW:
        raise RunError(self._drawn.why(passed))
    return ids, rows

  def types(self, rows: list[Row]) -> np.ndarray:
    """The type of each problem, [N] int32: problems of a type are compared.

    By pass rate, types are tenths of incorrect responses, 0 to `HARDEST`.
    """
    if self._types == "difficulty":
      return np.array([row.difficulty for row in rows], np.int32)
    if self._types == "subject":
      hashes = [_hash(type_name(row, self._types)) for row in rows]
      return np.array(hashes, np.int32)
    accuracy_N, _ = self.expected(rows)
    return np.rint(HARDEST * (1 - accuracy_N)).astype(np.int32)

  def expected(self, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Expected accuracy and response length of prompts, by their types.

    What is neither sampled nor measured gets the mean of all.
    """
    found = [
        self._averages.get(type_name(row, self._types)) or self._measured(row)
        for row in rows
    ]
    whole = [x for x in found if None not in x] or [(0.5, 1.0)]
    sampled = [x for x in self._averages.values() if None not in x]
    known = np.array(sampled or whole, float)
    default = known.mean(0)
    filled = [_filled(x, default) for x in found]
    accuracy_N, length_N = np.array(filled, np.float32).T
    return accuracy_N, length_N

  def update(self, rows: list[Row], accuracies, lengths) -> None:
    """Updates the averages, and tells what decides of prompts.

    Each row has a share of correct responses, NaN if it is not known, and a
    mean length in tokens.
    """
    decay, weight = DECAYS.get(self._types, DECAY)
    for row, accuracy, length in zip(rows, accuracies, lengths, strict=True):
      known = not np.isnan(accuracy)
      new = [float(accuracy) if known else None, float(length)]
      name = type_name(row, self._types)
      old = self._averages.get(name) or self._measured(row)
      self._averages[name] = [
          decay * a + weight * b if b is not None else a
          for a, b in zip(_filled(old, new), new, strict=True)
      ]
      if known and self._drawn:
        self._drawn.note(row, accuracy)

  def _measured(self, row: Row) -> Pair:
    """Accuracy and length that the file of a prompt says; None: not known."""
    if self._types != "pass_rate":
      return None, None
    return row.pass_rate, row.response_tokens


def _filled(pair: Pair, default: Sequence[Any]) -> list[Any]:
  return [b if a is None else a for a, b in zip(pair, default, strict=True)]


def type_name(row: Row, types: str) -> str:
  """What averages of a row are kept by, as `types` of the stream says."""
  if types == "pass_rate":
    return str(prompt_hash(row))
  return str(row.difficulty) if types == "difficulty" else row.subject


def prompt_hash(row: Row) -> int:
  """A hash of the prompt, 31 bits."""
  return _hash(row.prompt)


def _hash(text: str) -> int:
  return zlib.crc32(text.encode()) >> 1
