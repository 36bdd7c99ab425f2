"""Text and JSON files: written whole or not at all, read line by line."""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from rl_reason.base.errors import RunError, one_line

# What the reader of a damaged file raises, of the types of its values, too.
WRONG = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, AssertionError, IsADirectoryError, PermissionError),
)


def number(x, digits: int = 9) -> float | int | None:
  """Returns a JSON number; 9 significant digits are enough for any float32."""
  x = float(x)
  if not math.isfinite(x):
    return None
  return (
      int(x) if x.is_integer() and abs(x) < 1e15 else float(f"{x:.{digits}g}")
  )


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file atomically and durably."""
  temporary = path.with_name(path.name + ".tmp")
  with temporary.open("w", encoding="utf-8") as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  temporary.replace(path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes a value as JSON, atomically and durably."""
  write_text(path, json.dumps(value, indent=1))


@contextlib.contextmanager
def damage_named(path: pathlib.Path) -> Iterator[None]:
  """What the reader of a damaged file raises becomes a RunError, one line."""
  try:
    yield
  except WRONG as e:
    raise RunError(
        f"{path}: is damaged ({type(e).__name__}: {one_line(e)}); remove it,"
        " then --stage=report"
    ) from e


def parse(text: str | bytes) -> Any:
  """The value of a JSON text; NaN and infinity, which JSON lacks, are None."""
  return json.loads(text, parse_constant=lambda _: None)


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """The object that a JSON file has; {} if the file is missing.

  Raises:
    RunError: it is damaged, or has another value.
  """
  if not path.exists():
    return {}
  with damage_named(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
      raise ValueError(f"a {type(found).__name__} in the place of an object")
    return found


def read_jsonl(path: pathlib.Path) -> list[dict]:
  """Returns all complete lines of a file; [] if the file is missing.

  Raises:
    RunError: a line is not JSON, or no object.
  """
  if not path.exists():
    return []
  rows = []
  with damage_named(path):
    lines = path.read_text(errors="replace").split("\n")[:-1]
  for at, line in enumerate(lines, 1):
    try:
      rows.append(parse(line))
      if not isinstance(rows[-1], dict):
        raise ValueError
    except (ValueError, RecursionError):
      raise RunError(
          f"{path}: line {at} is damaged; remove it, then --stage=report"
      ) from None
  return rows
