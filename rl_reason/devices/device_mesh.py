"""Meshes of the devices that a run has, for training and for sampling."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from rl_reason.devices import topology
from rl_reason.devices.sharding import AXES


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    tensor: int = 1,
    devices=None,
    *,
    sequence: int = 1,
    expert: int = 1,
) -> Mesh:
  """A mesh over all devices; one axis may be -1, for the remaining devices.

  Args:
    data: size of the axis that shards rows and replicates parameters.
    fsdp: of the axis that shards rows and parameters.
    tensor: of the axis that shards heads, feed-forward and vocabulary.
    devices: default all.
    sequence: of the axis that shards the tokens of packed rows, and all that
      fsdp shards beside them.
    expert: of the axis that shards rows and experts.

  Raises:
    ValueError: the axes do not multiply to the number of devices, or tensor
      would cross hosts without need.
  """
  devices = jax.devices() if devices is None else devices
  sizes = [data, fsdp, expert, sequence, tensor]
  if sizes.count(-1) == 1:
    sizes[sizes.index(-1)] = len(devices) // -int(np.prod(sizes))
  if int(np.prod(sizes)) != len(devices) or min(sizes) < 1:
    raise ValueError(
        f"mesh {' x '.join(map(str, sizes))} does not cover"
        f" {len(devices)} devices"
    )
  arranged = topology.arrange(dict(zip(AXES, sizes, strict=True)), devices)
  return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def make_meshes(
    rollout: int = 0, *, devices=None, **axes: int
) -> tuple[Mesh, Mesh]:
  """The mesh that learns and the mesh that samples.

  Args:
    rollout: devices that only sample, the last ones, with the same tensor axis;
      0: both meshes are one.
    devices: default all.
    **axes: of `make_mesh`, of the devices that learn.
  """
  devices = list(jax.devices() if devices is None else devices)
  count = len(devices) - rollout
  mesh = make_mesh(**axes, devices=devices[:count])
  if not rollout:
    return mesh, mesh
  tensor = mesh.shape["tensor"]
  return mesh, make_mesh(tensor=tensor, devices=devices[count:])
