"""The axes of the mesh: one table from which everything about them follows.

An axis is a field of the config, `mesh.NAME`, with the number of parts. The
mesh, the shardings of all arrays, the checks of what must divide evenly, and
the texts about them follow from `AXES`. A new axis is a row here, the field,
and the code that computes with its parts.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple


class Axis(NamedTuple):
  """One axis of the mesh.

  Attributes:
    name: of the field in the section mesh.
    splits: logical axes of arrays that it shards.
    about: what it divides, in a few words.
  """

  name: str
  splits: tuple[str, ...]
  about: str


# From the axis that communicates least to the axis that communicates most, as
# `device_mesh` lays them over the network. Logical axes: `batch` is responses,
# `rows` packed rows, `sequence` the tokens of a packed row, `stream` the tokens
# between layers, `embed` the width of the model.
AXES = (
    Axis("data", ("batch", "rows", "stream"), "rows"),
    Axis("fsdp", ("batch", "rows", "stream", "embed"), "rows and parameters"),
    Axis("expert", ("batch", "rows", "stream", "expert"), "rows and experts"),
    Axis(
        "sequence",
        ("batch", "sequence", "stream", "embed"),
        "tokens of packed rows, and parameters",
    ),
    Axis(
        "tensor",
        ("stream", "vocab", "heads", "kv_heads", "mlp"),
        "heads, feed-forward and vocabulary",
    ),
)
NAMES = tuple(axis.name for axis in AXES)

# Logical axis -> the axes of the mesh that shard it; None is not sharded.
RULES: dict[str | None, tuple[str, ...]] = {None: ()} | {
    logical: tuple(axis.name for axis in AXES if logical in axis.splits)
    for logical in dict.fromkeys(x for axis in AXES for x in axis.splits)
}

# Logical axes of parameters whose size must divide evenly -> the field with
# the size. (Vocabularies come in any size: they are replicated if need be.)
SIZES = {
    "kv_heads": "model.kv_heads",
    "mlp": "model.mlp",
    "embed": "model.width",
}


def fill(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
  """Sizes of all axes, in their order.

  Args:
    sizes: by name; an axis of size -1 takes the devices that others leave, and
      an axis that is not named has size 1.
    devices: number of devices.
  """
  product = math.prod(size for size in sizes.values() if size > 0)
  out = {name: sizes.get(name, 1) for name in NAMES}
  return {k: devices // product if x == -1 else x for k, x in out.items()}


def num_shards(sizes: Mapping[str, int], logical: str | None) -> int:
  """Number of shards of a logical axis on a mesh of some sizes."""
  return math.prod(sizes.get(name, 1) for name in RULES[logical])


def text(sizes: Mapping[str, int]) -> str:
  """The sizes in words: 'data 2 x fsdp 4'."""
  return " x ".join(f"{name} {size}" for name, size in sizes.items())


def fields(logical: str, word: str) -> str:
  """The fields of the axes that shard a logical axis, for remedies.

  Args:
    logical: 'embed' for the axes that shard parameters by their width.
    word: between the last two: 'mesh.fsdp or mesh.sequence'.
  """
  *first, last = (f"mesh.{name}" for name in RULES[logical])
  return f"{', '.join(first)} {word} {last}"


def of_batch(sizes: Mapping[str, int]) -> str:
  """The axes that shard rows, for errors: 'data x fsdp', and others in use."""
  first, second, *others = RULES["batch"]
  used = [name for name in others if sizes.get(name, 1) > 1]
  return " x ".join([first, second, *used])
