"""Readers of files with rows: JSON, CSV, Parquet, Arrow, ArrayRecord.

A reader yields (number, row) in the order of the file, counted from 1. Files
are streamed, except JSON lists. JSON and CSV may be compressed by gzip.
"""

import codecs
import csv
import gzip
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

Numbered = Iterator[tuple[int, dict | None]]  # None: the row is no object
# Keys under which a JSON object may have its rows, besides the names of splits.
LISTS = ("data", "rows", "examples", "instances", "samples")
SPLITS = ("train", "test", "validation", "valid", "val", "dev")
BATCH = 256  # rows that are Python objects at a time


class DataError(ValueError):
  """Data that cannot be used; the message is one line with the remedy."""


def suffix(path: pathlib.Path) -> str:
  """The suffix of a file name that gives the format, ignoring .gz."""
  return pathlib.Path(path.name.removesuffix(".gz")).suffix


def _opener(path: pathlib.Path):
  return gzip.open if path.suffix == ".gz" else open


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


def json_rows(
    path: pathlib.Path, split: str = "", *, strict: bool = False
) -> Numbered:
  """Rows of a JSON file: a row a line; or one list; or an object with a list.

  Only a file named .json may contain a list or an object with a list.

  Args:
    path: of the file.
    split: key of the list, if the object has one for each split.
    strict: whether the split must be a key.

  Raises:
    DataError: the object has no list of rows, or several.
  """
  with _opener(path)(path, "rb") as file:
    start = list(itertools.islice((x for x in file if x.strip()), 2))
    file.seek(0)
    if suffix(path) == ".json" and start and _is_one_value(*start):
      value = json.load(file, object_pairs_hook=_unique_keys)
      if isinstance(value, dict):
        value = _list_of(path, value, split, strict)
      for number, row in enumerate(value, 1):
        yield number, row if isinstance(row, dict) else None
      return
    if strict:
      raise DataError(f"{path}: has no splits: leave out :{split}")
    for number, line in enumerate(file, 1):
      if line.strip():
        yield number, _object(line)


def _is_one_value(first: bytes, second: bytes = b"") -> bool:
  """Whether two lines begin a list or an object, and not JSON lines."""
  first = first.removeprefix(codecs.BOM_UTF8).lstrip()
  if not first.startswith(b"{"):
    return first.startswith(b"[")
  return not second or (_object(first) is None and _object(second) is None)


def _list_of(path, value: dict[str, Any], split: str, strict: bool) -> list:
  """The rows in the object that a JSON file consists of."""
  lists = [name for name, x in value.items() if _are_rows(x)]
  named = [name for name in lists if name in (*LISTS, *SPLITS)]
  if split in lists:
    return value[split]
  if strict:
    raise DataError(
        f"{path}: has no list of rows {split!r}; its keys are"
        f" {', '.join(value)}"
    )
  if len(named) == 1:
    return value[named[0]]
  if named:
    raise DataError(
        f"{path}: has the lists {', '.join(named)}: name one, as in"
        f" {path}:{named[0]}"
    )
  if len(value) == len(lists) == 1:
    return value[lists[0]]
  if any(
      not isinstance(x, list | dict) or _are_turns(x) for x in value.values()
  ):
    return [value]  # a row
  raise DataError(
      f"{path}: is one object with the keys {', '.join(value)}, none of which"
      ' has the rows: write a row a line, a list of rows, or {"data": rows}'
  )


def _are_turns(x: Any) -> bool:
  """Whether a value is a chat."""
  turn = x[0] if isinstance(x, list) and x else None
  return isinstance(turn, dict) and turn.keys() >= {"role", "content"}


def _are_rows(x: Any) -> bool:
  """Whether a value is a list of objects which is no chat."""
  if not isinstance(x, list) or not all(isinstance(y, dict) for y in x[:1]):
    return False
  return not _are_turns(x)


def _csv(path) -> Numbered:
  """Rows with a header; cells are text, and may contain newlines if quoted."""
  csv.field_size_limit(1 << 30)  # a response may be longer than the default
  with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
    delimiter = "\t" if suffix(path) == ".tsv" else ","
    rows = csv.DictReader(file, delimiter=delimiter, strict=True)
    header = rows.fieldnames or ()
    if len(set(header)) < len(header):
      raise ValueError("the header has the same column twice")
    for number, row in enumerate(rows, 1):
      fits = None not in row and None not in row.values()
      yield number, row if fits else None  # not the columns of the header


def _parquet(path) -> Numbered:
  import pyarrow.parquet

  with pyarrow.parquet.ParquetFile(path) as file:
    batches = (batch.to_pylist() for batch in file.iter_batches(BATCH))
    yield from enumerate(itertools.chain.from_iterable(batches), 1)


def _arrow(path) -> Numbered:
  """Arrow's file and stream formats; `datasets` writes streams."""
  import pyarrow

  with pyarrow.OSFile(str(path)) as file:
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    if is_file:
      reader = pyarrow.ipc.open_file(file)
      batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
      batches = iter(pyarrow.ipc.open_stream(file))
    parts = (
        batch.slice(first, BATCH).to_pylist()
        for batch in batches
        for first in range(0, batch.num_rows, BATCH)
    )
    yield from enumerate(itertools.chain.from_iterable(parts), 1)


def _array_record(path) -> Numbered:
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  for index in range(reader.num_records()):
    yield index + 1, _object(reader.read(index, index + 1)[0])
  reader.close()  # raises if the file was truncated, and has no records


READERS = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".array_record": _array_record,
}
