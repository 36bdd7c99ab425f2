"""Held-out rows: evaluation sets and validation sets."""

import functools
import json
import pathlib

import numpy as np

from rl_reason import tasks
from rl_reason.base import json_files
from rl_reason.data import datasets, pipelines, preparation_report


def evaluation_sets(
    rows: pipelines.RowSource, count: int
) -> dict[str, list[tasks.Row]]:
  """Evaluation rows by the name of their set, the main one first.

  A set of files whose longest prompts were dropped says so in its name. Sets of
  further tasks come last.

  At most `count` of each set, in a random but fixed order, so that the first n
  rows are a random sample.
  """
  if rows.files is None:
    sets: dict[str, list[tasks.Row]] = {}
    for row in rows_of_task(rows.task, rows.difficulties, count):
      sets.setdefault(row.source or rows.name, []).append(row)
    return dict(sorted(sets.items())) | _of_others(rows, count)
  return _sets(rows, "evaluate", count) | _of_others(rows, count)


def _of_others(
    rows: pipelines.RowSource, count: int
) -> dict[str, list[tasks.Row]]:
  """Evaluation rows of further tasks, whose source is the name of their set."""
  return {
      label: [
          row._replace(source=label)
          for row in rows_of_task(task, levels, count)
      ]
      for label, task, levels in rows.others
  }


def validation_sets(
    rows: pipelines.RowSource, count: int, evaluated: int
) -> dict[str, list[tasks.Row]]:
  """Rows for choosing thresholds and checkpoints; {} if there are none.

  The rows are training rows of files that --stage=prepare set aside, or
  held-out prompts of the task other than the first `evaluated` ones, which
  evaluate it.
  """
  name = tasks.VALIDATION
  if rows.files is None:
    others = rows_of_task(rows.task, rows.difficulties, count, evaluated)
    return {name: list(others)} if others else {}
  sets = _sets(rows, name, count)
  if len(sets) == 1:
    return {name: next(iter(sets.values()))}
  return {f"{name}-{other}": rows for other, rows in sets.items()}


def examples(
    rows: pipelines.RowSource, count: int
) -> dict[str, list[datasets.Example]]:
  """What the rows of files of `evaluation_sets` were built from."""
  fields = datasets.Example._fields
  return {
      name: [
          datasets.Example(**{x: record[x] for x in fields})
          for record in map(part.record, order)
      ]
      for name, (part, order) in _chosen(rows, "evaluate", count).items()
  }


def _sets(
    rows: pipelines.RowSource, use: str, count: int
) -> dict[str, list[tasks.Row]]:
  return {
      name: [part[i] for i in order]
      for name, (part, order) in _chosen(rows, use, count).items()
  }


def _chosen(
    rows: pipelines.RowSource, use: str, count: int
) -> dict[str, tuple[pipelines.Prepared, list[int]]]:
  """The prepared sets by name, and the indices of `count` rows of each."""
  sets: dict[str, tuple[pipelines.Prepared, list[int]]] = {}
  assert rows.files is not None
  report = json.loads((rows.files / "data.json").read_text())["sources"]
  tallies = [x for x in report if x["use"] == use]
  parts, _ = pipelines.prepared(rows.files, use)
  for part, tally in zip(parts, tallies, strict=True):
    order = np.random.default_rng(20261121).permutation(len(part))
    name = pathlib.Path(part[order[0]].source).name.partition(".")[0]
    if use == "evaluate":  # the name of a metric says which set it is of
      missing, _ = preparation_report.long_prompts(tally)
      name = preparation_report.without(name, missing)
    name = name if name not in sets else f"{name}-{len(sets)}"
    sets[name] = part, order[:count].tolist()
  return sets


def dropped(rows: pipelines.RowSource) -> dict[str, list[dict[str, str]]]:
  """Rows that --stage=prepare dropped from each evaluation set, and why."""
  if rows.files is None:
    return {}
  names = _sets(rows, "evaluate", 1)
  report = json.loads((rows.files / "data.json").read_text())["sources"]
  files = [x["file"] for x in report if x["use"] == "evaluate"]
  left_out = json_files.read_jsonl(rows.files / pipelines.QUARANTINE)
  return {
      name: [row for row in left_out if row["file"] == file]
      for name, file in zip(names, files, strict=True)
  }


@functools.cache
def rows_of_task(
    task, levels: tuple[int, ...], count: int, evaluated: int = 0
) -> tuple[tasks.Row, ...]:
  """A fixed set of distinct held-out rows, with equal shares of the levels.

  If a level has too few distinct prompts, other levels replace them; there are
  fewer than `count` rows if all prompts are used. The rows do not depend on the
  seed of the run, and their order is random, so that the first n rows are a
  random sample. With `evaluated` the rows differ from the first `evaluated`
  ones; there are none if the task has no other prompts.
  """
  taken: set[str] = set()
  if evaluated:
    taken = {x.prompt for x in rows_of_task(task, levels, evaluated)}
    if len(taken) < evaluated:
      return ()
  rng = np.random.default_rng(20261121 + bool(evaluated))
  rows: dict[str, tasks.Row] = {}
  open_levels = list(levels)
  while len(rows) < count and open_levels:
    # One row of each level in turn, so that the levels have equal shares.
    for level in list(open_levels):
      for _ in range(1000):
        row = tasks.draw(task, rng, (level,), evaluation=True)
        # A level without a new prompt in 1000 draws counts as exhausted.
        if row.prompt not in rows and row.prompt not in taken:
          break
      else:
        open_levels.remove(level)
        continue
      rows[row.prompt] = row
  chosen = list(rows.values())[:count]
  return tuple(chosen[i] for i in rng.permutation(len(chosen)))
