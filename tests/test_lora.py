"""LoRA: the factors learn, the base is frozen, and merging adds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from tiny_session import tiny_config

from rl_reason.algorithms import reductions, surrogates
from rl_reason.algorithms.objective import Objective
from rl_reason.checks import cautions, rules
from rl_reason.devices import device_mesh
from rl_reason.models import checksums, decoder, lora, parameters
from rl_reason.training import optimizer, step

RANK, SCALE = 2, 1.5
TARGETS = ("q", "o", "up", "down")
TABLE = lora.table(tiny.CFG, RANK, TARGETS)


def factors(seed=None):
  """Of step 0; with a seed, as if they had learnt."""
  made = parameters.init_table(TABLE, jax.random.key(1))
  if seed is None:
    return made
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: np.float32(rng.normal(0, 0.3, x.shape)), made)


@functools.cache
def rows():
  return jax.tree.map(lambda x: x[0], tiny.batch(1, 8))


@jax.jit
def logps(params):
  b = rows()
  args = params, tiny.CFG, b.tokens_BL, b.start_B, tiny.T
  return padded.response_logps(*args)[0]


def joined(learnt):
  return lora.join(tiny.params(), learnt, SCALE)


def test_factors_are_sharded_like_their_weight():
  """Width 32, heads 4 x 8, feed-forward 64, two layers."""
  sizes = {"q": (32, 32), "o": (32, 32), "up": (32, 64), "down": (64, 32)}
  assert TABLE["layers"].keys() == sizes.keys()
  for name, (wide, out) in sizes.items():
    a, b = TABLE["layers"][name]["a"], TABLE["layers"][name]["b"]
    assert a.shape == (2, wide, 2) and b.shape == (2, 2, out)
    whole = decoder.table(tiny.CFG)["layers"][name].axes
    assert a.axes == (None, whole[1], None)
    assert b.axes == (None, None, whole[2])
  made = factors()["layers"]
  for name, (wide, _) in sizes.items():
    assert not made[name]["b"].any()
    np.testing.assert_allclose(made[name]["a"].std(), wide**-0.5, rtol=0.25)


@pytest.mark.slow
def test_the_first_policy_is_the_base_to_the_bit():
  np.testing.assert_array_equal(logps(joined(factors())), logps(tiny.params()))
  assert np.abs(logps(joined(factors(1))) - logps(tiny.params())).max() > 0.1


def test_merged_is_the_same_but_for_rounding():
  params = joined(factors(1))
  merged = jax.jit(lora.merge)(params)
  assert jax.tree.structure(merged) == jax.tree.structure(tiny.params())
  np.testing.assert_allclose(logps(merged), logps(params), atol=2e-5)
  layers, base = merged["layers"], tiny.params()["layers"]
  some = factors(1)["layers"]["down"]
  np.testing.assert_allclose(
      layers["down"],
      base["down"] + 1.5 * np.einsum("nir,nro->nio", some["a"], some["b"]),
      atol=1e-5,
  )
  np.testing.assert_array_equal(layers["gate"], base["gate"])


@pytest.mark.slow
def test_the_gradient_is_that_of_the_weight_by_the_chain_rule():
  """dA = scale dW B^T, dB = scale A^T dW."""
  learnt = factors(1)
  whole = jax.grad(lambda p: logps(p).sum())(lora.merge(joined(learnt)))
  found = jax.grad(lambda x: logps(joined(x)).sum())(learnt)
  for name, ab in learnt["layers"].items():
    dw = np.asarray(whole["layers"][name])
    for key, want in (
        ("a", SCALE * dw @ ab["b"].swapaxes(1, 2)),
        ("b", SCALE * ab["a"].swapaxes(1, 2) @ dw),
    ):
      got = found["layers"][name][key]
      np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def update(mesh, name, learnt):
  """A step of RL on a mesh: the state before, the state after, the base."""
  tx = tiny.optimizer(name=name, lr=1.0 if name == "sgd" else 1e-2)
  clip = functools.partial(surrogates.ppo, clip_low=0.2, clip_high=0.28)
  fn = functools.partial(
      step.rl_update,
      cfg=tiny.CFG,
      tx=tx,
      temperature=1.0,
      objective=Objective(clip, reductions.token_mean),
      lora_scale=SCALE,
  )
  with jax.set_mesh(mesh):
    where = optimizer.state_shardings(TABLE, tx, mesh)
    base = jax.device_put(
        tiny.params(), parameters.shardings(decoder.table(tiny.CFG), mesh)
    )
    state = optimizer.new_state(jax.device_put(learnt, where.params), tx, where)
    cut = padded.put(mesh, tiny.batch(1, 16), 2)
    coefs = dict(kl=np.float32(0), entropy=np.float32(0))
    jitted = jax.jit(fn, out_shardings=(where, None))
    after, _ = jitted(state, *cut, coefs, base)
  return state, after, base


@pytest.fixture(scope="module")
def meshes():
  one = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return one, device_mesh.make_mesh(2, 2, 2)


@pytest.mark.slow
def test_only_factors_learn_and_the_optimizer_is_as_small(meshes):
  """Rank 2: (32 + 32) + (32 + 32) + (32 + 64) + (64 + 32) a rank and layer."""
  before, after, base = update(meshes[0], "adamw", factors())
  count = 2 * 2 * (64 + 64 + 96 + 96)
  learnt = jax.tree.leaves(after.params)
  assert sum(x.size for x in learnt) == count
  moments = [x for x in jax.tree.leaves(after.opt_state) if x.ndim]
  assert sum(x.size for x in moments) == 2 * count  # Adam's two
  jax.tree.map(np.testing.assert_array_equal, base, tiny.params())
  for name, ab in after.params["layers"].items():
    old = before.params["layers"][name]
    assert (ab["b"] != old["b"]).any()
    # Beside a b of zeros a has no gradient, and does not move.
    np.testing.assert_array_equal(ab["a"], old["a"])


@pytest.mark.slow
def test_eight_devices_move_the_factors_alike(meshes):
  learnt = factors(1)
  (_, one, _), (_, eight, _) = (update(m, "sgd", learnt) for m in meshes)
  moved = jax.tree.map(np.subtract, one.params, learnt)
  most = max(np.abs(x).max() for x in jax.tree.leaves(moved))
  assert most > 1e-3
  for a, b in zip(
      jax.tree.leaves(one.params), jax.tree.leaves(eight.params), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=1e-5 * most)
  up = eight.params["layers"]["up"]
  for x in up.values():  # a over fsdp, b over tensor
    assert x.addressable_shards[0].data.nbytes == x.nbytes / 2


@pytest.mark.slow
def test_a_checksum_sees_bits_and_places_and_no_mesh(meshes):
  params = tiny.params()
  want = checksums.digest(params)
  split = jax.device_put(
      params, parameters.shardings(decoder.table(tiny.CFG), meshes[1])
  )
  assert checksums.digest(split) == want
  q = np.array(params["layers"]["q"])
  swapped, nudged = q.copy(), q.copy()
  swapped[0, 0, :2] = q[0, 0, 1::-1]
  nudged[1, 3, 5] = np.nextafter(q[1, 3, 5], 9)
  for other in (swapped, nudged):
    layers = params["layers"] | dict(q=jnp.asarray(other))
    assert checksums.digest(params | dict(layers=layers)) != want
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  assert checksums.digest(half) not in (want, 0)


def test_a_sampler_that_is_another_policy_is_named():
  c = tiny_config()
  weights, cache = "rollout.weights = 'int8'", "rollout.cache = 'int8'"
  for kind, kept, dtype, correction, warned in (
      ("int8", "same", "float32", "none", [weights]),
      ("int8", "int8", "float32", "truncate", []),
      ("bfloat16", "same", "float32", "none", ["weights = 'bfloat16'"]),
      ("bfloat16", "same", "bfloat16", "none", []),
      ("int8", "int8", "float32", "none", [weights, cache]),
      ("same", "same", "float32", "none", []),
  ):
    c.rollout.update(weights=kind, cache=kept)
    c.model.dtype, c.correction.name = dtype, correction
    lines = [*rules.broken(c, cautions.off_policy(c))]
    for text, field in zip(lines, warned, strict=True):
      assert field in text and "correction.name = 'truncate'" in text
  c.rollout.engine.name, c.lora.rank = "vllm", 8
  c.correction.name = "truncate"
  (line,) = rules.broken(c, cautions.off_policy(c))
  assert "an engine in bfloat16 rounds most" in line
  c.rollout.engine.name, c.lora.rank = "own", 0
