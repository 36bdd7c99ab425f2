"""The reward model: what it learns, and where it is used."""

import json
import shutil
import types

import jax
import numpy as np
import padded
import pytest
import tiny_session
from tiny_session import call, digest, interrupted

from rl_reason.base.errors import RunError
from rl_reason.base.structs import Rollouts
from rl_reason.checkpointing.resumable import Stopped
from rl_reason.devices import sharding
from rl_reason.features.reward_model_stage import reward_model
from rl_reason.models import critic
from rl_reason.stages import (
    classifier,
    demonstrations,
    interim,
    rl,
    scorer,
    sft,
    trained_parameters as trained_lib,
    value,
)

pytestmark = pytest.mark.slow
STEPS = 60
FIELDS = dict(
    task__difficulties=(2,),
    rollout__max_tokens=24,
    reward_model__steps=STEPS,
    reward_model__batch=32,
    updates__token_budget=32 * 36,
    reward_model__lr=0.01,
    reward_model__evaluate_pairs=80,
    # Learnable without arithmetic: only sloppy responses show steps.
    reward_model__chosen="direct:1",
    reward_model__rejected="sloppy:1",
    checkpoint__sft_every=20,
)
scores_of = jax.jit(critic.scores, static_argnums=1)


def make_session(workdir, **changes):
  return tiny_session.make_session(workdir, **FIELDS | changes)


def train_model(workdir, stop_at=None):
  session = make_session(workdir)
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    try:
      params = call(reward_model.run, interrupted(session, stop_at), policy)
    finally:
      session.log.close()
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return types.SimpleNamespace(
      session=session,
      params=params,
      lines=list(map(json.loads, lines)),
      path=workdir / "export" / "reward_model",
  )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  return train_model(tmp_path_factory.mktemp("reward_model") / "a")


def test_it_learns_which_response_is_preferred(trained):
  """On held-out prompts, and not before it was trained."""
  *training, last = trained.lines
  assert training[0]["reward_model/loss"] > 0.3
  assert training[-1]["reward_model/loss"] < 0.03
  assert last["val-core/preferences/accuracy"] > 0.9
  assert last["step"] == STEPS


def test_it_scores_the_evaluation_after_sft(trained, tmp_path):
  """Beside a function, whose score stays its own."""
  session = make_session(
      tmp_path,
      sft__habits__steps=0,
      reward__functions=f"{trained.path},length*-1",
  )
  with jax.set_mesh(session.mesh):
    call(sft.run, session)
  lines = map(json.loads, (tmp_path / "metrics.jsonl").open())
  (last,) = [x for x in lines if "val-aux/arithmetic/reward/length/mean" in x]
  assert last["stage"] == "sft"
  assert 0 < last["val-aux/arithmetic/reward/length/mean"] <= 1
  names = [x for x in last if x.endswith("reward_model/mean")]
  assert len(names) == 1 and np.isfinite(last[names[0]])


def pack_pair(session):
  pairs = [("5-1=", "5-1=4;#4"), ("5-1=", "#4")]
  c = session.config.rollout
  return demonstrations.pack(session.tok, pairs, c.max_prompt, c.max_tokens)


def test_the_score_depends_on_the_response_not_on_padding(trained):
  """It is V after the last token of the response."""
  session, cfg = trained.session, trained.session.critic_cfg
  with jax.set_mesh(session.mesh):
    tokens_BL, start_B, mask_BT = pack_pair(session)
    packed = padded.micro(tokens_BL, start_B, mask_BT)
    scores_B = scores_of(trained.params, cfg, packed)
    longer_BT = np.ones_like(mask_BT)  # the padding as part of the response
    packed = padded.micro(tokens_BL, start_B, longer_BT)
    values = jax.jit(critic.values, static_argnums=1)
    values_BT, _ = values(trained.params, cfg, packed)
    for b, n in enumerate(mask_BT.sum(1)):  # V before the next token
      np.testing.assert_allclose(scores_B[b], values_BT[b, n], rtol=1e-5)
    other_BL = np.where(tokens_BL == session.tok.pad_token_id, 3, tokens_BL)
    packed = padded.micro(other_BL, start_B, mask_BT)
    again_B = scores_of(trained.params, cfg, packed)
    np.testing.assert_array_equal(again_B, scores_B)


def test_a_stopped_stage_ends_with_the_same_bits(trained, tmp_path):
  with pytest.raises(Stopped):
    train_model(tmp_path / "a", stop_at=30)
  assert digest(train_model(tmp_path / "a").params) == digest(trained.params)


def rollouts_of_pair(session):
  """The pair as a reward reads it, and packed."""
  tokens_BL, start_B, mask_BT = pack_pair(session)
  rollouts = Rollouts(
      tokens_BL=tokens_BL,
      start_B=start_B,
      ids_B=np.arange(2),
      mask_BT=mask_BT,
      logps_BT=np.zeros(mask_BT.shape, np.float32),
      lengths_B=mask_BT.sum(1),
      truncated_B=np.zeros(2, bool),
  )
  return rollouts, padded.micro(tokens_BL, start_B, mask_BT)


def test_it_is_a_term_of_the_reward(trained, tmp_path):
  session = make_session(
      tmp_path / "a", reward__functions=f"{trained.path}*0.5"
  )
  with jax.set_mesh(session.mesh):
    rollouts, packed = rollouts_of_pair(session)
    scores_B = call(scorer.reward_model, session, str(trained.path))(rollouts)
    expected_B = scores_of(trained.params, session.critic_cfg, packed)
  np.testing.assert_allclose(sharding.fetch(scores_B), expected_B, rtol=1e-4)
  assert np.ptp(expected_B) > 0.1


