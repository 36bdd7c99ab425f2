"""The rows of a run by purpose: prompts, demonstrations, preferences, held out.

Rows are made by the task, or read from the files that --stage=prepare wrote.
"""

import pathlib
from typing import Any

from rl_reason import tasks
from rl_reason.data import pipelines
from rl_reason.randomness import host_seed


class RowSource:
  """Rows of one task, each purpose with a seed of its own.

  Args:
    task: a task; see `tasks`.
    name: of the task, which names its evaluation set.
    difficulties: levels to draw from, evenly.
    seed: of the run.
    files: directory that --stage=prepare wrote; None if the task makes rows.
  """

  def __init__(
      self,
      task: Any,
      name: str,
      difficulties: tuple[int, ...],
      seed: int,
      files: pathlib.Path | None = None,
  ):
    self._task, self._name, self._difficulties = task, name, difficulties
    self._seed, self._files = seed, files

  def prompts(self, purpose: str):
    """Training rows by id, and an endless iterator over batches of one."""
    seed = host_seed(self._seed, purpose)
    source: pipelines.Problems | pipelines.Mixed
    if self._files is None:
      source = pipelines.Problems(self._task, self._difficulties, seed)
    else:
      parts, weights = pipelines.prepared(self._files, "train")
      source = pipelines.Mixed(parts, weights, seed)
    return source, pipelines.prompts(source, 1)

  def demonstrations(self, purpose: str, batch: int, mixture: dict):
    """An endless iterator over batches of (prompt, response) to imitate."""
    seed = host_seed(self._seed, purpose)
    if self._files is None:
      return pipelines.demonstrations(
          self._task, self._difficulties, seed, batch, mixture
      )
    parts, weights = pipelines.prepared(self._files, "train")
    return pipelines.prepared_pairs(parts, weights, seed, batch)

  def preferences(self, batch: int, chosen, rejected, *, evaluation: bool):
    """An endless iterator over batches of (prompt, chosen, rejected)."""
    seed = host_seed(self._seed, f"preferences {evaluation}")
    if self._files is None:
      return pipelines.preferences(
          self._task,
          self._difficulties,
          seed,
          batch,
          chosen,
          rejected,
          evaluation=evaluation,
      )
    use = "evaluate" if evaluation else "train"
    parts, weights = pipelines.prepared(self._files, use)
    return pipelines.prepared_pairs(parts, weights, seed, batch, rejected=True)

  def evaluation_sets(self, count: int) -> dict[str, list[tasks.Row]]:
    """Held-out rows by the name of their set; the first set is the headline.

    Args:
      count: rows of each set, at most.
    """
    if self._files is None:
      rows = tasks.evaluation_rows(self._task, self._difficulties, count)
      return {self._name: list(rows)}
    return pipelines.evaluation_sets(self._files, count)
