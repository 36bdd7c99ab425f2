"""Meshes and programs for topologies that libtpu knows, without a TPU.

Needs `pip install 'jax[tpu]'`, and is skipped without.
"""

import dataclasses
import os

import pytest
from jax.experimental import topologies
from jax.sharding import AbstractMesh

from bench.memory import aot, collectives, slices
from rl_reason.base.errors import ConfigError
from rl_reason.devices import device_mesh
from rl_reason.lab import compiled_memory, memory_formula
from rl_reason.monitoring.display import Display
from rl_reason.stages.model import Model, critic_config

pytestmark = pytest.mark.slow


def devices_of(name, **options):
  pytest.importorskip("libtpu")
  os.environ.update(aot.LIBTPU)
  return topologies.get_topology_desc(
      platform="tpu", topology_name=name, **options
  ).devices


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("v5p:4x4x4", 8), ("v6e:4x4", 8), ("v6e:16x16", 8), ("v6e:8x8", 2)],
)
def test_named_topologies_take_meshes_that_divide_their_axes(name, tensor):
  mesh = device_mesh.make_mesh(1, -1, tensor, devices_of(name))
  text = device_mesh.describe(mesh.axis_names, mesh.devices)
  fsdp = mesh.size // tensor
  assert text == f"mesh: fsdp {fsdp} x tensor {tensor} on one slice"


def test_slices_are_joined_by_data_parallelism():
  mesh = device_mesh.make_mesh(2, 4, 4, devices_of("v6e:4x4", num_slices=2))
  text = device_mesh.describe(mesh.axis_names, mesh.devices)
  assert text == "mesh: data 2 over 2 slices, fsdp 4 x tensor 4 within each"
  with pytest.raises(ConfigError, match="16 devices of a slice"):
    device_mesh.make_mesh(2, 1, 24, devices_of("v6e:4x4", num_slices=3))


def test_an_update_compiles_for_a_topology_whose_axes_are_divided():
  """Two layers of Qwen2.5-0.5B's width; the formula is near the program."""
  devices = devices_of("v6e:4x4")
  c, cfg = slices.config_of("1.5B", "v6e", mesh__tensor=2, model__remat="full")
  cfg = dataclasses.replace(cfg, layers=2)
  mesh = device_mesh.make_mesh(1, -1, 2, devices)
  value = critic_config(c, cfg)
  model = Model(cfg, value, mesh)
  program, _ = compiled_memory.update(c, model, Display(False))
  abstract = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
  size = memory_formula.estimate(c, cfg, value, abstract)
  resident = size.resident["initial parameters"]
  assert compiled_memory.peak(program) == pytest.approx(
      size.update_peak - resident, rel=0.25
  )
  sent = collectives.largest(program.as_text())
  assert any(x["kind"] == "all-gather" and x["calls"] > 1 for x in sent)


@pytest.mark.parametrize("model", ["0.5B", "1.5B"])
def test_a_token_is_written_into_the_cache_in_place(model):
  """With two heads of keys on a device: no copy in another layout.

  In the cache, heads of 64 have the size of 128.
  """
  devices = devices_of("v5p:2x2x1")
  c, cfg = slices.config_of(model, "v5p", rollout__slots=64)
  cfg = dataclasses.replace(cfg, layers=2)
  mesh = device_mesh.make_mesh(1, -1, 1, devices)
  value = critic_config(c, cfg)
  model = Model(cfg, value, mesh)
  _, (decode, (_, _, slots)), _ = compiled_memory.rollout(c, model)
  cache = slots.cache.v.sharding.shard_shape(slots.cache.v.shape)
  assert cache[2] == 2 and cache[4] == 128
  assert not aot.copies(decode.as_text(), cache)
