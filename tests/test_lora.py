"""Low-rank factors: what learns, what does not, and what comes out."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import test_config
import tiny
from conftest import restore_arrays

from rl_reason import hf
from rl_reason.algorithms import reductions, surrogates
from rl_reason.algorithms.objective import Objective
from rl_reason.hf import export
from rl_reason.models import decoder, lora, parameters
from rl_reason.scale import sharding
from rl_reason.structs import RunError
from rl_reason.training import rl, sft, step

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


def test_factors_are_split_like_the_weight_that_they_stand_beside():
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
    where = step.state_shardings(TABLE, tx, mesh)
    base = jax.device_put(
        tiny.params(), parameters.shardings(decoder.table(tiny.CFG), mesh)
    )
    state = step.new_state(jax.device_put(learnt, where.params), tx, where)
    cut = padded.put(mesh, tiny.batch(1, 16), 2)
    coefs = dict(kl=np.float32(0), entropy=np.float32(0))
    jitted = jax.jit(fn, out_shardings=(where, None))
    after, _ = jitted(state, *cut, coefs, base)
  return state, after, base


@pytest.fixture(scope="module")
def meshes():
  one = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return one, sharding.make_mesh(2, 2, 2)


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


def test_a_checksum_sees_bits_and_places_and_no_mesh(meshes):
  params = tiny.params()
  want = lora.digest(params)
  split = jax.device_put(
      params, parameters.shardings(decoder.table(tiny.CFG), meshes[1])
  )
  assert lora.digest(split) == want
  q = np.array(params["layers"]["q"])
  swapped, nudged = q.copy(), q.copy()
  swapped[0, 0, :2] = q[0, 0, 1::-1]
  nudged[1, 3, 5] = np.nextafter(q[1, 3, 5], 9)
  for other in (swapped, nudged):
    layers = params["layers"] | dict(q=jnp.asarray(other))
    assert lora.digest(params | dict(layers=layers)) != want
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  assert lora.digest(half) not in (want, 0)


# --- a run -------------------------------------------------------------------


def config(**change):
  c = test_config.tiny()
  c.lora.rank = 2
  c.kl.update(kind="k3", coef=0.1)
  c.rollout.weights = "int8"
  c.correction.name = "truncate"
  c.rl.update(change)
  return c


def train(c, workdir):
  run = test_config.make_run(c, workdir)
  with jax.set_mesh(run.mesh):
    params = rl.run(run, rl.base(run, sft.run(run)))
  run.log.close()
  return run, params


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
  """The runs below compile the same programs."""
  where = str(tmp_path_factory.mktemp("compiled"))
  jax.config.update("jax_compilation_cache_dir", where)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  yield
  jax.config.update("jax_compilation_cache_dir", None)


def test_a_sampler_that_is_another_policy_is_named(tmp_path, monkeypatch):
  c = config()
  run = test_config.make_run(c, tmp_path)
  said = []
  monkeypatch.setattr(run.display, "say", said.append)
  weights, cache = "rollout.weights = 'int8'", "rollout.cache = 'int8'"
  for kind, held, dtype, correction, warned in (
      ("int8", "same", "float32", "none", [weights]),
      ("int8", "same", "bfloat16", "none", [weights]),
      ("int8", "int8", "float32", "truncate", []),
      ("bfloat16", "same", "float32", "none", ["weights = 'bfloat16'"]),
      ("bfloat16", "same", "bfloat16", "none", []),
      ("same", "int8", "bfloat16", "none", [cache]),
      ("int8", "int8", "float32", "none", [weights, cache]),
      ("same", "same", "float32", "none", []),
  ):
    c.rollout.update(weights=kind, cache=held)
    c.model.dtype, c.correction.name = dtype, correction
    said.clear()
    rl._warn(run)
    for text, field in zip(said, warned, strict=True):
      assert field in text and "correction.name = 'truncate'" in text
  c.rollout.partial_across_steps = True
  said.clear()
  rl._warn(run)
  assert len(said) == 1 and "a bias to short ones" in said[0]


def half_right(patch):
  patch.setattr(
      test_config.arithmetic, "verify", lambda text, row: len(text) % 2
  )


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits_and_goes_out(tmp_path, monkeypatch):
  """In two parts as in one; then what it saved, what it exports, and a base
  that is not the same any more."""
  half_right(monkeypatch)
  (tmp_path / "whole").mkdir()
  (tmp_path / "parts").mkdir()
  _, want = train(config(), tmp_path / "whole")
  train(config(steps=1), tmp_path / "parts")
  run, got = train(config(), tmp_path / "parts")
  assert test_config.digest(got) == test_config.digest(want)
  assert np.asarray(want["layers"]["v"].b).any()

  # Step 1 is not logged otherwise, and its KL to the base is that of step 0: 0.
  lines = [
      json.loads(x)
      for x in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
  ]
  first, second = (x for x in lines if x["stage"] == "rl")
  assert abs(first["kl/reference"]) < 1e-7 < second["kl/reference"]
  assert first["rollout/logp_gap_max"] > 1e-5  # int8
  assert first["actor/first_log_ratio_max"] < 1e-5

  saved = restore_arrays(tmp_path / "parts/checkpoints/rl/2/state")
  assert set(saved["train"]["params"]) == {"layers"}
  width = run.cfg.width
  for x in jax.tree.leaves(saved["train"]):
    assert 2 in x.shape or not x.ndim, "no matrix of the base"
  assert saved["train"]["params"]["layers"]["q"]["a"].shape == (1, width, 2)

  with jax.set_mesh(run.mesh):
    policy, _, at = rl.load(run, "newest")
    assert at == 2
    assert test_config.digest(policy) == test_config.digest(got)
    export.run(run, "newest")
    out = hf.find(str(tmp_path / "parts/export/policy"))
    table = decoder.table(run.cfg)
    loaded = hf.load(out, table, run.mesh)
    jax.tree.map(
        np.testing.assert_array_equal, loaded, jax.jit(lora.merge)(got)
    )
    b = rows()
    args = run.cfg, b.tokens_BL % run.cfg.vocab, b.start_B, tiny.T
    score = jax.jit(padded.response_logps, static_argnums=(1, 4))
    np.testing.assert_allclose(
        score(loaded, *args)[0], score(got, *args)[0], atol=2e-5
    )
  card = (tmp_path / "parts/export/policy/README.md").read_text()
  assert "with LoRA of rank 2 merged into the weights" in card

  other = jax.tree.map(lambda x: x + 1, rl.base(run, sft.load(run)))
  monkeypatch.setattr(sft, "load", lambda run: other)
  with jax.set_mesh(run.mesh):
    with pytest.raises(RunError, match="belong to another model"):
      rl.load(run, "newest")
    run.config.rl.steps = 3
    with pytest.raises(RunError, match="belong to another model"):
      rl.run(run, other)
