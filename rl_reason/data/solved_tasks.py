"""Solved tasks of a published prompt, which are rows of the set itself.

The prompt of MBPP begins with three tasks and their solutions (Austin et al.
2021, arXiv:2108.07732). They are taken from the user's files: from the rows of
the source, or from the split `prompt` next to it. Rows that are in the prompt
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
      out[source.name] = protocol.solved(_rows(source))
  return out


def _rows(source: datasets.Source) -> Iterator[dict]:
  """The rows of a source, then the rows of the split `prompt` next to it."""
  places = [source]
  if not pathlib.Path(source.place).is_file():
    places.append(source._replace(split="prompt"))
  for place in places:
    with contextlib.suppress(datasets.DataError):  # preparation reports it
      for _, row in datasets.read(place):
        if row is not None:
          yield row


def lacking(source: datasets.Source, found: dict[str, str]) -> str:
  """What the screen says of a source without the solved tasks; '' if it has."""
  if found.get(source.name, "has none") != "":
    return ""
  ids = ", ".join(map(str, published.PUBLISHED[source.name].shots))
  return (
      f"warning: {source.text}: lacks the tasks {ids} (task_id) with their"
      " solutions (code), with which the published prompt begins, so its"
      " prompts have no solved tasks; name a directory with the split prompt,"
      " or a file that has these rows"
  )
