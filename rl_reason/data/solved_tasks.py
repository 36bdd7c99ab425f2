"""Solved tasks of a published prompt, which are rows of the set itself.

The prompt of MBPP begins with three tasks and their solutions (Austin et al.
2021, arXiv:2108.07732), that of FOLIO with two (Pan et al. 2023,
arXiv:2305.12295). They are taken from the user's files: from the rows of the
source, or from the split next to it that has them. Rows that are in the prompt
are not scored.
"""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator

from rl_reason.data import datasets, published


def find(sources: Iterable[datasets.Source]) -> dict[str, str]:
  """The solved tasks by the name of the set, for sets whose prompt has some.

  The text is '' where a task, or its solution, is missing.
  """
  out: dict[str, str] = {}
  for source in sources:
    protocol = published.PUBLISHED.get(source.name)
    if protocol and protocol.shots and not out.get(source.name):
      rows = _rows(source, protocol.shots.split)
      out[source.name] = protocol.shots.find(rows)
  return out


def _rows(source: datasets.Source, split: str) -> Iterator[dict]:
  """The rows of a source, then the rows of a split next to it."""
  places = [source]
  if not pathlib.Path(source.place).is_file():
    places.append(source._replace(split=split))
  for place in places:
    with contextlib.suppress(datasets.DataError):  # preparation reports it
      for _, row in datasets.read(place):
        if row is not None:
          yield row


def lacking(source: datasets.Source, found: dict[str, str]) -> str:
  """What the screen says of a source without the solved tasks; '' if it has."""
  if found.get(source.name, "has none") != "":
    return ""
  shots = published.PUBLISHED[source.name].shots
  assert shots  # `found` has the names of such sets only
  ids = ", ".join(map(str, shots.rows))
  return (
      f"warning: {source.text}: lacks the rows {ids} ({shots.column}) with"
      f" their solutions ({shots.solution}), with which the published prompt"
      " begins, so its prompts have no solved tasks; name a directory with the"
      f" split {shots.split}, or a file that has these rows"
  )
