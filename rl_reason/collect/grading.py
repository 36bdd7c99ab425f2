"""Grading: the verifier of the task decides which responses are correct.

A truncated response is incorrect. If the verifier fails on a response, training
leaves the response out of the loss, and an evaluation counts it as incorrect.

Each process grades the responses to its own prompts and receives the other
results. If all processes graded all responses, a verifier that times out on one
machine would give the processes different rewards.
"""

import concurrent.futures
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from rl_reason import tasks
from rl_reason.base.structs import Rollouts
from rl_reason.data import tokenizer

# texts [B]; correct [B] float32 in {0, 1}, -1 if the verifier failed; number of
# failures.
Grades = tuple[list[str], np.ndarray, int]


def owners(ids_B: np.ndarray) -> np.ndarray:
  """The process that grades each response; the same for all of a prompt."""
  return np.asarray(ids_B) % jax.process_count()


def exchange(owner_B: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
  """Gives all processes the results of each response from its owner.

  The arrays [..., B] are valid for the responses of this process.
  """
  if jax.process_count() == 1:
    return list(arrays)
  everyones = [multihost_utils.process_allgather(x) for x in arrays]
  return [
      np.stack([x[p, ..., b] for b, p in enumerate(owner_B)], -1)
      for x in everyones
  ]


def start_grading(
    task,
    tok,
    rollouts: Rollouts,
    rows: Sequence[tasks.Row],
    texts: list[str] | None = None,
) -> Callable[[], Grades]:
  """Starts to verify responses; returns a function that waits for the grades.

  Args:
    task: has the verifier.
    tok: the tokenizer.
    rollouts: B responses on the host.
    rows: of the task; each has B / len(rows) adjacent responses.
    texts: of the responses, if they are not those of all tokens.
  """
  if texts is None:
    prompt_slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
    texts = tokenizer.decode(
        tok, rollouts.tokens_BL[:, prompt_slots:], rollouts.lengths_B
    )
  group_size = len(texts) // len(rows)
  owner_B = owners(rollouts.ids_B)
  own_B = ~rollouts.truncated_B & (owner_B == jax.process_index())
  finished = np.flatnonzero(own_B).tolist()
  pairs = [(texts[b], rows[b // group_size]) for b in finished]
  wait = tasks.begin(task, pairs)

  def finish() -> Grades:
    verdict_B = np.zeros(len(texts), np.int32)  # -1: the verifier failed
    for b, verdict in zip(finished, wait(), strict=True):
      verdict_B[b] = -1 if verdict is None else verdict
    [verdict_B] = exchange(owner_B, verdict_B)
    return texts, verdict_B.astype(np.float32), int((verdict_B < 0).sum())

  return finish


class AsyncGrader:
  """Grades responses as they finish, while others are still being sampled.

  A separate thread decodes texts and submits them to the verifier, so sampling
  never waits for a verifier.

  Args:
    task: has the verifier.
    tok: the tokenizer.
    rows_B: the row that each response answers.

  Attributes:
    texts: of the responses; valid after `wait`, like the other attributes.
    correct_B: float32 in {0, 1}; -1 where the verifier failed.
    failures: number of responses on which the verifier failed.
  """

  def __init__(self, task, tok, rows_B: list[tasks.Row]):
    self._task, self._tok, self._rows_B = task, tok, rows_B
    self._submitted_B = np.zeros(len(rows_B), bool)
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "grading")
    self._pending: list = []
    self.texts = [""] * len(rows_B)
    self.correct_B = np.zeros(len(rows_B), np.float32)
    self.failures = 0

  def submit(self, rollouts: Rollouts, finished_B: np.ndarray) -> None:
    """Submits newly finished responses for grading; all are on the host."""
    new = np.flatnonzero(finished_B & ~self._submitted_B)
    self._submitted_B |= finished_B
    if len(new):
      finished = jax.tree.map(lambda x: x[new], rollouts)
      rows = [self._rows_B[b] for b in new]
      args = self._task, self._tok, finished, rows
      self._pending.append((new, self._thread.submit(start_grading, *args)))

  def wait(self) -> None:
    """Waits until all submitted responses are graded."""
    for rows, future in self._pending:
      finish = future.result()
      texts, self.correct_B[rows], failures = finish()
      self.failures += failures
      for b, text in zip(rows, texts, strict=True):
        self.texts[b] = text
    self._pending = []

  def close(self) -> None:
    """Ends the thread; responses still in its queue are not graded."""
    self._thread.shutdown(wait=False, cancel_futures=True)
