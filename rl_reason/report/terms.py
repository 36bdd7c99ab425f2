"""Terms and their definitions: for reports, and for docs/terms.md.

They are in terms.toml beside this file, and in those of features.
"""

import functools
import pathlib
import re
import tomllib
from typing import Any

from rl_reason import features

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@functools.cache
def read() -> dict[str, list[dict[str, Any]]]:
  """The entries of all files by kind, 'word' and 'term', in alphabetical order.

  Returns:
    entries: term, what and optionally also; those of a term have formula and
    where. Texts are Markdown.
  """
  out: dict[str, list[dict[str, Any]]] = dict(word=[], term=[])
  own = pathlib.Path(__file__).with_suffix(".toml")
  for path in (own, *features.files("terms.toml")):
    for kind, entries in tomllib.loads(path.read_text("utf-8")).items():
      out[kind] += entries
  for entries in out.values():
    entries.sort(key=lambda x: x["term"].lower())
  return out


def shown() -> list[dict[str, Any]]:
  """What a report has of each: term, names that it marks, what and where."""
  return [
      dict(
          term=x["term"],
          names=names(x),
          what=plain(x["what"]),
          where=plain(x.get("where", "")),
          common=kind == "word",
      )
      for kind, entries in read().items()
      for x in entries
  ]


def names(entry: dict[str, Any]) -> list[str]:
  """The words of a text that an entry explains, in lower case."""
  without = re.sub(r" \([^)]*\)", "", entry["term"])
  return [x.lower() for x in (*without.split(", "), *entry.get("also", ()))]


def plain(markdown: str) -> str:
  """Markdown without links and marks of code."""
  return _LINK.sub(r"\1", markdown).replace("`", "")
