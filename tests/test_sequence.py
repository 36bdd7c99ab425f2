"""Context parallelism: chunks of packed rows, and attention to whole rows."""

import functools

import jax
import numpy as np
import pytest
import test_attention as t

from rl_reason.devices import device_mesh, sharding
from rl_reason.models import kernels, sequence

LENGTH = 24


def test_a_device_has_one_chunk_of_each_of_its_rows():
  rows_RL = np.arange(4 * LENGTH).reshape(4, LENGTH)
  mesh = device_mesh.make_mesh(2, 1, 1, sequence=4)
  with jax.set_mesh(mesh):
    chunks = jax.jit(sequence.split)(sharding.put(mesh, rows_RL, "rows"))
    np.testing.assert_array_equal(jax.jit(sequence.join)(chunks), rows_RL)
  for shard in chunks.addressable_shards:
    place = np.argwhere(mesh.devices == shard.device)[0]
    data, part = (place[mesh.axis_names.index(x)] for x in ("data", "sequence"))
    chunk = rows_RL.reshape(2, 2, 4, 6)[data, :, part]
    np.testing.assert_array_equal(shard.data, chunk)


@functools.cache
def whole():
  args = t.rows(4, 40, "float32")
  return args, t.gradients("xla", *args)


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_attention_of_chunks_is_that_of_whole_rows(parts):
  """Two heads: exchanged between two devices, gathered by four."""
  args, want = whole()
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:parts], sequence=parts)
  with jax.set_mesh(mesh):
    t.assert_near(t.gradients("xla", *args), want, "float32")


def test_kernels_need_whole_rows():
  args = "auto", "gpu", "bfloat16", 128
  assert kernels.choose(*args)[0] == "cudnn"
  got, reason = kernels.choose(*args, whole_rows=False)
  assert got == "xla" and "model.kv_heads" in reason
