"""Safetensors: checked before they are read, and read range by range.

A file is 8 bytes of header length (little-endian), a JSON header {name:
{dtype, shape, data_offsets}}, and the bytes of the tensors without a gap. It is
read here, not by its library: that has no bfloat16 in numpy, and a device that
holds a shard should read that shard alone. Nothing here unpickles.
"""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.config import one_line

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_MAX = 100_000_000  # bytes; the limit of the format's own library
DTYPES = {"F32": jnp.float32, "F16": jnp.float16, "BF16": jnp.bfloat16}
MAX_AXES = 8
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Fault(Exception):
  """What is wrong with a checkpoint, without its name."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a file.

  Raises:
    Fault: there is none.
  """
  if not path.is_file():
    there = sorted(p.name for p in path.parent.iterdir())[:5]
    raise Fault(
        f"has no {path.name} (it has {', '.join(there) or 'nothing'}); give"
        " the directory of a model, as save_pretrained writes it"
    )
  return parse(path.read_bytes(), path.name)


def parse(text: bytes, name: str) -> dict[str, Any]:
  """A JSON object in which no key stands twice; of the file `name`."""

  def once(pairs):
    out = dict(pairs)
    if len(out) < len(pairs):
      raise ValueError("a key stands there twice")
    return out

  try:
    value = json.loads(text, object_pairs_hook=once)
    if not isinstance(value, dict):
      raise ValueError("not an object")
  except (ValueError, RecursionError) as e:  # UnicodeDecodeError among them
    raise Fault(f"{name}: is no JSON object ({one_line(e)})") from None
  return value


class Tensor(NamedTuple):
  """Where a tensor lies: a range of bytes of a file."""

  file: pathlib.Path
  dtype: str
  shape: tuple[int, ...]
  start: int

  def bits(self) -> np.ndarray:
    """The tensor as it is in the file; pages are read when they are used."""
    dtype = DTYPES[self.dtype]
    return np.memmap(self.file, dtype, "r", self.start, self.shape)


def find(path: pathlib.Path) -> dict[str, Tensor]:
  """Every tensor of a directory, by name; reads headers only.

  Raises:
    Fault: a file is missing or damaged, or index and files do not agree.
  """
  if (path / SINGLE).is_file():
    return _header(path / SINGLE)
  if not (path / INDEX).is_file():
    pickles = [p.name for p in path.iterdir() if p.suffix in PICKLES]
    raise Fault(
        f"has neither {SINGLE} nor {INDEX}"
        + (
            f"; {min(pickles)} is a pickle, which can run code: convert it"
            " where you trust it, with save_pretrained of transformers"
            if pickles
            else ""
        )
    )
  listed = read_json(path / INDEX).get("weight_map")
  if not isinstance(listed, dict) or not all(
      isinstance(file, str) for file in listed.values()
  ):
    raise Fault(f"{INDEX}: weight_map must name the file of each tensor")
  found: dict[str, Tensor] = {}
  for file in sorted(set(listed.values())):
    if pathlib.PurePath(file).name != file:
      raise Fault(f"{INDEX}: {file!r} is not the name of a file beside it")
    if not (path / file).is_file():
      raise Fault(f"{INDEX}: names {file}, which is missing; fetch it again")
    for name, tensor in _header(path / file).items():
      if name in found:
        raise Fault(f"{name}: is in {found[name].file.name} and in {file}")
      found[name] = tensor
  for name, file in listed.items():
    if name not in found or found[name].file.name != file:
      raise Fault(f"{INDEX}: {name} is not in {file}")
  return found


