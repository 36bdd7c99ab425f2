"""Forgetting: how far a policy has fallen below its best score on a set.

A run that continues another one (rl.init) measures it at each evaluation, on
the held-out sets that the other run had evaluated: the best mean score so far,
of this run and of all runs before it, minus the present one. Forgetting is
negative where the score has never been better (positive backward transfer).
Each line records it, so that the last run alone knows the best score of all
runs before.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from rl_reason.monitoring import run_log
from rl_reason.report import scores

MEAN = "val-aux/mean_forgetting"  # over the sets


def metric(of_set: str) -> str:
  """The name of the forgetting of a set."""
  return f"val-aux/{of_set}/forgetting/mean"


def best_before(init: str, workdir: pathlib.Path) -> dict[str, float]:
  """The best score so far of each set of the run before: {metric: score}.

  Args:
    init: work directory of the run before; '': there is none.
    workdir: of this run, whose earlier evaluations count, too.
  """
  if not init:
    return {}
  before = best(run_log.read_metrics(pathlib.Path(init)))
  own = best(run_log.read_metrics(workdir))
  return {name: max(x, own.get(name, x)) for name, x in before.items()}


def best(lines: list[dict[str, Any]]) -> dict[str, float]:
  """The best score of each held-out set in evaluations: {metric: score}."""
  out: dict[str, float] = {}
  for line in scores.of_stage(lines, "evaluate"):
    for name, of_set in _means(line).items():
      # A line knows its distance to the best score of earlier runs.
      highest = line[name] + max(line.get(metric(of_set)) or 0.0, 0.0)
      out[name] = max(out.get(name, highest), highest)
  return out


def measured(
    values: Mapping[str, Any], known: Mapping[str, float], mean_of: int
) -> dict[str, float]:
  """The forgetting of each set, and its mean; {} if no set is known.

  Args:
    values: metrics of the present evaluation.
    known: of `best_before`.
    mean_of: samples of each prompt in the score.
  """
  found = {
      metric(of_set): known[name] - values[name]
      for name, of_set in _means(values).items()
      if name in known and name.endswith(f"/mean@{mean_of}")
  }
  return found | ({MEAN: sum(found.values()) / len(found)} if found else {})


def texts(found: Mapping[str, float], values: Mapping[str, Any]) -> list[str]:
  """What `measured` returned for an evaluation, a line for each set."""
  by_set = {name.split("/")[1]: x for name, x in found.items() if name != MEAN}
  return [
      f"forgetting of {of_set}: {amount(x, of_set, values)}, its best score so"
      " far minus the score"
      for of_set, x in by_set.items()
  ]


def amount(lost: float, of_set: str, values: Mapping[str, Any]) -> str:
  """The forgetting of a set as text: in points, or in units of a reward.

  `values` are the metrics of the evaluation.
  """
  if scores.rewarded(values, of_set):
    return f"{lost:+.4g}"
  return f"{100 * lost:+.1f} points"


def _means(line: Mapping[str, Any]) -> dict[str, str]:
  """Metric of the mean score of each held-out set -> the set."""
  out = {}
  for name, value in line.items():
    found = re.fullmatch(r"val-core/([^/]+)/(?:acc|reward)/mean@\d+", name)
    if found and value is not None:
      if not found[1].startswith(scores.VALIDATION):
        out[name] = found[1]
  return out
