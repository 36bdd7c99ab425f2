"""Context parallelism: devices that share packed rows compute what one does."""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import padded
import pytest
import test_attention as t
import test_sharding
import tiny

from rl_reason.base.structs import Packed
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import critic, decoder, parameters
from rl_reason.models.kernels import KERNELS
from rl_reason.training import step

pytestmark = pytest.mark.slow
interpreted = t.interpreted  # the fixture
MESHES = [
    dict(data=2, sequence=4),
    dict(fsdp=2, sequence=2, tensor=2),
    dict(data=2, fsdp=2, sequence=2),
    dict(sequence=4, tensor=2),
]


def make_mesh(sizes):
  """A mesh of the first devices: as many as `sizes` needs."""
  devices = jax.devices()[: math.prod(sizes.values())]
  return device_mesh.make_mesh(**dict(data=1) | sizes, devices=devices)


@functools.cache
def one_device():
  mesh = make_mesh({})
  return test_sharding._update(mesh, name="sgd", steps=1, lr=1.0), scored(mesh)


def scored(mesh):
  """Log-probs, entropy, values and scores of rows, on the host."""
  value = critic.categorical(tiny.CFG)
  with jax.set_mesh(mesh):
    table = critic.table(value)
    where = parameters.shardings(table, mesh)
    init = critic.init(value, jax.random.key(1), tiny.params())
    params = jax.device_put(init, where)
    packed = sharding.put_packed(mesh, padded.packed(tiny.batch(1, 16), 2))

    def fn(params, packed):
      return (
          decoder.packed_logps(params["trunk"], tiny.CFG, packed)[:2],
          critic.values(params, value, packed),
          critic.scores(params, value, packed),
      )

    return sharding.fetch(step.map_micro_batches(fn)(params, packed))


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_an_update_is_that_of_one_device(sizes):
  """Four or eight packed rows of 36 tokens, of which devices have chunks."""
  mesh = make_mesh(sizes)
  (p, one, m1, _), want = one_device()
  q, eight, m8, _ = test_sharding._update(mesh, name="sgd", steps=1, lr=1.0)
  assert test_sharding._difference(p, q) == 0
  largest = test_sharding._largest(jax.tree.map(np.subtract, p, one))
  # SGD with lr 1: the step is the gradient.
  assert test_sharding._difference(one, eight) <= 1e-5 * largest
  np.testing.assert_allclose(m1["loss"], m8["loss"], rtol=1e-5)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
      want,
      scored(mesh),
  )


@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels_compute_whole_rows(kernels, interpreted):
  args = t.rows(4, 128, "bfloat16")
  want = t.gradients(kernels, *args)
  with jax.set_mesh(make_mesh(dict(data=2, sequence=2))):
    t.assert_near(t.gradients(kernels, *args), want, "bfloat16")


def test_the_sampler_splits_rows():
  """As over data: the tokens are those of one device."""
  out = []
  for mesh in (make_mesh({}), make_mesh(MESHES[1])):
    rows = tiny.sampled(mesh, slots=32)
    assert rows.tokens_BL.sharding.num_devices == mesh.size
    out.append(sharding.fetch(rows))
  np.testing.assert_array_equal(out[0].tokens_BL, out[1].tokens_BL)


LENGTH, WIDTH, MLP = 104, 48, 80  # tokens of a row: 8 * 13


def shapes_of(sizes):
  """Shapes in the compiled gradient of log-probs; a device has one row."""
  cfg = dataclasses.replace(tiny.CFG, width=WIDTH, mlp=MLP, remat="full")
  mesh = make_mesh(sizes)
  shape = sharding.num_shards(mesh, "rows"), LENGTH
  tokens = jax.ShapeDtypeStruct(
      shape, np.int32, sharding=sharding.sharding(mesh, "rows", None)
  )
  source = jax.ShapeDtypeStruct((4, 8), np.int32)
  table = decoder.table(cfg)
  params = parameters.abstract(table, parameters.shardings(table, mesh))

  def loss(params, packed):
    logps, entropy, _ = decoder.packed_logps(params, cfg, packed)
    return (logps + entropy).sum()

  with jax.set_mesh(mesh):
    args = params, Packed(tokens, tokens, tokens, source)
    text = jax.jit(jax.grad(loss)).lower(*args).compile().as_text()
  found = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
  return {tuple(map(int, x.split(","))) for x in found}


@pytest.mark.parametrize("fsdp, tensor", [(1, 1), (1, 2), (2, 1)])
def test_no_device_has_the_activations_of_a_whole_row(fsdp, tensor):
  def whole(shapes):
    return [
        shape
        for shape in shapes
        for width in (WIDTH, MLP // tensor, tiny.CFG.vocab)
        if width in shape
        and math.prod(shape) % (13 * width) == 0
        and math.prod(shape) >= LENGTH * width
    ]

  assert (LENGTH, WIDTH) in whole(shapes_of({}))
  shapes = shapes_of(dict(fsdp=fsdp, sequence=4, tensor=tensor))
  assert not whole(shapes)
  # What is saved of each layer is split over tensor, too.
  saved = tiny.CFG.layers, LENGTH // 4 // tensor, WIDTH
  assert saved in shapes
