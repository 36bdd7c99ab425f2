"""Mixed values: by hand, against NumPy, in a config and in a lost stage."""

import functools
import types

import numpy as np
import pytest
import reference
import tiny_session
from by_hand import DTYPES, NEAR, QUICK, call, close, floats, same
from hypothesis import given, strategies as st

from rl_reason.algorithms import advantages, credit
from rl_reason.base import feature
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import replay_rules
from rl_reason.features.mixed_values import critic_mixture
from rl_reason.stages import build_step, learn, observers

F = np.float32
MASK_BT = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
REWARDS_B = np.array([1, -1, 0, 2], F)


@DTYPES
def test_mixture_by_hand(dtype):
  """w = .8 exp(-ln 2) / (1 + 3 * .5) = .16: .16 * 10 + .84 * 20 = 18.4.

  Explained variance counts as 0 below (w = .4) and as 1 above (w = .1).
  """
  mixture = functools.partial(call, critic_mixture.mixture, dtype=dtype)
  keys = dict(mix=0.8, decay=np.log(2), reliability=3.0)
  for explained, wanted in [(0.5, 18.4), (-9.0, 16.0), (7.0, 19.0)]:
    got = mixture([[10.0]], [[20.0]], 1.0, explained, **keys)
    close(got, [[wanted]], **NEAR[dtype])
  # Defaults: 1/2 exp(-1) / (1 + 1/2).
  got = mixture([[1.0]], [[0.0]], 1.0, 0.5)
  close(got, [[1 / (3 * np.e)]], rtol=1e-6)


@given(
    old_BT=floats(3, 4),
    values_BT=floats(3, 4),
    progress=st.sampled_from([0.0, 0.5, 1.0]),
    explained=st.sampled_from([-1.0, 0.0, 0.25, 1.0]),
)
@QUICK
def test_mixture_matches_numpy(old_BT, values_BT, progress, explained):
  inputs = old_BT, values_BT, progress, explained
  mixture = functools.partial(call, critic_mixture.mixture, *inputs)
  keys = dict(mix=0.75, decay=2.0, reliability=3.0)
  wanted = reference.mixture(*inputs, *keys.values())
  close(mixture(**keys), wanted, **NEAR["float32"])
  # The ends: none of the pretrained critic, all of it.
  same(mixture(mix=0.0), values_BT)
  same(mixture(mix=1.0, decay=0.0, reliability=0.0), old_BT)


def per_token(numbers_B):
  return np.where(MASK_BT, np.array(numbers_B, F)[:, None], 0)


def of_rows(rows, *, rows_of_all=False, gamma=1.0, mix=critic_mixture.mixture):
  """Advantages of mixed values, and all else of `credit.assign`."""
  gae = functools.partial(advantages.gae, lam=1.0, gamma=gamma)

  def of_all(rows):
    return gae(rows["rewards_BT"], rows["values_BT"], rows["mask_BT"])

  mixed = functools.partial(
      critic_mixture.advantage_of,
      advantage=of_all if rows_of_all else gae,
      mix=mix,
      gamma=gamma,
  )
  keys = dict(gamma=gamma, critic_lam=0.0)
  return [credit.assign(rows, advantage=x, **keys) for x in (mixed, gae)]


def batch(**changes):
  """Rows of `credit.assign`; values of half the reward explain 3/4 of it."""
  zeros_B = np.zeros(4, np.int32)
  rows = dict(
      rewards_B=REWARDS_B,
      groups_B=np.array([4, 4, 6, 6]),
      age_B=zeros_B,
      types_B=zeros_B,
      problems_B=zeros_B,
      mask_BT=MASK_BT,
      logps_BT=np.zeros((4, 3), F),
      kl_coef=F(0),
      values_BT=per_token(0.5 * REWARDS_B),
      pretrained_BT=per_token([7, 7, 7, 7]),
      progress=F(0.5),
  )
  return rows | changes


