"""Differences between evaluations of the same problems, paired by problem.

Two evaluations of the same problems share their difficulty, so the interval of
the mean difference is narrower than the intervals of the two means suggest. A
problem is a row of a file, whatever template asks for its answer, or else a
prompt; a copy of a row has the problem of its original.
"""

import collections
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_reason.base import json_files
from rl_reason.base.errors import RunError
from rl_reason.report import scores
from rl_reason.report.scores import Score

PREFIX = "prompts-"  # of files with the values of each prompt
Z = 1.959964  # of a 95% interval
# (set, measure) -> (problem, number of its repetition) -> score -> value
Values = dict[tuple[str, str], dict[tuple[str, int], dict[str, float]]]


class Difference(NamedTuple):
  """The mean difference of a score between two evaluations.

  Attributes:
    of_set, measure, name: the set, 'acc' or 'reward', and the score.
    prompts: number of prompts that both evaluations have.
    alone: number of prompts of the set that only one of them has.
    new, old: means over the common prompts.
    half: half of the 95% interval of new - old.
  """

  of_set: str
  measure: str
  name: str
  prompts: int
  alone: int
  new: float
  old: float
  half: float


def interval(difference_N: np.ndarray, share: bool) -> tuple[float, float]:
  """Returns the mean of paired differences and half of its 95% interval.

  Differences of shares lie in [-1, 1]. Their interval is Wald+2 (Agresti and
  Min 2005, Statistics in Medicine 24, 729-740): half an observation of +1, half
  of -1 and one of 0 are added, so that few prompts, or equal ones, do not give
  an interval of width 0. The longer side of the interval is returned.
  Differences of rewards, whose bounds are not known, have the normal interval.

  Args:
    difference_N: one number per prompt, in which samples are averaged.
    share: whether the differences are between shares.
  """
  count, mean = len(difference_N), float(difference_N.mean())
  if not share:
    std = difference_N.std(ddof=1) if count > 1 else 0.0
    return mean, float(Z * std / count**0.5)
  centre = float(difference_N.sum()) / (count + 2)
  squares = (float((difference_N**2).sum()) + 1) / (count + 2)
  half = Z * ((squares - centre**2) / (count + 2)) ** 0.5
  return mean, half + abs(centre - mean)


def write(path: pathlib.Path, lines: Iterable[Mapping[str, Any]]) -> None:
  """Writes a line for each prompt: set, measure, prompt, problem, scores."""
  json_files.write_text(path, "".join(json.dumps(x) + "\n" for x in lines))


def read(path: pathlib.Path) -> Values:
  """Reads what `write` has written; equal problems of a set are numbered.

  Raises:
    RunError: a line is damaged, or of another kind of file.
  """
  lines = json_files.read_jsonl(path)
  with json_files.damage_named(path):
    _require_values(lines)
  keys = {"set", "measure", "prompt", "scores"}
  if any(keys - line.keys() for line in lines):
    raise RunError(
        f"{path}: is no {PREFIX}WHICH.jsonl of --stage=evaluate, whose lines"
        " have the scores of a prompt"
    )
  return values_of(lines)


def _require_values(lines: Iterable[Mapping[str, Any]]) -> None:
  """Refuses scores that are no numbers, and names that are no texts."""
  for line in lines:
    for name in ("set", "measure", "prompt", "problem"):
      if not isinstance(line.get(name, ""), str):
        raise TypeError(f"{name} = {line[name]!r} is no text")
    for name, x in line.get("scores", {}).items():
      if not isinstance(x, int | float | None):
        raise TypeError(f"the score {name} = {x!r} is no number")


def values_of(lines: Iterable[Mapping[str, Any]]) -> Values:
  """The values by set, problem and score.

  A line without a problem, of an earlier version, has its prompt.
  """
  out: Values = collections.defaultdict(dict)
  seen: collections.Counter = collections.Counter()
  for line in lines:
    of_set, name = (line["set"], line["measure"]), problem(line)
    out[of_set][name, seen[of_set, name]] = line["scores"]
    seen[of_set, name] += 1
  return dict(out)


def problem(line: Mapping[str, Any]) -> str:
  """The problem of a line: what it shares with lines of other evaluations."""
  return line.get("problem", line["prompt"])


def differences(new: Values, old: Values) -> list[Difference]:
  """Returns new minus old for each score and set that both evaluations have."""
  out = []
  for (of_set, measure), prompts in new.items():
    before = old.get((of_set, measure), {})
    common = [x for x in prompts if x in before]
    if not common:
      continue
    alone = len(prompts) + len(before) - 2 * len(common)
    names = dict.fromkeys(name for x in common for name in prompts[x])
    for name in names:
      pairs = [(prompts[x].get(name), before[x].get(name)) for x in common]
      known = np.array([x for x in pairs if None not in x], float)
      if not len(known):
        continue
      share = measure == "acc" and not name.startswith(scores.REWARD)
      _, half = interval(known[:, 0] - known[:, 1], share)
      new_mean, old_mean = known.mean(0).tolist()
      out.append(
          Difference(
              *(of_set, measure, name, len(known), alone),
              *(new_mean, old_mean, half),
          )
      )
  return out


def table(
    found: Mapping[str, Sequence[Difference]], plus_minus: str = " +- "
) -> list[list[str]]:
  """The rows of one table: a row for each score of each comparison.

  `found` has the differences by the name of the comparison. The columns are
  this name, the set, the score, the number of prompts, the mean that is
  subtracted, the mean from which it is subtracted, and the difference.
  """
  rows = []
  for label, of_label in found.items():
    for of_set in dict.fromkeys(x.of_set for x in of_label):
      part = {x.name: x for x in of_label if x.of_set == of_set}
      for x in (part[name] for name in scores.shown(part)):
        share = x.measure == "acc" and not x.name.startswith(scores.REWARD)
        unit = "tokens" if share else "reward"
        new, old = (Score(v, None, share, unit) for v in (x.new, x.old))
        change = scores.difference(old, new)
        half = f"{100 * x.half:.1f}" if share else f"{x.half:.2g}"
        change = change.removesuffix(" points")
        rows.append(
            [label, of_set, x.name, f"{x.prompts:,}", old.text(), new.text()]
            + [f"{change}{plus_minus}{half}"]
        )
  return rows


def labels(
    paths: Sequence[pathlib.Path], own: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Short names of files of prompts, without the parts that all share."""
  parents = [x.resolve().parent for x in (*paths, own)]
  root = os.path.commonpath(parents)
  out = {}
  for path, parent in zip(paths, parents, strict=False):
    which = path.name.removeprefix(PREFIX).removesuffix(".jsonl")
    out[str(parent.relative_to(root) / which)] = path
  return out


def of_runs(workdirs: Sequence[pathlib.Path]) -> dict[str, list[Difference]]:
  """The other runs minus the first one, for evaluations of the same name."""
  out = {}
  first, *others = workdirs
  for path in sorted(first.glob(f"{PREFIX}*.jsonl")):
    there = [x / path.name for x in others if (x / path.name).exists()]
    for label, other in labels(there, path).items():
      out[label] = differences(read(other), read(path))
  return out
