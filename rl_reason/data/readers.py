"""Readers of files with rows: JSON, CSV, Parquet, ArrayRecord; gzip of texts.

A reader yields (number, row) in the order of the file, counted from 1. Files
are streamed, except JSON lists.
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


def _json(path) -> Numbered:
  """One object a line; a file named .json may also contain one list."""
  with _opener(path)(path, "rb") as file:
    first = next((x for x in file if x.strip()), b"")
    file.seek(0)
    start = first.removeprefix(codecs.BOM_UTF8).lstrip()
    if suffix(path) == ".json" and start.startswith(b"["):
      rows = json.load(file, object_pairs_hook=_unique_keys)
      for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else None
      return
    for number, line in enumerate(file, 1):
      if line.strip():
        yield number, _object(line)


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
    batches = (batch.to_pylist() for batch in file.iter_batches(256))
    yield from enumerate(itertools.chain.from_iterable(batches), 1)


def _array_record(path) -> Numbered:
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  for index in range(reader.num_records()):
    yield index + 1, _object(reader.read(index, index + 1)[0])
  reader.close()  # raises if the file was truncated, and has no records


READERS = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".array_record": _array_record,
}
