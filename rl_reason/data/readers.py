"""Readers of files with rows: JSON, CSV, Parquet, Arrow, ArrayRecord.

A reader yields (number, row) in the order of the file, counted from 1. Files
are streamed, except JSON lists. JSON and CSV may be compressed by gzip, bzip2,
xz or zstandard, or be the only file of a zip archive, and may be UTF-16.
"""

import bz2
import codecs
import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from rl_reason.base import file_pointers
from rl_reason.base.errors import one_line

Numbered = Iterator[tuple[int, dict | None]]  # None: the row is no object
# Keys under which a JSON object may have its rows, besides the names of splits.
LISTS = (
    *("data", "rows", "examples", "instances", "samples", "problems"),
    *("questions", "items", "records", "entries"),
)
SPLITS = ("train", "test", "validation", "valid", "val", "dev")
BATCH = 256  # rows that are Python objects at a time


class DataError(ValueError):
  """Data that cannot be used; the message is one line with the remedy."""


# --- files -------------------------------------------------------------------


def _zstandard(path: pathlib.Path) -> IO[bytes]:
  import pyarrow

  return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


def _members(path: pathlib.Path) -> list[str]:
  with zipfile.ZipFile(path) as archive:
    names = [x for x in archive.namelist() if not x.startswith("__MACOSX/")]
  # A file with rows may have a license beside it.
  rows = [x for x in names if pathlib.Path(x).suffix.lower() in READERS]
  return rows if rows else [x for x in names if not x.endswith("/")]


def _zip(path: pathlib.Path) -> IO[bytes]:
  names = _members(path)
  if len(names) != 1:
    raise DataError(f"{path}: holds {len(names)} files, not 1: unzip it")
  return zipfile.ZipFile(path).open(names[0])


