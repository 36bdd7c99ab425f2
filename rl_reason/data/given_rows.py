"""Rows of `rl_reason.train`: what callers have, as a list of dicts."""

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from rl_reason.base.errors import ConfigError
from rl_reason.data import readers

FORM = "{'question': ..., 'answer': ...}"


def rows_of(rows: Any, name: str) -> list[Any]:
  """The rows of a file, of columns, of a table, or of any iterable of dicts.

  Args:
    rows: a path; a dict of columns of equal length; a DataFrame of pandas or
      polars, a table of Arrow; or an iterable of dicts, such as a Dataset of
      Hugging Face.
    name: name of the argument, for messages.

  Raises:
    ConfigError: the rows have another form, which the message names.
    DataError: the file is damaged, or of an unknown format.
  """
  if isinstance(rows, str | os.PathLike):
    return _of_file(pathlib.Path(rows).expanduser(), name)
  for method, args in ("to_dicts", ()), ("to_pylist", ()):
    if hasattr(rows, method):  # polars, Arrow
      return getattr(rows, method)(*args)
  if hasattr(rows, "to_dict") and hasattr(rows, "iloc"):  # pandas
    return rows.to_dict("records")
  if isinstance(rows, Mapping):
    return _of_columns(rows, name)
  if not isinstance(rows, Iterable):
    raise ConfigError(f"{name}: {type(rows).__name__} has no rows; {_forms()}")
  found = list(rows)
  for number, row in enumerate(found):
    if not isinstance(row, Mapping):
      raise ConfigError(
          f"{name}: row {number} is {str(row)[:40]!r} ({type(row).__name__});"
          f" a row is a dict such as {FORM}"
      )
  return found


def _forms() -> str:
  return (
      f"give a list of dicts such as {FORM}, a path, a dict of columns, or a"
      " table"
  )


def _of_file(path: pathlib.Path, name: str) -> list[Any]:
  if not path.is_file():
    raise ConfigError(
        f"{name} = {str(path)!r}: there is no such file;"
        f" {_forms()}; overrides={{'data.train': ...}} names a set of the hub"
        " or a directory"
    )
  found = list(readers.read(path, "", strict=False))
  for number, row in found:
    if row is None:
      raise ConfigError(f"{name} = {str(path)!r}: row {number} is no object")
  return [row for _, row in found if row is not None]


def _of_columns(columns: Mapping[str, Any], name: str) -> list[dict]:
  """Rows of a dict of columns."""
  if any(hasattr(x, "column_names") for x in columns.values()):  # of a hub
    splits = ", ".join(map(str, columns))
    raise ConfigError(
        f"{name}: has the splits {splits}; give one of them, as in"
        f" {name}=dataset[{next(iter(columns))!r}]"
    )
  sizes = {
      key: len(x)
      for key, x in columns.items()
      if hasattr(x, "__len__") and not isinstance(x, str | bytes | Mapping)
  }
  if len(sizes) < len(columns) or not columns:
    raise ConfigError(
        f"{name}: is one dict, and no dict of columns; {_forms()}"
    )
  if len(set(sizes.values())) > 1:
    text = ", ".join(f"{key} {n}" for key, n in sizes.items())
    raise ConfigError(f"{name}: its columns have different lengths: {text}")
  cells = [x.tolist() if hasattr(x, "tolist") else x for x in columns.values()]
  return [
      dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)
  ]
