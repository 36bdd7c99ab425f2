"""The certificate of a step: what samples is the policy, or what it is."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny_session import tiny_config

from rl_reason.base.errors import RunError
from rl_reason.devices import device_mesh
from rl_reason.models import checksums, decoder, parameters
from rl_reason.monitoring import alerts, health
from rl_reason.monitoring.alerts import HEALTH
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.stages import observers
from rl_reason.training import certificate

OTHER = HEALTH + "other_weights"


def make(frozen=None, kind="same"):
  """A certificate of `tiny.CFG`."""
  c = tiny_config()
  c.rollout.weights = kind
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  engine = sampler.RolloutEngine(tiny.CFG, mesh, display=None)
  session = types.SimpleNamespace(
      model=types.SimpleNamespace(cfg=tiny.CFG),
      engine=types.SimpleNamespace(
          takes_parameters=engine.takes_parameters,
          weights=lambda params, kind: params,
      ),
      rollout_engine=engine,
  )
  return observers.certify(c, session, frozen)


def said(one, version, params, weights):
  """What is wrong with weights that sample, in words."""
  one.weights(version, params)
  held = checksums.answers([checksums.Answer(checksums.on_device(weights))])
  counts = dict(version=version, held=held)
  return one.of_weights(counts, params, weights)


def with_layers(params, **arrays):
  return params | dict(layers=params["layers"] | arrays)


def stale(new, old, layer):
  """New weights but for one layer."""
  layers = jax.tree.map(
      lambda x, y: x.at[layer].set(y[layer]), new["layers"], old["layers"]
  )
  return new | dict(layers=layers)


def transposed(params):
  q = params["layers"]["q"]
  return with_layers(params, q=q.at[1].set(q[1].T))


def rounded(params):
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), params)


def partial_update(new, old):
  layers = dict(new["layers"], up=old["layers"]["up"])
  return new | dict(layers=layers, embed=old["embed"])


WRONG = {  # what samples, of the weights of the steps 0, 1 and 2 -> in words
    "base served": (
        lambda w: w[0],
        "all weights are of RL step 0, in place of RL step 2",
    ),
    "one step stale": (
        lambda w: w[1],
        "all weights are of RL step 1, in place of RL step 2",
    ),
    "one layer stale": (
        lambda w: stale(w[2], w[1], 1),
        "7 of 20 arrays differ from RL step 2: down, gate, k, o, q, up, v"
        " of layer 1 of RL step 1",
    ),
    "random": (
        lambda w: tiny.params(9),
        "15 of 20 arrays differ from RL step 2: embed, down, gate, k, o,"
        " q, up, v of layers 0, 1 unrelated numbers",
    ),
    "rounding": (
        lambda w: rounded(w[2]),
        "15 of 20 arrays differ from RL step 2: embed, down, gate, k, o,"
        " q, up, v of layers 0, 1 rounded",
    ),
    "transposed": (
        lambda w: transposed(w[2]),
        "1 of 20 arrays differ from RL step 2: q of layer 1 transposed",
    ),
    "wrong head": (
        lambda w: w[2] | dict(embed=jnp.roll(w[2]["embed"], 1, 0)),
        "1 of 20 arrays differ from RL step 2: embed unrelated numbers",
    ),
    "partial update": (
        lambda w: partial_update(w[2], w[1]),
        "3 of 20 arrays differ from RL step 2: embed, up of layers 0, 1 of"
        " RL step 1",
    ),
    "one number": (
        lambda w: w[2] | dict(norm=w[2]["norm"].at[3].add(1e-7)),
        "1 of 20 arrays differ from RL step 2: norm rounded",
    ),
    "zeros": (
        lambda w: with_layers(w[2], o=0 * w[2]["layers"]["o"]),
        "2 of 20 arrays differ from RL step 2: o of layers 0, 1 all zeros",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_other_weights_are_named(fault):
  wrong, words = WRONG[fault]
  policies, one = [tiny.params(n) for n in range(3)], make()
  for n in (0, 1):
    assert OTHER not in said(one, n, policies[n], policies[n])
  out = said(one, 2, policies[2], wrong(policies))
  assert out[OTHER].startswith(words), out[OTHER]
  # The right weights have nothing to be named, and another digest.
  right = said(one, 2, policies[2], policies[2])
  assert OTHER not in right and right["rollout/policy_version"] == 2
  assert right["rollout/policy_digest"] != out["rollout/policy_digest"]


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_rounded_weights_are_those_that_were_meant(kind):
  """Another program casts or quantises them; the numbers are the same."""
  one, params = make(kind=kind), tiny.params()
  weights = jax.jit(
      lambda x: sampler_weights.make(x, tiny.CFG, kind), inline=True
  )(params)
  assert OTHER not in said(one, 0, params, weights)
  assert "20" in said(one, 0, params, params)[OTHER] or kind == "int8"


def test_what_is_known_outlives_a_restart():
  policies, one = [tiny.params(n) for n in range(3)], make()
  for n in (0, 1):
    said(one, n, policies[n], policies[n])
  again = make()
  again.restore(one.host())
  out = said(again, 2, policies[2], policies[1])
  assert out[OTHER].startswith("all weights are of RL step 1, in place of RL")
  # Batches that were sampled ahead are of an older policy, and say so.
  sums = checksums.on_device(policies[1])
  held = checksums.answers([checksums.Answer(sums)])
  counts = dict(version=1, held=held)
  assert OTHER not in again.of_weights(counts, policies[2], policies[2])
  # A checkpoint without checksums proves nothing, and accuses nobody.
  assert OTHER not in make().of_weights(counts, policies[2], policies[2])
  for n in range(3, 20):
    one.weights(n, policies[0])
  assert sorted(one.host(), key=int) == ["0", "16", "17", "18", "19"]


def rows(length=4):
  """Three rows: two of this step, and one of an earlier step."""
  shape = 3, length
  rollouts = types.SimpleNamespace(
      mask_BT=np.ones(shape, bool), logps_BT=np.full(shape, -1.0, np.float32)
  )
  return types.SimpleNamespace(rollouts=rollouts, age_B=np.array([0, 0, 1]))


def test_log_probs_are_compared_with_the_policy_that_sampled():
  """Not with the policy of this step where that is another one."""
  name = "rollout/logp_gap_mean"
  one, x = make(), rows()
  trainer_BT = np.full((3, 4), -1.0, np.float32)
  trainer_BT[2] = -3.0
  assert one.of_logps(x, trainer_BT)[name] == 0
  trainer_BT[1, 3] -= 0.5
  assert one.of_logps(x, trainer_BT)[name] == pytest.approx(0.5 / 8)
  assert one.of_logps(x, None) == {}
  x.age_B[:] = -1
  assert one.of_logps(x, trainer_BT) == {}


def test_faults_of_features_are_told_beside_those_of_weights():
  counts = dict(faults=["a", "b"])
  assert make().of_weights(counts, None, None)[OTHER] == "a; b"


def test_consecutive_steps_of_another_policy_end_a_run():
  from test_alerts import FIELDS, line

  lines, wrong = [], {OTHER: "all weights are of RL step 0"}
  one = health.HealthMonitor(
      FIELDS | {"rl.max_steps_uncertified": 2}, lines.append
  )
  for n, x in enumerate((wrong, {}, wrong, wrong), 1):
    one.enforce(lambda: None)
    found = one.check(n, line() | x)
    assert ("alert/weights_of_another_policy" in found) == bool(x)
  with pytest.raises(
      RunError, match="uncertified = 2: RL learned from another"
  ):
    one.enforce(lambda: None)
  assert any("step 0. Likely cause: the sampler did not" in x for x in lines)


def test_the_bound_of_a_gap_is_that_of_the_precision():
  from test_alerts import FIELDS, line

  own = dict(own_engine=True, has_experts=False)
  exact = certificate.bound({"same"}, "float32", backend="cpu", **own)
  rounded = certificate.bound({"same"}, "bfloat16", backend="cpu", **own)
  on_tpu = certificate.bound({"same"}, "float32", backend="tpu", **own)
  for limit, gap, seen in (
      (exact, 1e-6, False),
      (exact, 1e-3, True),
      (rounded, 0.05, False),
      (rounded, 0.5, True),
      (on_tpu, 0.05, False),
  ):
    x = line() | {HEALTH + "gap_bound": limit, alerts.GAP: gap}
    names = [rule.name for rule, _ in alerts.of_step([x], FIELDS)]
    assert names == ["Log-probs of another policy"] * seen


@pytest.mark.slow
def test_a_checksum_sees_bits_and_places_and_no_mesh():
  params, mesh = tiny.params(), device_mesh.make_mesh(2, 2, 2)
  want = checksums.digest(params)
  split = jax.device_put(
      params, parameters.shardings(decoder.table(tiny.CFG), mesh)
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
