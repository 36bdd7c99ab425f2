"""Rows of files and of the Hugging Face hub, as examples.

A source is one text of the config:

  NAME, NAME:SPLIT            a known set, from the hub
  NAME@PATH, NAME:SPLIT@PATH  the same set in a local file or directory
  PATH, OWNER/REPOSITORY      any other data, with columns mapped by the config;
                              :SPLIT behind it selects files by their names

A file that is named like the repository of a known set, for example
dapo-math-17k.parquet, is read as that set. Commas separate sources;
`SOURCE*2` gives a source the weight 2 in the mixture. Without weights, every
row is drawn equally often.

Files are JSON lines, a JSON list, gzip of both, Parquet, or ArrayRecord with a
JSON object in each record. All but JSON lists are streamed.
"""

import codecs
import difflib
import fnmatch
import gzip
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rl_reason.config import one_line
from rl_reason.data import known_sets
from rl_reason.data.known_sets import KNOWN, Known, column

COLUMNS = ("question", "answer", "difficulty", "response", "chosen", "rejected")


class DataError(ValueError):
  """One line: which data cannot be used, and the remedy."""


class Example(NamedTuple):
  """One row of any set, in the fields that all sets share.

  Attributes:
    question: text before any template.
    answer: the reference answer; '' only beside a response, or where the kind
      is `none`. For code a JSON object: {"tests", "names", "prompt"}, or
      {"cases"} of (input, output).
    kind: of verifier.
    difficulty: rounded down; 0 if the set gives none.
    source: name of the set, or the path.
    where: file:row, counted from 1.
    response: of an SFT pair, or the chosen one of a preference pair.
    rejected: response of a preference pair.
    tolerance: absolute error that a numeric answer may have.
    solution: reasoning that leads to the answer, without the answer itself.
    columns: the whole row, for rewards.
  """

  question: str
  answer: str
  kind: str
  difficulty: int
  source: str
  where: str
  response: str = ""
  rejected: str = ""
  tolerance: float = 0.0
  solution: str = ""
  columns: Mapping[str, Any] = {}


class Malformed(NamedTuple):
  """A row that cannot be read as an example, and the reason."""

  where: str
  why: str


# --- sources -----------------------------------------------------------------


class Source(NamedTuple):
  """A parsed source.

  Attributes:
    text: as the config has it.
    name: of a known set, or ''.
    split: '' for all files.
    place: a path, or the id of a repository on the hub.
  """

  text: str
  name: str
  split: str
  place: str

  @property
  def benchmark(self) -> bool:
    """Whether the source is meant for evaluation."""
    return bool(self.name) and self.split != "train"


def parse(text: str, default_split: str = "train") -> Source:
  """Parses a source, without asking the hub or listing directories.

  Args:
    text: in the syntax of this module's docstring.
    default_split: of known sets, where neither text nor file name says one.

  Raises:
    DataError: it is neither a known set nor a path nor a hub id.
  """
  head, at, path = text.partition("@")
  name, _, split = head.partition(":")
  if name in KNOWN:
    splits = KNOWN[name].splits
    # The name of a file may say its split: test.jsonl is not for training.
    named = [x for x in splits if x in pathlib.Path(path).name]
    default = named[0] if named else default_split
    split = split or (default if default in splits else list(splits)[-1])
    if split not in splits:
      raise DataError(
          f"{text}: {name} has no split {split!r}; it has {', '.join(splits)}"
      )
    if at and not pathlib.Path(path).exists():
      raise DataError(f"{text}: there is no file or directory {path}")
    return Source(text, name, split, path or KNOWN[name].hub)
  similar = difflib.get_close_matches(name, KNOWN, 1)
  hint = f"; did you mean {similar[0]}?" if similar else ""
  if at:
    hint = hint or f"; there are {', '.join(KNOWN)}"
    raise DataError(f"{text}: {name!r} is no known set{hint}")
  if text and pathlib.Path(text).exists():
    stem = pathlib.Path(text).name.partition(".")[0].lower()
    for known, (hub, *_) in KNOWN.items():
      if hub.partition("/")[2].lower() == stem:  # named like its repository
        return parse(f"{known}@{text}", default_split)
    return Source(text, "", "", text)
  place, _, split = text.partition(":")
  is_hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", place)
  is_file = _suffix(pathlib.Path(place)) in READERS
  if (is_hub and not is_file) or (place and pathlib.Path(place).exists()):
    return Source(text, "", split, place)
  raise DataError(
      f"{text}: neither a known set, nor a file or directory, nor a hub id"
      f" OWNER/REPOSITORY{hint}"
  )


