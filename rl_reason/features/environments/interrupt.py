"""Interruption of long thoughts, as in ScaleRL (arXiv:2510.13786).

Any task of a single turn. A response that has not ended after
environment.turn_tokens tokens is interrupted: the phrase of
environment.phrase follows, such as "Time is up. The answer is", and the policy
continues, up to rollout.max_tokens in all. The policy did not write the phrase,
which is no part of the loss.
The verifier of the task reads the whole response, the phrase included. A
response that does not end after the interruption either is incorrect.
"""

from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.tasks import Row

NAME = "interrupt"  # in environment.name; it takes the task of the run


class Interrupt:
  """One response, which is interrupted at most once.

  Args:
    task: verifies the response, see `tasks.Task.begin`.
    phrase: what follows an interrupted thought.
  """

  def __init__(self, task: Any, phrase: str):
    self._task, self._phrase = task, phrase

  def reset(self, row: Row, rng: np.random.Generator) -> None:
    """Begins a response; the prompt is the row's."""
    del rng
    self._row, self._thought, self._correct = row, "", False

  def cut(self, response: str) -> tuple[str, float, bool]:
    """Interrupts a thought."""
    self._thought = response + self._phrase
    return self._phrase, 0.0, False

  def step(self, response: str) -> tuple[str, float, bool]:
    """Verifies a response that has ended.

    Raises:
      RuntimeError: the verifier failed.
    """
    pair = self._thought + response, self._row
    (verdict,) = tasks.begin(self._task, [pair])()
    if verdict is None:
      raise RuntimeError("the verifier failed")
    self._correct = verdict
    return "", float(verdict), True

  def correct(self) -> bool:
    """Whether the verifier accepts the response."""
    return self._correct
