"""The reward model: losses by hand, and how its stage is checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checks import with_fields

from rl_reason import run
from rl_reason.base import config, feature
from rl_reason.base.errors import ConfigError
from rl_reason.checkpointing import resumable
from rl_reason.checks import (
    config_checks,
    config_files,
    file_checks,
    machine_checks,
    usage,
)
from rl_reason.configs import base
from rl_reason.features.reward_model_stage import reward_model
from rl_reason.report import charts


def test_bradley_terry_by_hand():
  """log 2 at a tie; log(1 + e^-d) else, finite however wrong."""
  chosen_B = jnp.array([1.0, 2.0, 0.0, -500.0])
  rejected_B = jnp.array([1.0, 0.0, 2.0, 500.0])
  got = reward_model.bradley_terry(chosen_B, rejected_B)
  wanted = [np.log(2), np.log1p(np.exp(-2)), np.log1p(np.exp(2)), 1000]
  np.testing.assert_allclose(got, wanted, rtol=1e-6)
  grad_B = jax.grad(lambda x: reward_model.bradley_terry(x, rejected_B).sum())(
      chosen_B
  )
  np.testing.assert_allclose(
      grad_B, [-0.5, -1 / (1 + np.exp(2)), -1 / (1 + np.exp(-2)), -1], rtol=1e-5
  )


def test_agreement_by_hand():
  """Confidences 1/2, .731, .731, .881; a tie counts as half correct."""
  margin_N = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
  values = reward_model.agreement(margin_N)
  assert values["accuracy"] == pytest.approx(2.5 / 4)
  one, two = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2))
  error = (0 + 2 * abs(0.5 - one) + abs(1 - two)) / 4
  assert values["calibration_error"] == pytest.approx(error)
  nll = np.mean(np.log1p(np.exp(-margin_N)))
  assert values["nll"] == pytest.approx(nll, rel=1e-6)


@pytest.mark.parametrize(
    ("margin", "accuracy", "error"), [(40.0, 1, 0), (-40.0, 0, 1)]
)
def test_a_confident_model_is_calibrated_if_correct(margin, accuracy, error):
  values = reward_model.agreement(np.full(10, margin))
  assert values["accuracy"] == accuracy
  assert values["calibration_error"] == pytest.approx(error, abs=1e-3)


def test_the_stage_is_one_of_the_stages_that_train():
  name = "reward_model"
  assert name in run.TRAINS and run.STAGES[name] == run.STAGES["sft"]
  assert name in file_checks.TRAINS and name in usage.STAGES
  assert "did you mean reward_model?" in usage.no_such_stage("rm")
  assert name in resumable.FOLLOWED_BY["sft"]
  assert resumable.RATES[name] == "reward_model.lr"
  assert not feature.stages()[name].policy


def test_its_pairs_are_shared_by_the_devices():
  """In its own stage alone."""
  c = base.arithmetic()
  c.reward_model.batch = 5
  machine_checks.devices(c, 4)
  with pytest.raises(ConfigError, match="reward_model.batch = 5: 10"):
    machine_checks.devices(c, 4, "reward_model")


def test_its_styles_and_its_smoke_run():
  with pytest.raises(ConfigError, match="'x' is none of arithmetic's styles"):
    config_checks.fields(with_fields({"reward_model.chosen": "x:1"}))
  small = config.flat(config_files.smoke(base.arithmetic()))
  assert small["reward_model.steps"] == 20
  assert small["reward_model.evaluate_pairs"] == 64


def test_its_charts():
  line = {"reward_model/loss": 0.5, "reward_model/accuracy": 0.75}
  lines = [{"stage": "reward_model", "step": n} | line for n in (10, 20)]
  axes, found = charts.charts_of(lines)
  assert axes["reward_model"]["step"] == [10, 20]
  assert [x["series"][0]["y"] for x in found] == [[0.5] * 2, [0.75] * 2]
