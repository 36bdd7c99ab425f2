"""LoRA: factors learn, the base is frozen, and merging adds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import test_shared_prompts
import tiny
from test_certificate import OTHER, make, rounded, said
from test_linear import HALF, dense, noise
from tiny_session import set_field, tiny_config

from rl_reason.algorithms import reductions, surrogates
from rl_reason.algorithms.objective import Objective
from rl_reason.base import config, feature
from rl_reason.base.errors import ConfigError
from rl_reason.checks import cautions, config_checks, rules
from rl_reason.devices import device_mesh, sharding
from rl_reason.features.low_rank import low_rank_factors as lora
from rl_reason.models import decoder, linear, parameters
from rl_reason.models.linear import Int8
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.stages import observers, optimizers
from rl_reason.training import learned_parameters, optimizer, step

RANK, SCALE = 2, 1.5
TARGETS = ("q", "o", "up", "down")
FACTORS = lora.Factors(RANK, SCALE * RANK, TARGETS, 0)
TABLE = FACTORS.table(tiny.CFG)


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
  return FACTORS.read(learnt, tiny.params())


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
  merged = jax.jit(linear.merged)(params)
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
  whole = jax.grad(lambda p: logps(p).sum())(linear.merged(joined(learnt)))
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
      read=FACTORS.read,
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_is_that_of_the_sum(dtype):
  x, w = jnp.asarray(noise(7, 16), dtype), noise(16, 9, seed=1)
  a, b = noise(16, 3, seed=2), noise(3, 9, seed=3)
  small = linear.quantize(w)
  for weight, whole in (
      (lora.LowRank(w, a, b, 0.5), w + 0.5 * a @ b),
      (lora.LowRank(small, a, b, 2.0), dense(small) + 2.0 * a @ b),
  ):
    out = linear.product(x, weight)
    assert out.dtype == x.dtype
    want = np.asarray(x, np.float32) @ whole
    error = np.abs(np.asarray(out, np.float32) - want).max()
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    assert error <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("kind", ["same", "int8"])
def test_low_rank_factors_stay_apart(kind):
  """Their table has the structure of the weights, for shardings."""
  params = joined(learnt := factors())
  made = sampler_weights.make(params, HALF, kind)
  table = sampler_weights.table(HALF, kind, params)
  shapes = jax.tree.map(lambda x: x.shape, table, is_leaf=parameters.is_param)
  assert shapes == jax.tree.map(lambda x: x.shape, made)
  q = made["layers"]["q"]
  assert isinstance(q, lora.LowRank) and q.scale == 1.5
  assert isinstance(q.base, Int8) == (kind == "int8")
  np.testing.assert_array_equal(
      q.a, learnt["layers"]["q"]["a"].astype(jnp.bfloat16)
  )


def test_an_adapter_that_is_missing_or_merged():
  base = tiny.params()
  one, params = make(base), joined(learnt := factors(0))
  assert OTHER not in said(one, 1, params, params)
  out = said(one, 1, params, base)[OTHER]
  assert out.startswith("all weights are of the base, without the adapter, in")
  out = said(one, 1, params, rounded(linear.merged(params)))[OTHER]
  assert "down/base, o/a" in out and "merged into one matrix" in out
  none = joined(jax.tree.map(jnp.zeros_like, learnt))
  assert "all zeros" in said(one, 1, params, none)[OTHER]


def sample(params, prompts):
  """On the mesh of the context, if there is one."""
  return sampler.sample(
      params,
      prompts,
      jax.random.key(0),
      group_size=4,
      max_tokens=tiny.T,
      **tiny.SAMPLER,
  )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["same", "int8"])
def test_factors_of_an_adapter_are_sharded_as_their_matrix(kind):
  """Gathered over fsdp, split over tensor; and the tokens are the same."""
  learnt = jax.tree.map(lambda x: x + 0.1, factors())
  make = functools.partial(sampler_weights.make, cfg=tiny.CFG, weights=kind)
  params = joined(learnt)
  one = sample(jax.jit(make)(params), tiny.prompts(8))
  mesh = device_mesh.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    where = parameters.shardings(decoder.table(tiny.CFG), mesh)
    split = FACTORS.read(
        jax.device_put(learnt, parameters.shardings(TABLE, mesh)),
        jax.device_put(tiny.params(), where),
    )
    gathered = sampler_weights.table(tiny.CFG, kind, split)
    out = parameters.shardings(gathered, mesh)
    made = jax.jit(make, out_shardings=out)(split)
    down = made["layers"]["down"]
    assert down.a.sharding.spec == jax.P(None, "tensor", None)
    assert down.b.sharding.is_fully_replicated
    eight = sharding.fetch(
        sample(made, sharding.put(mesh, tiny.prompts(8), "batch"))
    )
  np.testing.assert_array_equal(eight.tokens_BL, one.tokens_BL)
  np.testing.assert_allclose(eight.logps_BT, one.logps_BT, atol=1e-5)


@pytest.mark.slow
def test_prompts_that_are_shared_change_nothing():
  test_shared_prompts.compared(
      lambda learnt, packed: test_shared_prompts.of_policy(
          tiny.CFG, joined(learnt), packed
      ),
      factors(1),
  )


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"lora.rank": -1}, "lora.rank = -1: must be at least 0"),
        (
            {"lora.rank": 1, "lora.targets": "q,head"},
            "'head' is none of q, k, v, o, gate",
        ),
        (
            {"lora.rank": 2, "optimizer.freeze": 0.5},
            "not with optimizer.freeze = 0.5: LoRA freezes all layers",
        ),
        (
            {"lora.rank": 2, "model.experts": 8, "model.experts_per_token": 2},
            "lora.targets = .*: experts have no factors",
        ),
    ],
)
def test_refused_combinations(changes, text):
  c = tiny_config()
  for name, value in changes.items():
    set_field(c, name, value)
  with pytest.raises(ConfigError, match=text):
    config_checks.fields(c)


def test_fields_without_a_rank_do_nothing():
  c = tiny_config()
  c.lora.alpha = 1.0
  (line,) = (x for x in config_checks.warnings(c) if "lora" in x)
  assert "lora.alpha = 1.0: does nothing without lora.rank" in line
  c.lora.rank = 2
  assert not any("lora" in x for x in config_checks.warnings(c))
  c.rl.steps = c.critic.pretrain_steps = 0
  with pytest.raises(ConfigError, match="lora.rank = 2: does nothing: rl.st"):
    config_checks.fields(c, given=("lora.rank",))


def test_what_may_be_too_much():
  c = tiny_config()
  c.rollout.engine.name, c.lora.rank = "vllm", 8
  c.correction.name, c.optimizer.lr = "truncate", 0.02
  rate, engine = rules.broken(c, feature.used(c)[0].cautions(c))
  assert "is high for LoRA factors" in rate
  assert "an engine in bfloat16 rounds most" in engine
  assert not [*cautions.rates(c)] and not [*cautions.off_policy(c)]


def test_a_model_that_is_only_evaluated_has_no_factors():
  c = tiny_config()
  c.lora.rank = 2
  (one,) = feature.used(c)
  assert one.of_model(config.flat(c), short=True) == "LoRA of rank 2"
  config.override(c, feature.marked("evaluated"))
  assert not feature.used(c) and not one.of_model(config.flat(c), short=True)
  assert optimizers.learned(c) is learned_parameters.ALL


def test_a_backward_pass_over_the_base_takes_no_weights():
  c = tiny_config()
  whole = observers.forward_passes(c, tiny.CFG, on_policy=True)
  c.lora.rank = 2
  got = observers.forward_passes(c, tiny.CFG, on_policy=True)
  assert whole - got == c.updates.epochs
