"""The scores of an evaluation as a table, with a column for each set."""

from typing import Any

from rl_reason.evaluation.accuracy import Responses
from rl_reason.report import scores as scores_lib
from rl_reason.report.scores import Score

WITHOUT = ("difficulty",)  # scores with these names have tables of their own


def as_text(
    values: dict[str, Any], sets: list[Responses]
) -> tuple[list[str], list[list[str]]]:
  """The table for the screen.

  Args:
    values: metrics of the evaluation.
    sets: responses to each set.

  Returns:
    its head; and its rows: name, a number for each set, and the meaning.
  """
  head, rows = _table(values, sets, " +- ")
  return [*head, ""], [
      [row["name"], *(text for text, _ in row["cells"]), row["about"]]
      for row in rows
  ]


def for_page(
    values: dict[str, Any], sets: list[Responses]
) -> dict[str, list[Any]]:
  """The table for a page: head, and rows with cells (text, share or None)."""
  head, rows = _table(values, sets, " ± ")
  return dict(head=head, rows=rows)


def _table(values, sets: list[Responses], plus_minus: str):
  """Head and rows: name, about, and a cell for each set."""
  found = scores_lib.by_set(values)
  rows: list[dict[str, Any]] = [
      dict(
          name="prompts",
          about="of the set that were evaluated",
          cells=[(f"{len(x.rows):,}", None) for x in sets],
      )
  ]
  for name in _names(found):
    cells = [_cell(found.get(x.name, {}).get(name), plus_minus) for x in sets]
    rows.append(dict(name=name, about=scores_lib.meaning(name), cells=cells))
  return ["", *(x.name for x in sets)], rows


def _names(found: dict[str, dict[str, Score]]) -> list[str]:
  """The scores of all sets in order; of pass@k, the smallest and largest k."""
  names = dict.fromkeys(name for x in found.values() for name in x)
  return [x for x in scores_lib.shown(names) if not x.startswith(WITHOUT)]


def _cell(score: Score | None, plus_minus: str) -> tuple[str, float | None]:
  """The text of a score, and its share for a bar."""
  if score is None:
    return "–", None
  return score.text(plus_minus), score.value if score.share else None
