"""Twelve samplers that are not the policy, in real runs; and healthy runs.

Each fault is named within the step that has it, with the layer where there is
one; no healthy run has an alert.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session
from tiny_session import call

from rl_reason.base import config
from rl_reason.base.errors import RunError, Stopped
from rl_reason.models import critic, linear
from rl_reason.stages import interim, rl
from rl_reason.tasks import arithmetic

pytestmark = pytest.mark.slow
shared_programs = tiny_session.shared_programs
STEPS = 3
BAD = 1  # the step that the fault begins with: 1 of 0, 1, 2
USUAL = dict(
    model__layers=2,
    model__tied=False,
    dynamic_sampling__enabled=False,
    updates__minibatches=2,
    optimizer__lr=0.01,
    rl__steps=STEPS,
    rl__max_steps_without_update=0,
    rl__max_steps_uncertified=0,
    evaluate__every=0,
    checkpoint__every=9,
    log__samples_every=9,
)
LORA = dict(lora__rank=2, lora__targets="q,v")
MOE = dict(
    model__experts=4,
    model__experts_per_token=2,
    rollout__replay_routing=True,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: len(text) % 2)


def started(workdir, monkeypatch, **fields):
  """A session whose lines on the screen are kept."""
  session, said = tiny_session.make_session(workdir, **USUAL | fields), []
  monkeypatch.setattr(type(session.display), "say", lambda _, x: said.append(x))
  return session, said


def train(session, params=None):
  with jax.set_mesh(session.mesh):
    if params is None:
      params = tiny_session.random_params(session)
    values = None
    if session.config.advantage.name.startswith("gae"):
      values = critic.init(session.critic_cfg, jax.random.key(1), params)
    return call(rl.train, session, params, values)


def alerts_of(workdir):
  """The alerts of the certificate by RL step."""
  return {
      x["step"]: [k for k in x if k.endswith("_of_another_policy")]
      for x in tiny_session.logged(workdir)
      if x["stage"] == "rl"
  }


# --- faults: what samples, from the weights of the steps so far --------------


def one_layer(weights):
  return weights[-1] | dict(
      layers=jax.tree.map(
          lambda x, y: x.at[1].set(y[1]),
          weights[-1]["layers"],
          weights[-2]["layers"],
      )
  )


def random(weights):
  keys = iter(jax.random.split(jax.random.key(5), 99))
  return jax.tree.map(
      lambda x: jax.random.normal(next(keys), x.shape) / 4, weights[-1]
  )


def transposed(weights):
  layers = weights[-1]["layers"]
  q = layers["q"].at[1].set(layers["q"][1].T)
  return weights[-1] | dict(layers=layers | dict(q=q))


def wrong_head(weights):
  return weights[-1] | dict(head=weights[-1]["embed"].T)


def partial_update(weights):
  new, old = weights[-1], weights[-2]
  names = "q", "k", "v"
  layers = new["layers"] | {name: old["layers"][name] for name in names}
  return new | dict(layers=layers, embed=old["embed"])


def without_adapter(weights):
  return jax.tree.map(
      lambda x: x.base if linear.is_composed(x) else x,
      weights[-1],
      is_leaf=linear.is_composed,
  )


def merged(weights):
  return jax.tree.map(
      lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
      linear.merged(weights[-1]),
  )


# fault: (fields, what samples, the words that name it)
WEIGHTS = {
    "base served": (
        {},
        lambda w: w[0],
        "all weights are of RL step 0, in place of RL step 1",
    ),
    "one step stale": (
        {},
        lambda w: w[-2],
        "all weights are of RL step 0, in place of RL step 1",
    ),
    "one layer stale": (
        {},
        one_layer,
        "9 of 21 arrays differ from RL step 1: all of layer 1 of RL step" " 0",
    ),
    "step 0 random": (
        {},
        random,
        "arrays differ from RL step 1: .* all of layers 0, 1 unrelated",
    ),
    "transposed matrix": (
        {},
        transposed,
        "1 of 21 arrays differ from RL step 1: q of layer 1 transposed",
    ),
    "wrong head": (
        {},
        wrong_head,
        "1 of 21 arrays differ from RL step 1: head unrelated numbers",
    ),
    "partial update": (
        {},
        partial_update,
        "7 of 21 arrays differ from RL step 1: embed, k, q, v of layers 0,"
        " 1 of RL step 0",
    ),
    "adapter missing": (
        LORA,
        without_adapter,
        "all weights are of the base, without the adapter, in place of RL step",
    ),
    "merge rounding": (LORA, merged, "merged into one matrix"),
}


def faulty(right, fault):
  """Delivers the right weights, and in one step others."""
  weights = []

  def wrong(params, *args):
    new = right(params, *args)
    weights.append(jax.tree.map(jnp.copy, new))
    return fault(weights) if len(weights) == BAD + 1 else new

  return wrong


@pytest.mark.parametrize("kind", ["all parameters", "adapter"])
def test_other_weights_are_named_in_their_step(
    kind, tmp_path, monkeypatch, shared_programs
):
  """Nine faults; the steps before and after them have no alert."""
  for name, (fields, fault, words) in WEIGHTS.items():
    if bool(fields) != (kind == "adapter"):
      continue
    workdir = tmp_path / name.replace(" ", "_")
    session, said = started(workdir, monkeypatch, **fields)
    monkeypatch.setattr(
        session.engine, "weights", faulty(session.engine.weights, fault)
    )
    train(session)
    found = alerts_of(workdir)
    assert found[BAD + 1][0] == "alert/weights_of_another_policy", name
    assert not found[BAD] and not found[BAD + 2], name
    (text,) = [x for x in said if "Weights of another policy: " in x]
    assert text.startswith(f"warning: step {BAD + 1}: "), name
    assert re.search(words, text.replace("(now", "")), (name, text)


def test_the_first_weights_are_random(tmp_path, monkeypatch, shared_programs):
  """Nothing is known before step 0; and enough such steps end the run."""
  session, said = started(tmp_path, monkeypatch, rl__max_steps_uncertified=2)
  right = session.engine.weights
  monkeypatch.setattr(
      session.engine, "weights", lambda params, *a: random([right(params, *a)])
  )
  with pytest.raises(RunError, match="uncertified = 2: RL learned from anoth"):
    train(session)
  assert "unrelated numbers" in "".join(said)
  assert [bool(x) for x in alerts_of(tmp_path).values()] == [True, True]
  assert (tmp_path / "checkpoints" / "rl" / "2").exists()


def test_old_weights_after_a_resume(tmp_path, monkeypatch, shared_programs):
  """The weights of a step before the restart are known by their checksums."""
  session, said = started(tmp_path, monkeypatch, checkpoint__every=1)
  right, weights = session.engine.weights, []

  def kept(params, *args):
    new = right(params, *args)
    weights.append(jax.tree.map(jnp.copy, new))
    return new

  monkeypatch.setattr(session.engine, "weights", kept)
  with pytest.raises(Stopped):
    train(tiny_session.interrupted(session, stop_at=2))
  assert len(weights) == 2
  session, said = started(tmp_path, monkeypatch, checkpoint__every=1)
  monkeypatch.setattr(session.engine, "weights", lambda *_: weights[1])
  train(session)
  found = alerts_of(tmp_path)
  assert not found[1] and not found[2] and found[3]
  assert "are of RL step 1, in place of RL step 2" in "".join(said)


def test_a_cache_of_another_policy(tmp_path, monkeypatch, shared_programs):
  """The weights are right; the prompts were read with weights of step 0."""
  session, said = started(tmp_path, monkeypatch)
  right, old, calls = session.rollout_engine._program, [], []

  def program(signature, static, name, shape):
    run = right(signature, static, name, shape)

    def start(params, *args):
      old.append(jax.tree.map(jnp.copy, params))
      calls.append(1)
      return run(old[0] if len(calls) == BAD + 1 else params, *args)

    return start if name == "start" else run

  monkeypatch.setattr(session.rollout_engine, "_program", program)
  train(session)
  found = alerts_of(tmp_path)
  assert "alert/log_probs_of_another_policy" in found[BAD + 1]
  assert "alert/weights_of_another_policy" not in found[BAD + 1]
  assert not found[BAD] and not found[BAD + 2]
  assert "another cache, head, order of positions" in "".join(said)


def test_experts_of_the_sampler_that_are_lost(tmp_path, monkeypatch):
  session, said = started(tmp_path, monkeypatch, **MOE)
  right, calls = session.rollout_engine.stream, []

  def stream(*args, **options):
    calls.append(1)
    for part in right(*args, **options):
      if len(calls) == BAD + 1:
        none = jnp.full_like(part.rollouts.record, -1)
        rollouts = part.rollouts.replace(record=none)
        part = part._replace(rollouts=rollouts)
      yield part

  monkeypatch.setattr(session.rollout_engine, "stream", stream)
  train(session)
  found = alerts_of(tmp_path)
  assert found[BAD + 1] and not found[BAD] and not found[BAD + 2]
  assert "100% of the tokens have lost their experts" in "".join(said)


# --- healthy runs ------------------------------------------------------------

HEALTHY = {
    "dapo": dict(
        dynamic_sampling__enabled=True,
        reduction__name="token_mean",
        reward__overlong_buffer=8,
    ),
    "one update": dict(updates__minibatches=1),
    "vapo": dict(advantage__name="gae_length_adaptive"),
    "ppo": dict(advantage__name="gae"),
    "lora": LORA,
    "lora, bfloat16": LORA | dict(model__dtype="bfloat16"),
    "lora, int8": LORA | dict(rollout__weights="int8"),
    "sampled ahead": dict(rl__staleness=1),
    "sampled ahead, int8": dict(rl__staleness=2, rollout__weights="int8"),
    "experts": MOE | dict(rollout__replay_routing=False),
    "experts, replayed": MOE,
    "experts, int8, replayed": MOE | dict(rollout__weights="int8"),
    "bfloat16": dict(model__dtype="bfloat16"),
    "bfloat16 weights": dict(rollout__weights="bfloat16"),
    "int8 weights": dict(rollout__weights="int8"),
    "int8 cache": dict(rollout__cache="int8", rollout__weights="int8"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_alert(name, tmp_path, monkeypatch):
  session, said = started(tmp_path, monkeypatch, **HEALTHY[name])
  train(session)
  lines = [x for x in tiny_session.logged(tmp_path) if x["stage"] == "rl"]
  assert alerts_of(tmp_path) == {n: [] for n in range(1, STEPS + 1)}, said
  ahead = session.config.rl.staleness
  versions = [x["rollout/policy_version"] for x in lines]
  assert versions == [max(n - ahead, 0) for n in range(STEPS)]
  gaps = [x["rollout/logp_gap_mean"] for x in lines]
  print(name, gaps, max(x["rollout/logp_gap_max"] for x in lines))
  c = config.flat(session.config)
  exact = c["model.dtype"] == "float32" and c["rollout.weights"] == "same"
  assert max(gaps) < (1e-5 if exact else 0.1)
  assert np.min(gaps) >= 0 if ahead else np.min(gaps) > 0