@pytest.mark.parametrize("rows_of_all", [False, True])
def test_only_the_advantage_sees_a_mixture(rows_of_all):
  """w = 1/2 exp(-1/2) / (1 + 2 * 3/4); targets are the critic's own.

  An advantage that takes all rows finds the mixture there, too.
  """
  mix = functools.partial(
      critic_mixture.mixture, mix=0.5, decay=1.0, reliability=2.0
  )
  got, alone = of_rows(batch(), rows_of_all=rows_of_all, mix=mix)
  w = 0.5 * np.exp(-0.5) / 2.5
  value_B = w * 7 + (1 - w) * 0.5 * REWARDS_B
  close(got["advantages_BT"], per_token(REWARDS_B - value_B), rtol=1e-6)
  same(got["returns_BT"], alone["returns_BT"])
  assert got["metrics"] == alone["metrics"]


def test_it_reads_the_explained_variance_that_is_logged():
  """Of discounted returns."""
  seen = []

  def mix(values_BT, explained_variance):
    seen.append(explained_variance)
    return values_BT

  got, _ = of_rows(batch(), mix=mix, gamma=0.5)
  assert seen == [got["metrics"]["critic/vf_explained_var"]]
  whole, _ = of_rows(batch())
  assert abs(whole["metrics"]["critic/vf_explained_var"] - seen[0]) > 0.01


def config(name="mixture"):
  c = tiny_session.tiny_config()
  c.advantage.name, c.critic.pretrain_steps = "gae", 2
  c.critic.value_mixture.name = name
  return c


def test_a_config_asks_for_it(tmp_path):
  assert not feature.used(config("none"))
  (one,) = feature.used(config())
  loop = feature.Loop(None, None, None, None, values=lambda plan: plan + 1)
  assert one.start(config(), loop).inputs(None, 2) == dict(pretrained_BT=3)
  session = tiny_session.make_session(tmp_path)
  cfg = session.model.cfg
  without, with_it = (
      observers.forward_passes(c, cfg, on_policy=False)
      for c in (config("none"), config())
  )
  assert with_it == without + 1


def test_the_credit_of_a_config_mixes(tmp_path):
  """mix 1 without a decay is the pretrained critic, whose values are 7."""
  c = config()
  c.critic.value_mixture.args = dict(mix=1.0, decay=0.0, reliability=0.0)
  c.advantage.args = dict(lam=1.0)
  session = tiny_session.make_session(tmp_path)
  rows = batch(
      correct_B=(REWARDS_B > 0).astype(F),
      lengths_B=MASK_BT.sum(1).astype(np.int32),
      truncated_B=np.zeros(4, bool),
      scores_EB=(),
      sampler_logps_BT=np.zeros((4, 3), F),
  )
  del rows["rewards_B"]
  assign = build_step.credit(
      c,
      build_step.reward(c),
      session.mesh,
      session.output.display,
      on_policy=False,
  )
  got = assign(rows)
  close(got["advantages_BT"], per_token(got["rewards_B"] - 7), rtol=1e-6)


def test_a_lost_pretrained_critic_ends_a_run_that_mixes(monkeypatch):
  """Without a mixture the critic of the checkpoint of RL is enough."""
  found = types.SimpleNamespace(
      steps=lambda: [1],
      newest=lambda say: 1,
      host=lambda step: dict(evaluated=False),
  )
  stage = types.SimpleNamespace(checkpoints=found)
  monkeypatch.setattr(learn, "open_stage", lambda *_: stage)
  monkeypatch.setattr(learn, "_is_complete", lambda *_: False)
  trained = types.SimpleNamespace(
      start=lambda *_, **__: "policy",
      rl=lambda *_, **__: ("newer", "critic", 1),
  )
  monkeypatch.setattr(learn, "trained_parameters", trained)
  said = []
  output = types.SimpleNamespace(
      workdir="runs/a", display=types.SimpleNamespace(say=said.append)
  )
  resumed = functools.partial(learn.resumed, model=None, output=output)
  with pytest.raises(RunError, match="this stage for critic.value_mixture"):
    resumed(config(), None)
  assert resumed(config("none"), None) == ("policy", "critic", None)
  assert "goes on without it" in said[0]


def test_a_replay_may_change_it():
  changed = config()
  changed.critic.value_mixture.args = dict(mix=0.1)
  replay_rules.check(config(), changed)
  replay_rules.check(config("none"), config())
  changed.critic.clip = 0.1
  with pytest.raises(ConfigError, match="critic.clip = 0.1") as e:
    replay_rules.check(config(), changed)
  assert "critic.value_mixture.*" in str(e.value)
