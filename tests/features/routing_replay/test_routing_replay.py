"""Routing replay: the record, tokens whose experts are lost, and a config."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session

from rl_reason.base import feature
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.features.routing_replay import recorded_routes
from rl_reason.models import experts
from rl_reason.monitoring import alerts
from rl_reason.stages import collectors


@pytest.mark.parametrize(("count", "dtype"), [(128, "int8"), (129, "int16")])
def test_a_record_has_the_experts_of_all_layers(count, dtype):
  """Two layers, four tokens in two rows, three experts of each token."""
  cfg = types.SimpleNamespace(layers=2, experts=count, experts_per_token=3)
  routes = jnp.arange(24).reshape(2, 4, 3)
  routing = experts.Routing(routes_XK=routes, probs_XE=None)
  found = recorded_routes.record(routing, cfg, (2, 2))
  assert found.dtype == dtype
  assert found[0, 1].tolist() == [3, 4, 5, 15, 16, 17]
  np.testing.assert_array_equal(experts.by_layer(found, cfg), routes)
  assert recorded_routes.record(None, cfg, (2, 2)) is None
  empty = recorded_routes.no_record(cfg, (2, 5))
  assert empty.shape == (2, 5, 6) and empty.dtype == dtype
  assert (empty == -1).all()


def test_experts_that_were_lost_are_counted():
  routes_BLZ = np.zeros((2, 6, 1), np.int8)
  routes_BLZ[:, 5] = routes_BLZ[:, 0] = -1  # not read; padding
  x = types.SimpleNamespace(
      age_B=np.array([0, 0]),
      rollouts=types.SimpleNamespace(
          tokens_BL=np.zeros((2, 6)),
          mask_BT=np.ones((2, 3), bool),
          start_B=np.array([1, 1]),
          lengths_B=np.array([3, 3]),
          record=routes_BLZ,
      ),
  )
  assert recorded_routes.lost(x) == 0
  routes_BLZ[1, 2] = -1
  assert recorded_routes.lost(x) == 1 / 8
  x.rollouts.record = None
  assert recorded_routes.lost(x) == 1


def test_lost_experts_are_faults_of_the_certificate():
  """Beside those of other features; a whole record has none."""
  rows = types.SimpleNamespace(
      age_B=np.array([0]),
      rollouts=types.SimpleNamespace(
          tokens_BL=np.zeros((1, 3)),
          mask_BT=np.ones((1, 2), bool),
          start_B=np.array([0]),
          lengths_B=np.array([2]),
          record=np.zeros((1, 3, 1), np.int8),
      ),
  )
  collect = lambda step, *, on_dispatch: (rows, {}, dict(faults=["a"]))  # noqa: E731
  look = recorded_routes.Routes().collecting(collect, None)
  assert look(0, on_dispatch=None)[2] == dict(faults=["a"])
  rows.rollouts.record[0, 1] = -1
  fault = "50% of the tokens have lost their experts"
  assert look(0, on_dispatch=None)[2] == dict(faults=["a", fault])


def of(replays=True):
  c = tiny_session.tiny_config()
  c.model.update(experts=8, experts_per_token=2)
  c.rollout.replay_routing = replays
  return c


def test_a_config_asks_for_it():
  assert not feature.used(of(False))
  assert collectors.empty_rows(of(False), 4).rollouts.record is None
  length = of().rollout.max_prompt + of().rollout.max_tokens
  found = collectors.empty_rows(of(), 4).rollouts.record
  assert found.shape == (4, length, 2 * of().model.layers)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"model.experts": 0}, "rollout.replay_routing = True: does nothing"),
        (
            {
                "rollout.engine.name": "vllm",
                "rollout.engine.args.model": "x",
                "rollout.engine.args.transfer": "y:z",
            },
            "rollout.engine.name = 'vllm': engines return no routes",
        ),
    ],
)
def test_refused_combinations(changes, text):
  c = of()
  config_checks.fields(c)
  for name, value in changes.items():
    tiny_session.set_field(c, name, value)
  if "model.experts" in changes:
    c.model.experts_per_token = 8
  with pytest.raises(ConfigError, match=text):
    config_checks.fields(c)


def test_an_alert_names_it():
  (rule,) = (x for x in alerts.RULES if x.name == "Log-probs of another policy")
  assert rule.remedy.endswith("; rollout.replay_routing True for experts")
