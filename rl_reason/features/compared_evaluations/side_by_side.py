"""The evaluations of one command in one table, with paired differences."""

from collections.abc import Sequence
from typing import Any

from rl_reason.report import paired, scores as scores_lib

FILE = "side-by-side.md"  # in the directory of the first evaluation
NONE = "–"


def table(found: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
  """The table of at least two `evaluate.Evaluation`s, with a column for each.

  A row is a score of a set. A cell has the score with its interval over
  prompts, and in parentheses its mean difference from the first evaluation,
  with the interval of pairs. A difference is over the problems that both
  evaluations have; the column of pairs has the smallest number of these.

  Returns:
    its head, and its rows.
  """
  scores = [scores_lib.by_set(x.metrics) for x in found]
  first, *others = [paired.values_of(x.lines) for x in found]
  differences = [paired.differences(x, first) for x in others]
  # Of the first evaluation there is no difference.
  changes: list[dict[tuple[str, str], str]] = [
      {},
      *(
          {(row[1], row[2]): f" ({row[-1]})" for row in paired.table({"": x})}
          for x in differences
      ),
  ]
  pairs = [{(x.of_set, x.name): x.prompts for x in y} for y in differences]
  rows = []
  for of_set in dict.fromkeys(name for x in scores for name in x):
    parts = [x.get(of_set, {}) for x in scores]
    for name in scores_lib.shown(dict.fromkeys(k for x in parts for k in x)):
      if name.startswith("difficulty"):
        continue
      key = of_set, name
      common = [x[key] for x in pairs if key in x]
      row = [of_set, name, f"{min(common):,}" if common else NONE]
      for of_policy, change in zip(parts, changes, strict=True):
        text = of_policy[name].text() if name in of_policy else NONE
        row.append(text + change.get(key, ""))
      rows.append(row)
  paths = [x.path for x in found]
  return ["set", "score", "pairs", *paired.labels(paths, paths[0])], rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table of Markdown."""
  lines = [head, ["---"] * len(head), *rows]
  escaped = [[x.replace("|", "\\|") for x in line] for line in lines]
  return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
