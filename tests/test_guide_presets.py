"""The presets of a guide have its numbers, and its page names each of them."""

import importlib

import numpy as np
import pytest
from conftest import ROOT

from rl_reason.algorithms import advantage_variants
from rl_reason.base import config, functions
from rl_reason.checks import config_checks, config_facts
from rl_reason.features.mixed_values import critic_mixture

PAGE = (ROOT / "docs" / "guide_presets.md").read_text()
LAMBDA, MIXTURE = "advantage.args", "critic.value_mixture.args"
GUIDE = {
    "vapo": {
        f"{LAMBDA}.lam": 0.95,
        f"{LAMBDA}.decay": 0.05,
        f"{LAMBDA}.slope": 0.1,
        f"{MIXTURE}.mix": 0.8,
        f"{MIXTURE}.decay": 2.0,
        "optimizer.lr": 1e-6,
        "critic.lr": 2e-6,
        "surrogate.args.clip_low": 0.2,
        "surrogate.args.clip_high": 0.2,
        "loss.entropy_coef": 0.01,
    },
    "dapo": {
        "surrogate.args.clip_low": 0.1,
        "surrogate.args.clip_high": 0.3,
        "rollout.batch": 64,
        "rollout.group_size": 8,
        "updates.token_budget": 65536,
        "loss.length_alpha": 0.2,
        "reward.length_penalty.args.coef": 0.05,
        "reward.length_penalty.args.decay": 2.0,
        "optimizer.lr": 3e-6,
    },
    "grpo": {
        "rollout.batch": 32 * 8,
        "rollout.group_size": 8,
        "rollout.temperature": 1.0,
        "advantage.args.mix": 0.7,
        "surrogate.args.clip_low": 0.2,
        "surrogate.args.clip_high": 0.2,
        "optimizer.lr": 1e-6,
    },
}


def preset(name):
  return importlib.import_module(f"configs.guide.{name}").get_config()


@pytest.mark.parametrize("name", GUIDE)
def test_a_preset_has_the_numbers_of_the_guide(name):
  c = preset(name)
  assert {x: config.at(c, x) for x in GUIDE[name]} == GUIDE[name]
  assert c.log.targets.to_dict() == dict(kl=0.1, entropy=0.5, grad_norm=1.0)
  assert f"`configs/guide/{name}.py`" in PAGE
  section = PAGE.split(f"## {name.upper()}")[1].split("\n## ")[0]
  for field in GUIDE[name]:
    # A function of a section stands for its arguments.
    named = field.partition(".args")[0], field
    assert any(f"`{x}" in section for x in named), field


@pytest.mark.parametrize("suffix", ["", ":smoke"])
@pytest.mark.parametrize("name", GUIDE)
def test_a_preset_is_a_valid_config(name, suffix):
  c, notes = config_checks.checked(f"configs/guide/{name}.py{suffix}", {})
  assert not notes
  assert config.flat(config.unflat(config.flat(c))) == config.flat(c)


@pytest.mark.parametrize("name", GUIDE)
def test_a_preset_is_ten_lines(name):
  text = (ROOT / "configs" / "guide" / f"{name}.py").read_text()
  body = text.split('"""\n  c = ')[1].split("  return c")[0]
  assert len(body.splitlines()) <= 12


def test_the_mixture_of_vapo():
  """w0 exp(-kappa t): .8 at the start, .8 / e in the middle, without EV."""
  mixture = functions.bind("value_mixture", preset("vapo").critic.value_mixture)
  assert mixture.func is critic_mixture.mixture
  ones, zeros = np.ones((1, 1)), np.zeros((1, 1))
  got = [float(mixture(ones, zeros, t, 0.0)[0, 0]) for t in (0.0, 0.5)]
  assert got == pytest.approx([0.8, 0.8 / np.e], rel=1e-6)


def test_the_lambda_of_vapo():
  """Of the next token: .95 exp(-.05 / 2) (1 - .1 level / 5), T = 2."""
  c = preset("vapo")
  advantage = functions.bind("advantage", c.advantage)
  assert advantage.func is advantage_variants.gae_exp_complexity
  assert config_facts.discount(c) == 1.0
  rewards_BT, values_BT = np.array([[0.0, 1.0]] * 2), np.zeros((2, 2))
  mask_BT, types_B = np.ones((2, 2), bool), np.array([0, 5])
  got_BT = advantage(rewards_BT, values_BT, mask_BT, types_B)
  lam = 0.95 * np.exp(-0.05 / 2)
  wanted_BT = [[lam, 1.0], [lam * 0.9, 1.0]]
  np.testing.assert_allclose(got_BT, wanted_BT, rtol=1e-6)


def test_the_penalty_of_dapo():
  """lambda .05 exp(-2 max(0, R)): the whole for R <= 0, a seventh at R = 1."""
  penalty = functions.bind(
      "length_penalty", preset("dapo").reward.length_penalty
  )
  rewards_B, correct_B = np.array([-1.0, 1.0]), np.array([0.0, 1.0])
  got_B = penalty(rewards_B, correct_B, np.array([40, 40]), 40)
  np.testing.assert_allclose(got_B, [-0.05, -0.05 * np.exp(-2)], rtol=1e-6)


def test_the_advantage_of_grpo():
  """Two types of two rows: .7 of +-1 / sqrt 2 in the type, .3 in the batch."""
  advantage = functions.bind("advantage", preset("grpo").advantage)
  rewards_B = np.array([1.0, 0.0, 3.0, 2.0], np.float32)
  got_B = advantage(rewards_B, np.array([0, 0, 1, 1]), np.ones(4, bool))
  std = np.sqrt(5 / 3)  # of 1, 0, 3, 2 around 1.5
  batch_B = (rewards_B - 1.5) / std
  local_B = np.array([1, -1, 1, -1]) / np.sqrt(2)
  np.testing.assert_allclose(got_B, 0.7 * local_B + 0.3 * batch_B, rtol=1e-5)
