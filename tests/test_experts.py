"""Mixture of experts: the layer, recorded and replayed routing, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_session

from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.features.routing_replay import recorded_routes
from rl_reason.models import decoder, experts, linear
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.training import packing, step

CFG = dataclasses.replace(
    tiny.CFG, layers=2, width=16, mlp=12, experts=8, experts_per_token=2
)


def layer_of(seed=0):
  """The parameters of one layer, and tokens."""
  rng = np.random.default_rng(seed)
  shapes = dict(router=(16, 8), gate=(8, 16, 12), up=(8, 16, 12))
  shapes["down"] = (8, 12, 16)
  p = {k: rng.normal(0, 0.4, s).astype("f") for k, s in shapes.items()}
  return p, rng.normal(size=(40, 16)).astype("f")


def dense(x, p, cfg, given=None):
  """The layer by all experts of all tokens, most of them with weight 0."""
  probs = jax.nn.softmax(x @ p["router"], -1)
  chosen = jnp.argsort(-probs, 1)[:, :2] if given is None else given
  share = probs * (chosen[..., None] == jnp.arange(8)).any(1)
  if cfg.norm_topk:
    share /= share.sum(1, keepdims=True)
  hidden = jax.nn.silu(jnp.einsum("xd,edf->exf", x, p["gate"]))
  hidden *= jnp.einsum("xd,edf->exf", x, p["up"])
  return jnp.einsum("exf,efd,xe->xd", hidden, p["down"], share)


@pytest.mark.parametrize("norm, replay", [(True, False), (False, True)])
def test_the_layer_and_its_gradients(norm, replay):
  """Also where all tokens choose one expert, and where one has no tokens."""
  cfg = dataclasses.replace(CFG, norm_topk=norm)
  p, x = layer_of()
  p["router"][:, 5] += 2 * x.mean(0)
  given = np.tile([[5, 2]], (40, 1)) if replay else None

  def ours(p, x):
    out, _ = experts.feed_forward(x, p, cfg, given)
    return jnp.sum(out**2), out

  def theirs(p, x):
    out = dense(x, p, cfg, given)
    return jnp.sum(out**2), out

  for a, b in zip(
      *(
          jax.tree.leaves(jax.grad(f, (0, 1), has_aux=True)(p, x))
          for f in map(jax.jit, (ours, theirs))
      ),
      strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=2e-4)


def test_given_experts_of_some_tokens():
  """-1: the router chooses; its own choices change nothing."""
  p, x = layer_of()
  run = jax.jit(lambda given: experts.feed_forward(x, p, CFG, given))
  own, routing = run(jnp.full((40, 2), -1, jnp.int8))
  np.testing.assert_array_equal(own, run(routing.routes_XK)[0])
  other = jnp.where(
      jnp.arange(40)[:, None] < 20, -1, (routing.routes_XK + 1) % 8
  )
  got, again = run(other)
  np.testing.assert_array_equal(again.routes_XK, routing.routes_XK)
  np.testing.assert_array_equal(got[:20], own[:20])
  assert not np.isclose(got[20:], own[20:]).all(1).any()


@pytest.mark.slow
def test_int8_weights_of_experts():
  p, x = layer_of()
  low = p | {k: linear.quantize(p[k]) for k in ("gate", "up", "down")}
  near = p | {
      k: low[k].values * low[k].scale[:, None] for k in ("gate", "up", "down")
  }
  got, want = (experts.feed_forward(x, q, CFG, None)[0] for q in (low, near))
  np.testing.assert_allclose(got, want, atol=1e-5)


@functools.cache
def sampled(kind):
  """Recorded responses of a sampler with rounded weights; the parameters."""
  params = decoder.init(CFG, jax.random.key(0))
  weights = sampler_weights.make(params, CFG, kind)
  rollouts = sampler.sample(
      weights,
      tiny.prompts(8),
      jax.random.key(1),
      1.0,
      np.array([2, 6] + [4] * 6),
      group_size=4,
      max_tokens=tiny.T,
      record=recorded_routes.record,
      slots=16,
      **tiny.SAMPLER | dict(cfg=CFG),
  )
  return jax.device_get(rollouts), params


@pytest.mark.slow
def test_replay_removes_the_gap_that_routing_makes():
  rollouts, params = sampled("int8")
  at = np.arange(tiny.P + tiny.T)
  end = tiny.P + rollouts.lengths_B - 1  # the last token is never read
  known = (at >= rollouts.start_B[:, None]) & (at < end[:, None])
  np.testing.assert_array_equal(
      known, (rollouts.record >= 0).all(-1), strict=True
  )
  assert rollouts.record.dtype == np.int8
  program = step.logps_program(CFG, 1.0)
  gaps = []
  for rows in (rollouts, rollouts.replace(record=None)):
    plan = packing.plan(rows, packed_rows=4, minibatches=2)
    logps, _ = step.forward(None, program, params, plan)
    gaps.append(np.abs(logps - rollouts.logps_BT)[rollouts.mask_BT].max())
  assert gaps[0] < gaps[1] / 3 and gaps[1] > 0.1


def test_balance_by_hand():
  """Two layers, three tokens of which one is padding, two of three experts."""
  probs = np.array([[[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.0, 0.0, 1.0]]] * 2)
  routes = np.array([[[0, 1], [2, 0], [2, 1]], [[0, 1], [2, 1], [2, 1]]])
  got = experts.balance(routes, probs, np.array([True, True, False]))
  share = np.array([3, 3, 2]) / 4  # of four pairs of layer and token
  prob = np.array([0.35, 0.25, 0.4])
  np.testing.assert_allclose(got, 3 * (share * prob).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"model.experts_per_token": 9}, "must not exceed model.experts = 8"),
        ({"model.mlp_bias": True}, "model.mlp_bias = True: experts have no"),
        ({"mesh.expert": 3}, "mesh.expert = 3: must divide model.experts = 8"),
        ({"model.remat": "auto"}, "of experts: use 'none', 'dots', 'sqrt' or"),
    ],
)
def test_refused_combinations(changes, text):
  c = tiny_session.tiny_config()
  c.model.update(experts=8, experts_per_token=2)
  config_checks.fields(c)
  for name, value in changes.items():
    tiny_session.set_field(c, name, value)
  with pytest.raises(ConfigError, match=text):
    config_checks.fields(c)
