"""Successive halving: the rows that are worst after few RL steps end there.

At a rung, which is a number of RL steps, the better half of the rows goes on
(Jamieson and Talwalkar, arXiv:1502.07943, algorithm 1), and their runs continue
in their own work directories. The score of a run is the one by which its
checkpoints compete, on prompts for validation, so that held-out prompts choose
no row.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import ml_collections

from rl_reason.base import resume_rules
from rl_reason.base.errors import ConfigError
from rl_reason.evaluation import accuracy
from rl_reason.lab.jobs import Job
from rl_reason.monitoring import run_log
from rl_reason.report import scores


def check(
    jobs: Sequence[Job], rows: Sequence[str], rungs: Sequence[int]
) -> None:
  """Checks whether the runs of the rows can be compared at the rungs.

  Args:
    jobs: of the whole ablation.
    rows: names of the rows that run.
    rungs: numbers of RL steps.

  Raises:
    ConfigError: the rungs do not ascend or exceed a row, or a row computes
      something from the share of its steps that are done.
  """
  if any(a >= b for a, b in itertools.pairwise((0, *rungs))):
    raise ConfigError(f"--rungs = {rungs}: name ascending numbers of RL steps")
  for job in jobs:
    if job.row not in rows:
      continue
    if job.fields["rl.steps"] <= rungs[-1]:
      raise ConfigError(
          f"--rungs = {rungs}: row {job.row!r} has rl.steps ="
          f" {job.fields['rl.steps']}; name rungs below"
      )
    if resume_rules.reads_progress(job.fields):
      raise ConfigError(
          f"--rungs: row {job.row!r} has a schedule over rl.steps, so its first"
          " steps depend on the length of the run; make it constant, or leave"
          " out --rungs"
      )


def at(c: ml_collections.ConfigDict, rung: int) -> ml_collections.ConfigDict:
  """Returns the ablation whose rows end at a rung."""
  c = c.copy_and_resolve_references()
  c.rows = tuple(
      (row, path, {**own, "rl.steps": rung}) for row, path, own in c.rows
  )
  return c


def score(job: Job, rung: int) -> float | None:
  """Returns the score of a run at a rung; None if the run is not there yet."""
  lines = scores.of_stage(run_log.read_metrics(job.workdir), "evaluate")
  found = [x.get(accuracy.SCORE) for x in lines if x["step"] == rung]
  return found[0] if found else None


def means(jobs: Sequence[Job], rung: int) -> dict[str, float | None]:
  """Returns the mean score over seeds by row; None where a run is missing."""
  of_row: dict[str, list[float | None]] = {}
  for job in jobs:
    if job.row:
      of_row.setdefault(job.row, []).append(score(job, rung))
  known = {k: [y for y in x if y is not None] for k, x in of_row.items()}
  return {
      k: statistics.mean(known[k]) if len(known[k]) == len(x) else None
      for k, x in of_row.items()
  }


def survivors(found: Mapping[str, float | None], reference: str) -> list[str]:
  """Returns the rows that go on, in their order.

  These are the reference, and of the other rows with a score the best half,
  rounded up. Rows with equal scores go on or end together.

  Args:
    found: mean score by row; a row without one has failed.
    reference: name of the row that always goes on.
  """
  known = {k: x for k, x in found.items() if k != reference and x is not None}
  best = sorted(known.values(), reverse=True)[: math.ceil(len(known) / 2)]
  return [
      k
      for k in found
      if k == reference or (best and known.get(k, -math.inf) >= best[-1])
  ]