def start_critic(path, workdir):
  init = dict(critic__init="exported", critic__path=str(path))
  session = make_session(workdir, advantage__name="gae", **init)
  with jax.set_mesh(session.mesh):
    return call(value.run, session, policy_params=None)[0]


def test_a_critic_starts_from_it(trained, tmp_path):
  params = start_critic(trained.path, tmp_path / "a")
  assert digest(params) == digest(trained.params)


def test_a_missing_model_or_one_of_another_task_is_refused(trained, tmp_path):
  session = make_session(tmp_path / "a")
  with pytest.raises(RunError, match="holds no complete checkpoint; --stage"):
    call(trained_lib.reward_model, session, str(tmp_path))
  session.config.task.name = "countdown"
  with pytest.raises(RunError, match="reward.*: task.name is 'arithmetic' the"):
    call(trained_lib.reward_model, session, str(trained.path))


def test_it_is_a_classifier_of_transformers_as_well(trained, tmp_path):
  """Its files alone, without our checkpoint, are the same network."""
  config = json.loads((trained.path / "config.json").read_text())
  assert config["architectures"] == ["LlamaForSequenceClassification"]
  assert config["id2label"] == {"0": "LABEL_0"} and config["pad_token_id"] == 0
  alone = tmp_path / "alone"
  shutil.copytree(
      trained.path, alone, ignore=shutil.ignore_patterns(str(STEPS))
  )
  assert not classifier.is_classifier(str(trained.path))
  assert classifier.is_classifier(str(alone))
  session = make_session(tmp_path / "a", reward__functions=f"{alone}*1")
  with jax.set_mesh(session.mesh):
    call(trained_lib.check_classifiers, session)
    params, cfg = call(trained_lib.reward_model, session, str(alone))
  assert digest(params) == digest(trained.params)
  assert cfg == trained.session.critic_cfg
  params = start_critic(alone, tmp_path / "b")
  assert digest(params) == digest(trained.params)


def run_rl(path, workdir, stop_at=None):
  """RL of standardised scores alone; returns the policy and the log."""
  session = make_session(
      workdir,
      reward__functions=f"{path}*1",
      reward__model_scale="running",
      reward__correct=0.0,
      reward__incorrect=0.0,
      dynamic_sampling__enabled=False,
      dynamic_sampling__max_rounds=10,
      rl__steps=3,
  )
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    try:
      params = call(rl.train, interrupted(session, stop_at), params)
    finally:
      session.log.close()
  return params, tiny_session.logged(workdir)


def test_standardised_scores_resume_with_the_same_bits(
    trained, tmp_path, monkeypatch
):
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  whole, lines = run_rl(trained.path, tmp_path / "whole")
  with pytest.raises(Stopped):
    run_rl(trained.path, tmp_path / "parts", stop_at=2)
  parts, again = run_rl(trained.path, tmp_path / "parts")
  assert digest(parts) == digest(whole) and again == lines
  steps = [x for x in lines if x["stage"] == "rl"]
  name = "reward/reward_model"
  means = [x[f"{name}/mean"] for x in steps]
  # All rounds have the same size: the running mean is a mean of means.
  for step, line in enumerate(steps, 1):
    expected = np.mean(means[:step])
    np.testing.assert_allclose(line[f"{name}/running_mean"], expected, 1e-5)
  assert abs(steps[0]["critic/rewards/mean"]) < 1e-5  # standardised
  assert {len(set(means)), len(steps)} == {3}


def test_it_keeps_a_rule_of_a_constitution(trained, tmp_path):
  """With the probability that the response is preferred to one of score 1."""
  rules = tmp_path / "rules.json"
  rule = {"name": "a", "weight": 2, "model": str(trained.path), "threshold": 1}
  rules.write_text(json.dumps([rule]))
  session = make_session(tmp_path / "a", reward__functions=f"{rules}*0.5")
  with jax.set_mesh(session.mesh):
    rollouts, packed = rollouts_of_pair(session)
    rewards, no_rules = session.rewards, np.zeros((1, 2), np.float32)
    (found_B,) = rewards.all_scores(no_rules, rollouts)
    scores_B = scores_of(trained.params, session.critic_cfg, packed)
  kept_B = 1 / (1 + np.exp(1 - sharding.fetch(scores_B)))
  np.testing.assert_allclose(found_B, kept_B, rtol=1e-4)
  share = rewards.counts()["reward/rules/kept/a"]
  np.testing.assert_allclose(share, kept_B.mean(), rtol=1e-4)


def test_a_reward_model_whose_updates_are_skipped(tmp_path, monkeypatch):
  session = tiny_session.make_session(
      tmp_path,
      reward_model__steps=4,
      rl__max_steps_without_update=2,
      log__sft_every=1,
  )
  monkeypatch.setattr(
      reward_model, "bradley_terry", lambda a_B, b_B: (a_B - b_B) * np.nan
  )
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    with pytest.raises(RunError, match="reward model.*Step 2: gradients"):
      call(reward_model.run, session, policy)
  lines = tiny_session.logged(tmp_path)
  assert [x["reward_model/update_skipped"] for x in lines] == [1, 1]
  assert not (tmp_path / "export").exists()
