"""Meshes of the devices that learn and sample, arranged by their network.

Devices with the same `slice_index` share a fast network: the GPUs of a host, or
of several hosts with NVLink, and the chips of a TPU slice. The network between
slices is slow. Data parallelism, which communicates once per optimizer step,
goes between slices first, and then the other axes in the order of `axes.AXES`.
Tensor parallelism, which communicates several times per layer, stays within a
slice.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from rl_reason.base.errors import ConfigError
from rl_reason.devices import axes as axes_lib


def make_mesh(
    data: int = -1, fsdp: int = 1, tensor: int = 1, devices=None, **others: int
) -> Mesh:
  """A mesh over all devices.

  Args:
    data: size of this axis of `axes.AXES`; one axis may be -1, for the
      remaining devices.
    fsdp: likewise.
    tensor: likewise.
    devices: all devices by default.
    **others: sizes of further axes, 1 by default.

  Raises:
    ValueError: the product of the sizes is not the number of devices.
    ConfigError: see `arrange`.
  """
  devices = jax.devices() if devices is None else devices
  given = dict(data=data, fsdp=fsdp, tensor=tensor) | others
  axes = axes_lib.fill(given, len(devices))
  if math.prod(axes.values()) != len(devices) or min(axes.values()) < 1:
    raise ValueError(
        f"mesh {axes_lib.text(axes)} does not cover {len(devices)} devices"
    )
  names = axes_lib.NAMES
  return Mesh(
      arrange(axes, devices), names, axis_types=(AxisType.Auto,) * len(names)
  )


def make_meshes(
    rollout: int = 0, *, devices=None, **axes: int
) -> tuple[Mesh, Mesh]:
  """The mesh that learns and the mesh that samples.

  Args:
    rollout: number of devices that only sample, with the same size of the
      tensor axis; 0: one mesh learns and samples.
    devices: all devices by default; the last ones sample.
    **axes: sizes for `make_mesh` of the devices that learn.
  """
  devices = list(jax.devices() if devices is None else devices)
  count = len(devices) - rollout
  mesh = make_mesh(**axes, devices=devices[:count])
  if not rollout:
    return mesh, mesh
  tensor = mesh.shape["tensor"]
  return mesh, make_mesh(tensor=tensor, devices=devices[count:])


def slice_of(device: Any) -> int:
  """The slice of a device; all devices of a process are in one slice."""
  return getattr(device, "slice_index", None) or 0


def between_slices(
    axes: dict[str, int], slices: int, per_slice: int, unit: str = "host"
) -> list[int]:
  """The number of slices that each axis spans.

  Args:
    axes: name -> size, from the axis that communicates least to the axis that
      communicates most; the product is the number of devices.
    slices: number of slices.
    per_slice: number of devices of a slice.
    unit: name of a slice for errors.

  Returns:
    for each axis a divisor of its size; the product is `slices`.

  Raises:
    ConfigError: the last axis crosses slices without need.
  """
  (*_, last), rest, spans = axes, slices, []
  if per_slice % axes[last] and axes[last] % per_slice:
    raise ConfigError(
        f"mesh.{last} = {axes[last]}: must divide the {per_slice} devices of a"
        f" {unit}, or be a multiple of them: the network between the {slices}"
        f" {unit}s is slow"
    )
  for size in axes.values():
    spans.append(math.gcd(size, rest))
    rest //= spans[-1]
  return spans


def arrange(axes: dict[str, int], devices: Sequence[Any]) -> np.ndarray:
  """Arranges devices in the shape of a mesh, by their network.

  Physical axes of a TPU topology are split if no other assignment exists:
  tensor = 8 takes 4 x 2 chips of a 4 x 4 x 4 topology. A mesh that does not
  fit the slices raises a ConfigError.
  """
  slices = [slice_of(device) for device in devices]
  counts = np.unique(slices, return_counts=True)[1]
  sizes, split = tuple(axes.values()), dict(allow_split_physical_axes=True)
  if len(counts) == 1:
    return mesh_utils.create_device_mesh(sizes, devices, **split)
  unit = unit_of(devices[0])
  if len(set(counts)) > 1:
    raise ConfigError(
        f"mesh: the {unit}s have {', '.join(map(str, counts))} devices; a run"
        f" needs the same number from each {unit}"
    )
  spans = between_slices(axes, len(counts), int(counts[0]), unit)
  within = [size // span for size, span in zip(sizes, spans, strict=True)]
  return mesh_utils.create_hybrid_device_mesh(within, spans, devices, **split)


def unit_of(device: Any) -> str:
  """The name of a slice of these devices."""
  return "slice" if device.platform == "tpu" else "host"


def describe(names: Sequence[str], devices: np.ndarray) -> str:
  """One line with the axes between slices and within slices."""
  slices = np.vectorize(slice_of)(devices)
  unit, count = unit_of(devices.flat[0]), len(np.unique(slices))
  between, within = [], []
  for axis, name in enumerate(names):
    line = np.moveaxis(slices, axis, 0).reshape(devices.shape[axis], -1)[:, 0]
    span = len(np.unique(line))
    for size, parts in (span, between), (len(line) // span, within):
      if size > 1:
        parts.append(f"{name} {size}")
  inside = " x ".join(within) or "one device"
  if count == 1:
    return f"mesh: {inside} on one {unit}"
  text = (
      f"mesh: {' x '.join(between)} over {count} {unit}s, {inside} within each"
  )
  if between[-1].startswith(names[-1]):
    text += f"; {names[-1]} parallelism between {unit}s is slow"
  return text
