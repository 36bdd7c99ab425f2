"""Bounded updates: which are made, by a config."""

import types

import pytest
import tiny_session

from rl_reason.base import feature
from rl_reason.monitoring import alerts
from rl_reason.stages import optimizers
from rl_reason.training import step


def of(max_kl):
  c = tiny_session.tiny_config()
  c.updates.update(minibatches=4, max_kl=max_kl)
  return c


def test_a_config_bounds_the_kl(tmp_path):
  """At the bound an update is still made; `tests/test_update.py` has steps."""
  assert not feature.used(of(0.0))
  session = tiny_session.make_session(tmp_path)
  cfg, objective = session.model.cfg, types.SimpleNamespace()
  for bound, wanted in ((0.25, [True, True, False]), (0.0, [True] * 3)):
    optimizer = optimizers.of_policy(of(bound), cfg, session.mesh)
    settings = optimizers.update_settings(of(bound), objective, cfg, optimizer)
    admits = settings.get("admits", step.every_update)
    assert [admits(dict(kl_old_new=x)) for x in (0.0, 0.25, 0.26)] == wanted


@pytest.mark.parametrize("name", ["Updates too large", "Ratio out of bounds"])
def test_alerts_name_it(name):
  (rule,) = (x for x in alerts.RULES if x.name == name)
  assert rule.remedy.endswith("; updates.max_kl 0.02")