COMPRESSED: dict[str, Callable[[pathlib.Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
    ".zip": _zip,
}


def suffix(path: pathlib.Path) -> str:
  """The suffix of a file name that gives the format, without compression."""
  name = path.name
  if path.suffix.lower() in COMPRESSED:
    name = path.stem
    if path.suffix.lower() == ".zip" and "." not in name and path.is_file():
      names = _members(path)
      name = names[0] if len(names) == 1 else name
  return pathlib.Path(name).suffix.lower()


def _bytes(path: pathlib.Path) -> IO[bytes]:
  opener = COMPRESSED.get(path.suffix.lower())
  return opener(path) if opener else path.open("rb")


def _encoding(path: pathlib.Path) -> str:
  """UTF-8, or what the first bytes say: UTF-16 or UTF-32, or a BOM."""
  with _bytes(path) as file:
    return json.detect_encoding(file.read(4))


def _lines(path: pathlib.Path) -> Iterator[bytes]:
  """The lines of a file, in UTF-8."""
  encoding = _encoding(path)
  with _bytes(path) as file:
    if encoding.startswith("utf-8"):
      yield from file  # bytes, so that a damaged line is one damaged row
    else:
      for line in io.TextIOWrapper(file, encoding):
        yield line.encode()


# --- JSON --------------------------------------------------------------------


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
  row = dict(pairs)
  if len(row) < len(pairs):
    raise ValueError("an object has the same key twice")
  return row


def _object(data: bytes) -> dict | None:
  data = data.rstrip().removesuffix(b",")  # an item of a list on each line
  try:
    row = json.loads(data, object_pairs_hook=_unique_keys)
  except (ValueError, RecursionError):
    return None
  return row if isinstance(row, dict) else None


def json_rows(
    path: pathlib.Path, split: str = "", *, strict: bool = False
) -> Numbered:
  """Rows of a JSON file: a row a line; or one list; or an object with a list.

  Args:
    path: of the file.
    split: key of the list, if the object has one for each split.
    strict: whether the split must be a key.

  Raises:
    DataError: the object has no list of rows, or several; or a list or an
      object is no JSON.
    UnicodeDecodeError: a list, or most of the lines, are in another encoding.
  """
  start = list(itertools.islice((x for x in _lines(path) if x.strip()), 2))
  if start and _is_one_value(suffix(path) == ".json", *start):
    values = _values(path)
    if len(values) == 1 and isinstance(values[0], dict):
      values = _list_of(path, values[0], split, strict)
    elif len(values) == 1 and isinstance(values[0], list):
      [values] = values
    for number, row in enumerate(values, 1):
      if _are_turns(row):  # Open-Reasoner-Zero writes a row as its turns
        row = dict(messages=row)
      row = row if isinstance(row, dict) else None
      if row and row.keys() >= {"row_idx", "row"}:  # the hub's dataset viewer
        row = row["row"]
      yield number, row
    return
  if strict:
    raise DataError(f"{path}: has no splits: leave out :{split}")
  read, other = 0, []  # lines in another encoding
  for number, line in enumerate(_lines(path), 1):
    if line.strip():
      row = _object(line)
      if row is None and _object(line.decode("latin-1").encode()):
        other.append(line)
      read += 1
      yield number, row
  if 2 * len(other) > read:
    other[0].decode()  # raises


def _values(path: pathlib.Path) -> list[Any]:
  """The values that a file consists of, one or several, over any lines."""
  text = b"".join(_lines(path)).decode("utf-8-sig")
  decoder = json.JSONDecoder(object_pairs_hook=_unique_keys)
  text, out, end = text.strip(), [], 0
  while end < len(text):
    try:
      value, end = decoder.raw_decode(text, end)
    except json.JSONDecodeError as e:
      comma = text[: e.pos].rstrip().endswith(",")
      raise DataError(
          f"{path}: is no JSON at line {e.lineno}, column {e.colno} ({e.msg}"
          f"{', after a comma that is one too many' * comma}): correct it"
          " there; if it is cut short, fetch it again"
      ) from None
    out.append(value)
    while text[end : end + 1].isspace():
      end += 1
  return out


def _is_one_value(is_json: bool, first: bytes, second: bytes = b"") -> bool:
  """Whether two lines begin a list or an object, and not JSON lines."""
  first = first.removeprefix(codecs.BOM_UTF8).strip()
  if first.startswith(b"["):
    return True
  if not is_json:  # JSON lines, of which the first may be damaged
    return first == b"{"
  if not first.startswith(b"{"):
    return False
  if first.endswith((b"[", b"{")):  # a list begins, with a row on each line
    return True
  return not second or (_object(first) is None and _object(second) is None)


def _list_of(path, value: dict[str, Any], split: str, strict: bool) -> list:
  """The rows in the object that a JSON file consists of."""
  lists = [name for name, x in value.items() if _are_rows(x)]
  named = [name for name in lists if name in (*LISTS, *SPLITS)]
  if split in lists:
    return value[split]
  inner = [x for x in LISTS if isinstance(value.get(x), dict) and not lists]
  if len(inner) == 1 and any(map(_are_rows, value[inner[0]].values())):
    return _list_of(path, value[inner[0]], split, strict)
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
  if not value:
    return []
  if any(
      not isinstance(x, list | dict) or _are_turns(x) for x in value.values()
  ):
    return [value]  # a row
  if rows := _of_columns(value):
    return rows
  raise DataError(
      f"{path}: is one object with the keys {', '.join(value)}, none of which"
      ' has the rows: write a row a line, a list of rows, or {"data": rows}'
  )


def _of_columns(value: dict[str, Any]) -> list[dict]:
  """The rows of an object of columns, or of rows by their names; or [].

  pandas writes {"answer": {"0": "4", "1": "5"}}, or with orient="split"
  {"columns": ["answer"], "index": [0, 1], "data": [["4"], ["5"]]}.
  """
  if value.keys() >= {"columns", "data"}:
    return [dict(zip(value["columns"], x, strict=True)) for x in value["data"]]
  cells = list(value.values())
  if all(isinstance(x, dict) and x.keys() == cells[0].keys() for x in cells):
    if not all(name.isdigit() for name in cells[0]):
      return cells if cells[1:] else []
    cells = [list(x.values()) for x in cells]
  if not all(isinstance(x, list) and len(x) == len(cells[0]) for x in cells):
    return []
  return [dict(zip(value, x, strict=True)) for x in zip(*cells, strict=True)]


def _are_turns(x: Any) -> bool:
  """Whether a value is a chat."""
  turn = x[0] if isinstance(x, list) and x else None
  return isinstance(turn, dict) and (
      turn.keys() >= {"role", "content"} or turn.keys() >= {"from", "value"}
  )


def _are_rows(x: Any) -> bool:
  """Whether a value is a list of objects which is no chat."""
  if not isinstance(x, list) or not all(isinstance(y, dict) for y in x[:1]):
    return False
  return not _are_turns(x)


# --- tables ------------------------------------------------------------------


def _csv(path) -> Numbered:
  """Rows with a header; cells are text, and may contain newlines if quoted."""
  csv.field_size_limit(1 << 30)  # a response may be longer than the default
  encoding = _encoding(path)
  with (
      _bytes(path) as file,
      io.TextIOWrapper(file, encoding, newline="") as text,
  ):
    first = next((x for x in text if x.strip()), "")
    if named := re.fullmatch(r"sep=(.)\s*", first):  # Excel reads this line
      first = text.readline()
    lines = itertools.chain([first], text)
    usual = "\t" if suffix(path) == ".tsv" else ","
    delimiter = named[1] if named else _delimiter(first, usual)
    spaced = first.count(delimiter) == first.count(f"{delimiter} ")
    rows = csv.DictReader(
        lines, delimiter=delimiter, strict=True, skipinitialspace=spaced
    )
    header = [x.strip() for x in rows.fieldnames or ()]
    if len(set(header)) < len(header):
      raise ValueError("the header has the same column twice")
    rows.fieldnames = header
    try:
      for number, row in enumerate(rows, 1):
        fits = None not in row and None not in row.values()
        yield number, row if fits else None  # not the columns of the header
    except csv.Error as e:
      raise DataError(
          f"{path}: after line {rows.line_num} is no CSV ({e}): a quote within"
          " a quoted cell is written twice; if the file is cut short, fetch it"
          " again"
      ) from None


def _delimiter(header: str, usual: str) -> str:
  """The character that separates the columns of a header."""
  bare = re.sub(r'"[^"]*"', "", header)
  found = max(",;\t|", key=bare.count)
  return usual if usual in bare or found not in bare else found


def _shortest(cell: Any, kind) -> Any:
  """A cell whose numbers have the digits that they were written with.

  In 64 bits the 32-bit number 0.1 is 0.10000000149011612; the shortest digits
  that are the same 32-bit number are 0.1.

  Args:
    cell: the cell, as Python values.
    kind: its Arrow type.
  """
  from pyarrow import types

  if cell is None:
    return None
  if types.is_float16(kind) or types.is_float32(kind):
    narrow = np.float16 if types.is_float16(kind) else np.float32
    return float(str(narrow(cell)))
  if types.is_struct(kind):
    return {x.name: _shortest(cell[x.name], x.type) for x in kind}
  if types.is_map(kind):
    return {key: _shortest(x, kind.item_type) for key, x in cell.items()}
  if types.is_dictionary(kind):
    return _shortest(cell, kind.value_type)
  if isinstance(cell, list):
    return [_shortest(x, kind.value_type) for x in cell]
  return cell


def _microseconds(kind):
  """The type of times or durations, in microseconds."""
  import pyarrow

  if pyarrow.types.is_duration(kind):
    return pyarrow.duration("us")
  return pyarrow.timestamp("us", kind.tz)


def _python_rows(schema, batches) -> Iterator[dict]:
  """The rows of Arrow batches, few at a time."""
  narrow = {x.name: x.type for x in schema if "float" in str(x.type)}
  for batch in batches:
    # Python's times have no nanoseconds.
    for n, x in enumerate(batch.schema):
      for name in "timestamp", "duration":
        if str(x.type).startswith(f"{name}[ns"):
          cells = batch[n].cast(_microseconds(x.type), safe=False)
          batch = batch.set_column(n, x.name, cells)
    for first in range(0, batch.num_rows, BATCH):
      part = batch.slice(first, BATCH)
      for row in part.to_pylist(maps_as_pydicts="lossy"):
        short = {name: _shortest(row[name], x) for name, x in narrow.items()}
        yield row | short


def _parquet(path) -> Numbered:
  import pyarrow.parquet

  with pyarrow.parquet.ParquetFile(path) as file:
    batches = file.iter_batches(BATCH)
    yield from enumerate(_python_rows(file.schema_arrow, batches), 1)


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
      reader = batches = pyarrow.ipc.open_stream(file)
    yield from enumerate(_python_rows(reader.schema, batches), 1)


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
    ".ndjson": json_rows,
}


# Formats that are not read, and what to do with them.
OTHER = {
    **dict.fromkeys(
        (".tar", ".tgz", ".tbz", ".txz", ".7z", ".rar"),
        "is an archive: unpack it, and name its directory; a file ",
    ),
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods"), "is a spreadsheet: save it as CSV; a file "
    ),
    **dict.fromkeys(
        (".pkl", ".pickle", ".pt", ".npy", ".npz"),
        "may run code when it is read: write its rows as Parquet; a file ",
    ),
}
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
}


