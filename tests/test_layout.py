"""Meshes over several hosts and on TPU topologies, from made-up devices."""

import itertools
import types

import numpy as np
import pytest

from rl_reason.base.errors import ConfigError
from rl_reason.devices import device_mesh


def gpus(*counts):
  """Devices of hosts, in an order that mixes them."""
  devices = [
      types.SimpleNamespace(
          id=10 * host + i, slice_index=host, platform="gpu", device_kind="H100"
      )
      for host, count in enumerate(counts)
      for i in range(count)
  ]
  return sorted(devices, key=lambda x: x.id % 10)


def tpus(*shape, kind="TPU v5"):
  """The chips of a topology, as libtpu describes them."""
  corners = itertools.product(*map(range, reversed(shape)))
  return [
      types.SimpleNamespace(
          id=i,
          coords=tuple(reversed(x)),
          core_on_chip=0,
          platform="tpu",
          device_kind=kind,
          process_index=0,
      )
      for i, x in enumerate(corners)
  ]


def arranged(devices, data, fsdp, tensor):
  axes = dict(data=data, fsdp=fsdp, tensor=tensor)
  mesh = device_mesh.arrange(axes, devices)
  assert mesh.shape == (data, fsdp, tensor)
  assert {x.id for x in mesh.flat} == {x.id for x in devices}
  return mesh, device_mesh.describe(tuple(axes), mesh)


@pytest.mark.parametrize(
    ("hosts", "sizes", "text"),
    [
        ((4, 4), (2, 1, 4), "data 2 over 2 hosts, tensor 4 within each"),
        ((2, 2), (1, 4, 1), "fsdp 2 over 2 hosts, fsdp 2 within each"),
        (
            *((4,) * 4, (2, 4, 2)),
            "data 2 x fsdp 2 over 4 hosts, fsdp 2 x tensor 2 within each",
        ),
        ((3, 3), (6, 1, 1), "data 2 over 2 hosts, data 3 within each"),
        (
            *((2, 2), (1, 1, 4)),
            "tensor 2 over 2 hosts, tensor 2 within each; tensor parallelism"
            " between hosts is slow",
        ),
        ((1, 1), (2, 1, 1), "data 2 over 2 hosts, one device within each"),
        ((8,), (1, 2, 4), "fsdp 2 x tensor 4 on one host"),
    ],
)
def test_tensor_stays_within_a_host_where_it_can(hosts, sizes, text):
  mesh, line = arranged(gpus(*hosts), *sizes)
  assert line == f"mesh: {text}"
  if "slow" not in text:
    for group in mesh.reshape(-1, sizes[-1]):
      assert len({x.slice_index for x in group}) == 1


@pytest.mark.parametrize(
    ("hosts", "sizes", "reason"),
    [
        (
            (3,) * 4,
            (6, 1, 2),
            "tensor = 2: must divide the 3 devices of a host",
        ),
        ((4, 4), (1, 1, 6), "tensor = 6: must divide the 4"),
        ((4, 8), (3, 1, 4), "the hosts have 4, 8 devices"),
    ],
)
def test_meshes_that_hosts_refuse(hosts, sizes, reason):
  with pytest.raises(ConfigError, match=reason):
    arranged(gpus(*hosts), *sizes)


@pytest.mark.parametrize(
    ("topology", "kind", "tensor"),
    [
        ((4, 4, 4), "TPU v5", 8),
        ((4, 4, 4), "TPU v5", 4),
        ((4, 4, 1), "TPU v6 lite", 8),
        ((16, 16, 1), "TPU v6 lite", 8),
        ((8, 8, 1), "TPU v6 lite", 2),
    ],
)
def test_topologies_whose_axes_must_be_split(topology, kind, tensor):
  """The chips of a tensor group are a box: neighbors in the network."""
  devices = tpus(*topology, kind=kind)
  mesh, line = arranged(devices, 1, len(devices) // tensor, tensor)
  assert line.endswith("on one slice")
  for group in mesh.reshape(-1, tensor):
    coords = np.array([x.coords for x in group])
    assert np.prod(np.ptp(coords, axis=0) + 1) == tensor


def test_every_division_over_hosts_keeps_tensor_inside():
  """Whenever tensor divides a host, data and fsdp cover the hosts exactly."""
  for slices, per_slice, fsdp in itertools.product(
      (1, 2, 3, 4, 6), (1, 2, 4, 6), (1, 2, 3, 4)
  ):
    for tensor in (x for x in (1, 2, 3, 4, 6) if per_slice % x == 0):
      data, left = divmod(slices * per_slice, fsdp * tensor)
      if not left:
        axes = dict(data=data, fsdp=fsdp, tensor=tensor)
        spans = device_mesh.between_slices(axes, slices, per_slice)
        assert np.prod(spans) == slices and spans[-1] == 1