Part = tuple[Source, float | None]  # with its weight in the mixture, if any


def parse_all(text: str, default_split: str) -> list[Part]:
  """Parses 'SOURCE*WEIGHT,SOURCE,...'; raises DataError, as `parse`."""
  parts = []
  for item in filter(None, (x.strip() for x in text.split(","))):
    place, mark, suffix = item.rpartition("*")
    try:
      weight = float(suffix) if mark else None
    except ValueError:  # the asterisk belongs to the source
      mark, weight = "", None
    if weight is not None and not 0 < weight < math.inf:
      raise DataError(f"{item}: a weight must be more than 0")
    parts.append((parse(place if mark else item, default_split), weight))
  return parts


def columns(text: str) -> dict[str, str]:
  """Parses 'question=problem,answer=meta.result'; the rest map to themselves.

  Raises:
    DataError: an item is malformed, or names no field.
  """
  mapping = {name: name for name in COLUMNS}
  for part in filter(None, text.split(",")):
    name, _, source = (x.strip() for x in part.partition("="))
    if name not in COLUMNS or not source:
      raise DataError(
          f"{part!r} is no column; write for instance question=problem, with"
          f" {', '.join(COLUMNS)} on the left"
      )
    mapping[name] = source
  return mapping


def files(source: Source) -> list[tuple[str, pathlib.Path]]:
  """The files of a source: (name to show, path), sorted by name."""
  root = pathlib.Path(source.place)
  known = KNOWN.get(source.name)
  pattern = known.splits[source.split] if known else f"*{source.split}*"
  if not root.exists():
    root = _download(source, pattern)
  if root.is_file():
    return [(root.name, root)]
  paths = {
      str(path.relative_to(root)): path
      for path in sorted(root.rglob("*"))
      if path.is_file() and _suffix(path) in READERS
  }
  chosen = [x for x in paths if fnmatch.fnmatchcase(x, pattern)]
  if not chosen:  # a copy with another layout: look for the split's name
    chosen = [x for x in paths if pathlib.Path(x).name.startswith(source.split)]
  if not chosen and len(paths) == 1:  # the only file, unless of another split
    splits = known.splits if known else ()
    chosen = [x for x in paths if not any(y in x for y in splits)]
  if not chosen:
    found = ", ".join(paths) or f"no file with {', '.join(READERS)}"
    raise DataError(
        f"{source.text}: nothing in {root} is the split {source.split!r}, it"
        f" has {found}; name the file instead"
    )
  return [(name, paths[name]) for name in chosen]


def _download(source: Source, pattern: str) -> pathlib.Path:
  import huggingface_hub  # slow to import, and only needed here

  patterns = [f"{pattern}{x}{gz}" for x in READERS for gz in ("", ".gz")]
  try:
    return pathlib.Path(
        huggingface_hub.snapshot_download(
            source.place, repo_type="dataset", allow_patterns=patterns
        )
    )
  except Exception as e:  # of the network, the hub or the disk
    hint = f"{source.name}@PATH" if source.name else "PATH"
    raise DataError(
        f"{source.text}: the hub does not give {source.place}"
        f" ({one_line(e)}); download the files yourself and write {hint}"
    ) from None


# --- reading -----------------------------------------------------------------

Numbered = Iterator[tuple[int, dict | None]]  # None: a row that is no object


