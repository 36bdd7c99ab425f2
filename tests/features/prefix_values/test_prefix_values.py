"""Values of prefixes: failures, and what they are refused with."""

import numpy as np
import pytest
import tiny_session
from test_reward_runner import LENGTH, rollouts

from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Steps
from rl_reason.checks import config_checks
from rl_reason.collect.experience import graded
from rl_reason.features.prefix_values.continuing_collector import (
    ContinuingCollector,
)


def test_prefixes_without_a_return_are_counted(monkeypatch):
  """Of five prefixes of two responses three have none; both leave the loss."""
  ends_BT = np.zeros((2, LENGTH), bool)
  ends_BT[0, 1:5] = ends_BT[1, [0, 2]] = True  # the last step ends a response
  sampled = rollouts(["12345", "123"])
  rows = graded(sampled, np.ones(2, np.float32)).replace(
      steps=Steps((), (), ends_BT, np.zeros(ends_BT.shape, np.float32))
  )
  collector = object.__new__(ContinuingCollector)
  collector._prefixes = 2
  returns = {(0, 1): np.nan, (0, 2): 0.5, (0, 3): np.nan, (1, 0): np.nan}
  monkeypatch.setattr(
      ContinuingCollector,
      "_continued",
      lambda self, rows, prefixes, weights, step: (
          np.array([returns.get(tuple(x), 1.0) for x in prefixes.tolist()]),
          0,
      ),
  )
  out, metrics = collector.finish(
      rows, {"tokens/generated": 0}, weights=None, step=0
  )
  assert metrics["train/prefixes"] == 5
  assert metrics["train/prefixes_failed"] == 3
  assert out.correct_B.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, ""),
        ({"reward.process": "none"}, "there are no process rewards"),
        ({"reward.process": "potentials"}, "vine continues prefixes"),
        ({"rollout.group_sizes.name": "by_length"}, "use 'equal'"),
        ({"advantage.continuations": 64}, "must not exceed the 32 slots"),
        (
            {"reward.functions": "steps,OWNER/JUDGE"},
            "in batches of another size than reward models score",
        ),
    ],
)
def test_continuations_that_cannot_work_are_refused(changes, words):
  c = tiny_session.tiny_config()
  c.reward.update(functions="steps", process="rewards")
  c.advantage.name = "vine"
  config.override(c, changes)
  if not words:
    config_checks.fields(c)
    return
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(c)