def _header(file: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a file, whose header is checked against its size."""
  size = file.stat().st_size
  with file.open("rb") as f:
    length = int.from_bytes(f.read(8), "little")
    if size < 8 or not 0 < length <= min(HEADER_MAX, size - 8):
      raise Fault(
          f"{file.name}: is no safetensors file, or cut off: its header would"
          f" take {length} of {size} bytes; fetch it again"
      )
    header = parse(f.read(length), file.name)
  header.pop("__metadata__", None)
  out, ends = {}, []
  for name, entry in header.items():
    try:
      kind, shape, (start, end) = (
          entry[x] for x in ("dtype", "shape", "data_offsets")
      )
      numbers = [*shape, start, end]
      if len(shape) > MAX_AXES:
        raise ValueError
      if not all(type(x) is int and 0 <= x <= size for x in numbers):
        raise ValueError
      known = kind in DTYPES
    except (KeyError, TypeError, ValueError):
      raise Fault(
          f"{file.name}: {name}: needs dtype, shape and data_offsets, whole"
          f" numbers that a file of {size} bytes has; has {entry!r:.200}"
      ) from None
    if not known:
      raise Fault(
          f"{file.name}: {name} is {kind}: must be {', '.join(DTYPES)};"
          " give the checkpoint as it was before it was quantized"
      )
    takes = _bytes(kind, shape)
    if end - start != takes:
      raise Fault(
          f"{file.name}: {name} has {end - start} bytes, and {shape} of {kind}"
          f" takes {takes}"
      )
    out[name] = Tensor(file, kind, tuple(shape), 8 + length + start)
    ends.append((start, end, name))
  at = 0
  for start, end, name in sorted(ends):
    if start != at:
      raise Fault(
          f"{file.name}: {name} begins at byte {start}, and the tensor before"
          f" it ends at {at}: the header is damaged"
      )
    at = end
  if 8 + length + at != size:
    raise Fault(
        f"{file.name}: has {size} bytes, and its header describes"
        f" {8 + length + at}: cut off, or damaged; fetch it again"
    )
  return out


def save(
    directory: pathlib.Path,
    plan: dict[str, tuple[str, tuple[int, ...]]],
    read: Callable[[str], np.ndarray],
    shard_bytes: int,
) -> None:
  """Writes tensors one by one, and an index if they fill several files.

  Args:
    directory: is there already.
    plan: dtype and shape of each tensor, in the order in which they go.
    read: the tensor of a name. Called on every process, as it may have to be
      gathered; process 0 writes.
    shard_bytes: the most in one file, unless a tensor is larger.
  """
  sizes = {name: _bytes(*entry) for name, entry in plan.items()}
  parts: list[list[str]] = [[]]
  for name, size in sizes.items():
    if parts[-1] and sum(sizes[x] for x in parts[-1]) + size > shard_bytes:
      parts.append([])
    parts[-1].append(name)
  files = {SINGLE: parts[0]}
  if len(parts) > 1:
    files = {
        f"model-{i:05}-of-{len(parts):05}.safetensors": names
        for i, names in enumerate(parts, 1)
    }
  writes = jax.process_index() == 0
  for file, names in files.items():
    with contextlib.ExitStack() as stack:
      if writes:
        f = stack.enter_context((directory / file).open("wb"))
        f.write(_header_of({name: plan[name] for name in names}))
      for name in names:
        x = read(name)
        if writes:
          x.tofile(f)
      if writes:
        f.flush()
        os.fsync(f.fileno())
  if writes and len(parts) > 1:
    where = {name: file for file, names in files.items() for name in names}
    index = dict(total_size=sum(sizes.values()))
    write_json(directory / INDEX, dict(metadata=index, weight_map=where))


def _bytes(kind: str, shape) -> int:
  return math.prod(shape) * np.dtype(DTYPES[kind]).itemsize


def _header_of(plan) -> bytes:
  """The first bytes of a file: length and header, padded to 8 bytes."""
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  at = 0
  for name, (kind, shape) in plan.items():
    end = at + _bytes(kind, shape)
    header[name] = dict(dtype=kind, shape=shape, data_offsets=(at, end))
    at = end
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  return len(text).to_bytes(8, "little") + text


def write_json(path: pathlib.Path, value) -> None:
  """Indented, as transformers writes it."""
  path.write_text(json.dumps(value, indent=2) + "\n")