def _misnamed(path: pathlib.Path) -> str:
  """Why the suffix of a file contradicts its first bytes, or ''."""
  if suffix(path) == ".tar" and path.suffix.lower() in COMPRESSED:
    return "is an archive: unpack it, and name its directory"
  with path.open("rb") as file:
    start = file.read(8)
  named = path.suffix.lower()
  found = next((x for magic, x in MAGIC.items() if start.startswith(magic)), "")
  if named == found or (named, found) == (".feather", ".arrow"):
    return ""
  if found and named in READERS:
    new = path.with_suffix(found) if found in READERS else f"{path}{found}"
    return f"its contents are those of a {found} file: rename it to {new}"
  if named in COMPRESSED and start.lstrip()[:1] in (b"{", b"["):
    return f"is not compressed: rename it to {path.with_suffix('')}"
  return ""


def read(path: pathlib.Path, split: str, *, strict: bool) -> Numbered:
  """The rows of a file; see `json_rows` for the arguments.

  Raises:
    DataError: the file is damaged, or of an unknown format.
  """
  reader, packed = READERS.get(suffix(path)), path.suffix.lower() in COMPRESSED
  if why := file_pointers.problem(path):
    raise DataError(f"{path}: {why}")
  if why := _misnamed(path):
    raise DataError(f"{path}: {why}")
  if reader is None:
    raise DataError(
        f"{path}: {OTHER.get(path.suffix.lower(), '')}must end in"
        f" {', '.join(READERS)}; JSON and CSV also in {', '.join(COMPRESSED)}"
    )
  if packed and reader not in (json_rows, _csv):
    raise DataError(f"{path}: has compression of its own: unpack this file")
  if reader is json_rows:
    reader = functools.partial(json_rows, split=split, strict=strict)
  try:
    yield from reader(path)
  except DataError:
    raise
  except UnicodeDecodeError as e:
    raise DataError(
        f"{path}: is not {e.encoding.upper()} (byte 0x{e.object[e.start]:02x}):"
        " convert it, as with iconv -f LATIN1 -t UTF-8 (WINDOWS-1252 for a"
        " file of Excel, GB18030 or SHIFT_JIS for Chinese or Japanese text); if"
        " it is damaged, fetch it again"
    ) from None
  except Exception as e:  # every library has its own exceptions
    raise DataError(
        f"{path}: cannot be read to its end ({one_line(e)}); it is damaged"
        " or cut short: fetch it again"
    ) from None
