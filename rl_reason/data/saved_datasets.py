"""Directories that `save_to_disk` of Hugging Face's datasets has written.

DIR/state.json          of a Dataset: its Arrow files, in order
DIR/dataset_dict.json   of a DatasetDict: its splits, a Dataset in DIR/SPLIT
"""

import json
import pathlib
from collections.abc import Collection
from typing import Any

from rl_reason.data.readers import DataError

STATE, SPLITS = "state.json", "dataset_dict.json"
# Files without rows; the last is of repositories on the hub.
METADATA = (STATE, SPLITS, "dataset_info.json", "dataset_infos.json")


def default_split(text: str, root: pathlib.Path, wanted: str) -> str:
  """The split of a source that names none; '' if the place has no splits.

  Args:
    text: of the source, for messages.
    root: a file or directory.
    wanted: the split to take if there are several.

  Raises:
    DataError: there are several splits, and none is the wanted one.
  """
  names = _splits(root)
  if wanted in names or len(names) < 2:
    return wanted if wanted in names else "".join(names)
  raise DataError(
      f"{text}: has the splits {', '.join(names)}, and no {wanted!r}: name one,"
      f" as in {text}:{names[0]}"
  )


def files(
    text: str, root: pathlib.Path, split: str, known: Collection[str] = ()
) -> list[pathlib.Path]:
  """The Arrow files of a saved data set, in order; [] of any other directory.

  Args:
    text: of the source, for messages.
    root: the directory.
    split: of the source; '' if it names none.
    known: splits of the known set that the source is; () of other data.

  Raises:
    DataError: there is no such split, there are several data sets, or a file
      is missing or damaged.
  """
  if names := _splits(root):
    # The only split of a benchmark may have any name.
    only = names[0] if known and names[1:] == [] else split
    name = only if only not in known else split
    if name not in names:
      raise DataError(
          f"{text}: {root} has no split {split!r}; it has {', '.join(names)}"
      )
    root /= name
  elif split and (root / STATE).is_file():
    saved = _read(root / STATE).get("_split")
    if saved != split and (saved in known if known else True):
      raise DataError(
          f"{text}: {root} holds {saved or 'one Dataset'} and no split"
          f" {split!r}: leave out the split, or name another directory"
      )
  if not (root / STATE).is_file():
    nested = sorted(str(x.parent) for x in root.rglob(STATE))
    if nested:
      raise DataError(
          f"{text}: {root} holds {len(nested)} saved data sets, such as"
          f" {nested[0]}: name one of them"
      )
    return []
  state = _read(root / STATE)
  if state.get("_indices_data_files"):
    raise DataError(
        f"{text}: {root} was saved by an early version of datasets, with an"
        " index: load and save it again"
    )
  found = [root / x["filename"] for x in state.get("_data_files", ())]
  for path in found:
    if not path.is_file():
      raise DataError(f"{path}: is missing: copy the whole directory again")
  return found


def _splits(root: pathlib.Path) -> list[str]:
  """The splits of a DatasetDict; [] of any other place."""
  path = root / SPLITS
  return list(_read(path).get("splits", ())) if path.is_file() else []


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    return dict(json.loads(path.read_text()))
  except (ValueError, TypeError) as e:
    raise DataError(f"{path}: is damaged ({e}): copy it again") from None