def _suffix(path: pathlib.Path) -> str:
  return pathlib.Path(path.name.removesuffix(".gz")).suffix


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
  row = dict(pairs)
  if len(row) < len(pairs):
    raise ValueError("an object has the same key twice")
  return row


def _object(data: bytes) -> dict | None:
  try:
    row = json.loads(data, object_pairs_hook=_unique_keys)
  except (ValueError, RecursionError):
    return None
  return row if isinstance(row, dict) else None


def _json(path) -> Numbered:
  """One object a line or, only in a file that is named .json, one list."""
  opener = gzip.open if path.suffix == ".gz" else open
  with opener(path, "rb") as file:
    first = next((x for x in file if x.strip()), b"")
    file.seek(0)
    start = first.removeprefix(codecs.BOM_UTF8).lstrip()
    if _suffix(path) == ".json" and start.startswith(b"["):
      rows = json.load(file, object_pairs_hook=_unique_keys)
      for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else None
      return
    for number, line in enumerate(file, 1):
      if line.strip():
        yield number, _object(line)


def _parquet(path) -> Numbered:
  import pyarrow.parquet

  with pyarrow.parquet.ParquetFile(path) as file:
    batches = (batch.to_pylist() for batch in file.iter_batches(256))
    yield from enumerate(itertools.chain.from_iterable(batches), 1)


def _array_record(path) -> Numbered:
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  for index in range(reader.num_records()):
    yield index + 1, _object(reader.read(index, index + 1)[0])
  reader.close()  # raises on a file that was cut short, which has no records


READERS = {
    ".jsonl": _json,
    ".json": _json,
    ".parquet": _parquet,
    ".array_record": _array_record,
}


def read(source: Source) -> Iterator[tuple[str, dict | None]]:
  """Yields ('file:row', row) of all files; None for a row that is no object.

  In text files rows are numbered as lines; blank lines are skipped.

  Raises:
    DataError: a file is missing, damaged, or of an unknown format.
  """
  for name, path in files(source):
    reader = READERS.get(_suffix(path))
    if reader is None:
      raise DataError(f"{path}: must end in {', '.join(READERS)}, or .gz")
    try:
      for number, row in reader(path):
        yield f"{name}:{number}", row
    except Exception as e:  # every library has exceptions of its own
      raise DataError(
          f"{path}: cannot be read to its end ({one_line(e)}); it is damaged"
          " or cut short: fetch it again"
      ) from None


def examples(
    source: Source, mapping: dict[str, str], kind: str
) -> Iterator[Example | Malformed]:
  """Yields the rows of a source as examples, in order.

  Args:
    source: of `parse`.
    mapping: of `columns`; used for sets that are not known.
    kind: of verifier, for such sets.
  """
  known = KNOWN.get(source.name)
  if known is None:
    answer = column(mapping["answer"])
    known = Known(
        hub=source.place,
        splits={},
        kind=kind,
        question=column(mapping["question"]),
        answer=known_sets.math_answer(answer) if kind == "math" else answer,
        difficulty=column(mapping["difficulty"]),
        response=column(mapping["response"], mapping["chosen"]),
        rejected=column(mapping["rejected"]),
    )
  for where, row in read(source):
    if row is None:
      yield Malformed(where, "no JSON object")
      continue
    try:
      example = Example(
          question=known_sets.text(known.question(row)),
          answer=known_sets.text(known.answer(row)),
          kind=known.kind,
          difficulty=known_sets.level(known.difficulty(row)),
          source=source.name or source.place,
          where=where,
          response=known_sets.text(known.response(row)),
          rejected=known_sets.text(known.rejected(row)),
          tolerance=known.tolerance(row),
          solution=known_sets.text(known.solution(row)),
          columns=row,
      )
    except KeyError as e:
      yield Malformed(where, f"no field {e}")
    except (TypeError, ValueError, AttributeError, OverflowError) as e:
      yield Malformed(where, f"a field of another type ({e})")
    else:
      yield example
