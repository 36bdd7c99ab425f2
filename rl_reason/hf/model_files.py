"""Safetensors and JSON files of a checkpoint directory.

The safetensors library validates the header of a file against its size, maps
the file into memory, and copies only the requested slices.
"""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
import safetensors.numpy

from rl_reason.base import file_pointers
from rl_reason.base.errors import one_line

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Files of weights. Repositories of Mistral have the weights a second time, as
# consolidated.safetensors, and others in precisions of their own or in folders.
PATTERNS = (SINGLE, "model-*.safetensors", INDEX)
# Supported dtypes: name in the file -> name in NumPy, torch and config.json.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class CheckpointError(Exception):
  """The fault of a checkpoint; callers add its path."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; raises CheckpointError if the file has none."""
  if not path.is_file():
    names = sorted(p.name for p in path.parent.iterdir())[:5]
    raise CheckpointError(
        f"has no {path.name} (it has {', '.join(names) or 'no files'}); give"
        " the directory of a model, as written by save_pretrained"
    )
  try:
    value = json.loads(path.read_bytes())
  except (ValueError, RecursionError) as e:  # includes UnicodeDecodeError
    raise CheckpointError(f"{path.name}: is not JSON: {one_line(e)}") from None
  if not isinstance(value, dict):
    raise CheckpointError(f"{path.name}: is not a JSON object")
  return value


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes indented JSON, as transformers does."""
  path.write_text(json.dumps(value, indent=2) + "\n")


class Tensor(NamedTuple):
  """Header entry of a tensor: its file, name, dtype (see DTYPES) and shape."""

  file: pathlib.Path
  name: str
  dtype: str
  shape: tuple[int, ...]

  def read(self, index: Any = ...) -> np.ndarray:
    """Reads a slice, or everything, in the dtype of the file."""
    with safetensors.safe_open(self.file, framework="numpy") as f:
      return f.get_slice(self.name)[index]


def headers(path: pathlib.Path) -> dict[str, Tensor]:
  """Reads the headers of all safetensors files of a directory.

  Raises:
    CheckpointError: a file is missing or damaged, or contradicts the index.
  """
  if (path / SINGLE).is_file():
    return _header(path / SINGLE)
  if not (path / INDEX).is_file():
    raise CheckpointError(
        f"has neither {SINGLE} nor {INDEX}; pickles (*.bin, *.pt) can run code"
        " and are not read: convert them by save_pretrained of transformers"
    )
  tensors: dict[str, Tensor] = {}
  weight_map = _weight_map(path)
  for file in sorted(set(weight_map.values())):
    if not (path / file).is_file():
      raise CheckpointError(f"{INDEX}: {file} is missing; download it again")
    for name, tensor in _header(path / file).items():
      if weight_map.get(name) != file:
        raise CheckpointError(
            f"{INDEX}: {name} is in {file}, and the index names another file;"
            " download both again"
        )
      tensors[name] = tensor
  absent = sorted(weight_map.keys() - tensors.keys())
  if absent:
    raise CheckpointError(
        f"{INDEX}: {absent[0]} is in none of the files; download them again"
    )
  return tensors


def missing(path: pathlib.Path) -> list[str]:
  """Files that the index of a directory names, if any, and that are not there.

  Raises:
    CheckpointError: the index is damaged.
  """
  if (path / SINGLE).is_file() or not (path / INDEX).is_file():
    return []
  names = sorted(set(_weight_map(path).values()))
  return [name for name in names if not (path / name).is_file()]


def _weight_map(path: pathlib.Path) -> dict[str, str]:
  """The index of a directory: name of a tensor -> name of its file."""
  weight_map = read_json(path / INDEX).get("weight_map")
  if not isinstance(weight_map, dict) or not all(
      isinstance(x, str) and x == pathlib.PurePath(x).name
      for x in weight_map.values()
  ):
    raise CheckpointError(
        f"{INDEX}: weight_map must map tensors to file names; download it again"
    )
  return weight_map


def _header(file: pathlib.Path) -> dict[str, Tensor]:
  """Reads the header of one file."""
  tensors = {}
  if why := file_pointers.problem(file):
    raise CheckpointError(f"{file.name}: {why}")
  try:
    with safetensors.safe_open(file, framework="numpy") as f:
      for name in f.keys():
        x = f.get_slice(name)
        tensors[name] = Tensor(file, name, x.get_dtype(), tuple(x.get_shape()))
  except safetensors.SafetensorError as e:
    raise CheckpointError(
        f"{file.name}: {one_line(e)}: truncated or damaged; download it again"
    ) from None
  for name, tensor in tensors.items():
    if tensor.dtype not in DTYPES:
      raise CheckpointError(
          f"{file.name}: {name} is {tensor.dtype}: must be one of"
          f" {', '.join(DTYPES)}; give a checkpoint without quantization"
      )
  return tensors


def write(
    directory: pathlib.Path,
    sizes: dict[str, int],
    fetch: Callable[[str], np.ndarray],
    shard_bytes: int,
) -> None:
  """Writes tensors file by file, and an index if there is more than one file.

  Args:
    directory: an existing directory.
    sizes: bytes of each tensor, in the order of writing.
    fetch: name -> tensor. Every process calls it, since gathering a sharded
      array is a collective; process 0 writes.
    shard_bytes: maximum bytes of a file, unless a single tensor is larger.
      Process 0 has the tensors of one file in host memory.
  """
  import huggingface_hub  # imported late: takes seconds

  split = huggingface_hub.split_state_dict_into_shards_factory(
      sizes,
      get_storage_size=lambda size: size,
      filename_pattern="model{suffix}.safetensors",
      max_shard_size=shard_bytes,
  )
  is_writer = jax.process_index() == 0
  for file, names in split.filename_to_tensors.items():
    tensors = {}
    for name in names:
      tensor = fetch(name)
      if is_writer:
        tensors[name] = tensor
    if is_writer:
      path = directory / file
      safetensors.numpy.save_file(tensors, path, {"format": "pt"})
      with path.open("rb") as f:  # on disk before the directory is renamed
        os.fsync(f.fileno())
  if is_writer and split.is_sharded:
    weight_map = split.tensor_to_filename
    index = dict(metadata=split.metadata, weight_map=weight_map)
    write_json(directory / INDEX, index)
