"""Shardings of arrays on the mesh, by their logical axes.

All programs run on a mesh with the axes of `axes.AXES`, even on one device, so
that a laptop and a pod run the same program.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
)

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.devices import axes

PINNED = "pinned_host"  # memory kind of host memory that devices can access


def abstract_mesh(**sizes: int) -> AbstractMesh:
  """A mesh without devices, with sizes by axis; the default size is 1."""
  return AbstractMesh(
      tuple(sizes.get(axis, 1) for axis in axes.NAMES), axes.NAMES
  )


def memories() -> set[str]:
  """The kinds of memory that a device of this process can address."""
  return {x.kind for x in jax.local_devices()[0].addressable_memories()}


def spec(*logical: str | None) -> PartitionSpec:
  """The PartitionSpec of an array with these logical axes."""
  return PartitionSpec(*(axes.RULES[name] or None for name in logical))


def sharding(mesh: Mesh, *logical: str | None) -> NamedSharding:
  """`spec` on a mesh; replicated without names."""
  return NamedSharding(mesh, spec(*logical))


def fit(
    mesh: Mesh, shape: tuple[int, ...], logical: tuple[str | None, ...]
) -> NamedSharding:
  """`sharding`, without axes whose size does not divide evenly.

  Vocabularies can have any size.
  """
  names = [
      None if size % num_shards(mesh, name) else name
      for size, name in zip(shape, logical, strict=True)
  ]
  return sharding(mesh, *names)


def num_shards(mesh: Mesh | AbstractMesh, name: str | None) -> int:
  """Number of shards of a logical axis on a mesh; 1 without a mesh."""
  return axes.num_shards(mesh.shape, name)


def constrain(x: Array, *logical: str | None) -> Array:
  """Constrains the sharding of an array in jit; a no-op without a mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return x
  # Manual axes of a shard_map cannot be constrained.
  manual = set(mesh.manual_axes)
  names = (None if manual & set(axes.RULES[n]) else n for n in logical)
  return jax.lax.with_sharding_constraint(x, spec(*names))


def by_batch_shard(fn: Callable, in_specs: Tree, out_specs: Tree) -> Callable:
  """shard_map over the batch axes; the tensor axis remains automatic.

  Loops of `fn` may have different lengths on different shards.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return fn
  return jax.shard_map(
      fn,
      in_specs=in_specs,
      out_specs=out_specs,
      axis_names=set(axes.RULES["batch"]),
      check_vma=False,
  )


def by_device(fn: Callable, in_axes: Tree, out_axes: Tree) -> Callable:
  """shard_map over all axes, for kernels, which XLA cannot partition.

  Args:
    fn: function of arrays that treats rows and heads independently.
    in_axes: logical axes of each argument. An axis whose size does not divide
      evenly in one argument is not sharded in any.
    out_axes: logical axes of the result.
  """
  mesh = jax.sharding.get_abstract_mesh()
  free = set(mesh.axis_names) - set(mesh.manual_axes)
  if not free:
    return fn

  def run(*args):
    unsharded = {
        name
        for x, logical in zip(args, in_axes, strict=True)
        for size, name in zip(jnp.shape(x), logical, strict=True)
        if not free.issuperset(axes.RULES[name])
        or size % num_shards(mesh, name)
    }

    def local(logical):
      return spec(*(None if name in unsharded else name for name in logical))

    return jax.shard_map(
        fn,
        in_specs=tuple(map(local, in_axes)),
        out_specs=local(out_axes),
        axis_names=free,
        check_vma=False,
    )(*args)

  return run


def put(mesh: Mesh | None, tree: Tree, *logical: str | None) -> Tree:
  """Puts host arrays, equal on all processes, on the mesh (None: a no-op)."""
  if mesh is None:
    return tree
  where = sharding(mesh, *logical)

  def place(x):
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, where, lambda i: x[i])

  return jax.tree.map(place, tree)


def put_packed(mesh: Mesh | None, packed: Packed) -> Packed:
  """`put` for one minibatch, or for several along a leading axis."""
  lead = (None,) * (packed.source_BT.ndim - 2)
  source_BT = put(mesh, packed.source_BT, *lead, "batch")
  rest = put(mesh, packed.replace(source_BT=None), *lead, None, "rows")
  return rest.replace(source_BT=source_BT)


def fetch(tree: Tree) -> Tree:
  """Copies arrays with all shards to the host of every process."""
  if jax.process_count() > 1:
    return multihost_utils.process_allgather(tree, tiled=True)
  return jax.device_get(tree)
