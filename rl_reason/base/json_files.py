"""Text and JSON files: written whole or not at all, read line by line."""

import json
import math
import os
import pathlib

from rl_reason.base.errors import RunError


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


def read_jsonl(path: pathlib.Path) -> list[dict]:
  """Returns all complete lines of a file; [] if the file is missing.

  Raises:
    RunError: a line is not JSON.
  """
  if not path.exists():
    return []
  rows = []
  lines = path.read_text(errors="replace").split("\n")[:-1]
  for at, line in enumerate(lines, 1):
    try:
      rows.append(json.loads(line))
    except ValueError:
      raise RunError(
          f"{path}: line {at} is damaged; remove it, then --stage=report"
      ) from None
  return rows
