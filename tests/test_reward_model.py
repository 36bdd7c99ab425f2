"""The reward model: what it learns, and where it is used."""

import json
import shutil
import types

import jax
import numpy as np
import padded
import pytest
import test_config
import test_credit

from rl_reason.data import pipelines
from rl_reason.models import critic
from rl_reason.reward_models import classifier, train
from rl_reason.scale import sharding
from rl_reason.structs import RunError
from rl_reason.training import experience, packing, step, value
from rl_reason.training.session import Stopped

compiled = test_config.compiled  # a fixture: compiles each program once
digest = test_config.digest
STEPS = 60
FIELDS = dict(
    task__difficulties=(2,),
    rollout__max_tokens=24,
    reward_model__steps=STEPS,
    reward_model__batch=32,
    updates__token_budget=32 * 36,
    reward_model__lr=0.01,
    reward_model__evaluate_pairs=80,
    # What can be told apart without arithmetic: only sloppy ones show steps.
    reward_model__chosen="direct:1",
    reward_model__rejected="sloppy:1",
    checkpoint__sft_every=20,
)


def make_run(workdir, stop_at=None, **changes):
  workdir.mkdir(exist_ok=True)
  run = test_credit.make_run(workdir, **FIELDS | changes)
  return test_credit.interrupted(run, stop_at)


def trained(workdir, **changes):
  run = make_run(workdir, **changes)
  with jax.set_mesh(run.mesh):
    try:
      params = train.run(run, test_config.run_params(run))
    finally:
      run.log.close()
  text = (workdir / "metrics.jsonl").read_text()
  return types.SimpleNamespace(
      run=run, params=params, lines=list(map(json.loads, text.splitlines()))
  )


@pytest.fixture(scope="module")
def whole(compiled, tmp_path_factory):
  return trained(tmp_path_factory.mktemp("reward_model") / "whole")


def test_it_learns_which_of_two_is_preferred(whole):
  """On held-out prompts; before, it knew nothing."""
  *training, last = whole.lines
  assert training[0]["reward_model/loss"] > 0.3
  assert training[-1]["reward_model/loss"] < 0.03
  assert last["val-core/preferences/accuracy"] > 0.9
  assert last["step"] == STEPS


def test_agreement_by_hand():
  """Confidences 1/2, .731, .731, .881; a tie is half right."""
  ahead_N = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
  got = train.agreement(ahead_N)
  assert got["accuracy"] == pytest.approx(2.5 / 4)
  one, two = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2))
  gap = (0 + 2 * abs(0.5 - one) + abs(1 - two)) / 4
  assert got["calibration_error"] == pytest.approx(gap)
  nll = np.mean(np.log1p(np.exp(-ahead_N)))
  assert got["nll"] == pytest.approx(nll, rel=1e-6)


def test_a_certain_and_right_model_is_calibrated():
  got = train.agreement(np.full(10, 40.0))
  assert got["accuracy"] == 1 and got["calibration_error"] < 1e-9
  got = train.agreement(np.full(10, -40.0))
  assert got["accuracy"] == 0 and got["calibration_error"] > 0.999


def test_the_score_is_that_of_the_whole_response(whole):
  """Not of its padding, nor of the row's other tokens."""
  run = whole.run
  with jax.set_mesh(run.mesh):
    slots = run.config.rollout.max_prompt, run.config.rollout.max_tokens
    pairs = [("5-1=", "5-1=4;#4"), ("5-1=", "#4")]
    tokens_BL, start_B, mask_BT = pipelines.pack_demonstrations(
        run.tok, pairs, *slots
    )
    packed = padded.micro(tokens_BL, start_B, mask_BT)
    got = critic.scores(whole.params, run.critic_cfg, packed)
    longer_BT = np.ones_like(mask_BT)  # the padding as a part of the response
    packed = padded.micro(tokens_BL, start_B, longer_BT)
    values_BT, _ = critic.values(whole.params, run.critic_cfg, packed)
    for b, n in enumerate(mask_BT.sum(1)):  # V before the next token is it
      np.testing.assert_allclose(got[b], values_BT[b, n], rtol=1e-5)
    other_BL = np.where(tokens_BL == run.tok.pad_token_id, 3, tokens_BL)
    packed = padded.micro(other_BL, start_B, mask_BT)
    again = critic.scores(whole.params, run.critic_cfg, packed)
    np.testing.assert_array_equal(again, got)


def test_micro_batches_change_nothing(whole):
  run = whole.run
  with jax.set_mesh(run.mesh):
    pairs = next(train._pairs(run, 8, evaluation=True))
    rows = train._rows(run, pairs)
    tx = run.optimizer(lr=1e-2, schedule="constant", warmup=0, total=1)
    where = step.state_shardings(critic.table(run.critic_cfg), tx, run.mesh)
    state = step.new_state(whole.params, tx, where)
    found = [
        step.preference_update(
            state,
            jax.device_put(packing.pack(*rows, count, unit=2)),
            cfg=run.critic_cfg,
            tx=tx,
        )[1]
        for count in (16, 3)
    ]
  np.testing.assert_allclose(found[0]["loss"], found[1]["loss"], rtol=1e-5)
  np.testing.assert_allclose(
      found[0]["grad_norm"], found[1]["grad_norm"], rtol=1e-5
  )


def test_stopped_it_ends_with_the_same_bits(whole, tmp_path):
  with pytest.raises(Stopped):
    trained(tmp_path / "a", stop_at=30)
  assert digest(trained(tmp_path / "a").params) == digest(whole.params)


def test_it_is_a_reward(whole, tmp_path):
  """Its score times its weight is added, and logged on its own."""
  path = whole.run.workdir / "export" / "reward_model"
  run = make_run(tmp_path / "a", reward__scorers=f"{path}*0.5,length*-1")
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    policy = test_config.run_params(run)
    rows = maker.generate(policy)
    r = rows.rollouts
    packed = padded.micro(r.tokens_BL, r.start_B, r.mask_BT)
    wanted_B = critic.scores(whole.params, run.critic_cfg, packed)
    np.testing.assert_allclose(rows.scores_NB[0], wanted_B, rtol=1e-4)
    np.testing.assert_allclose(rows.scores_NB[1], r.lengths_B / 24)
    zeros_BT = np.zeros_like(r.logps_BT)
    got = sharding.fetch(maker.returns(rows, zeros_BT))["rewards_B"]
  verdict_B = np.where(rows.correct_B > 0, 1, -1)
  extra_B = 0.5 * rows.scores_NB[0] - rows.scores_NB[1]
  np.testing.assert_allclose(got, verdict_B + extra_B, rtol=1e-5)


def test_a_scorer_that_fails_is_counted(tmp_path, monkeypatch):
  (tmp_path / "fails_of_test.py").write_text("def f(r, row):\n  return 1 / 0\n")
  monkeypatch.syspath_prepend(tmp_path)
  run = make_run(tmp_path / "a", reward__scorers="fails_of_test:f*1")
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    rows = maker.generate(test_config.run_params(run))
  assert maker.failures == len(rows.correct_B)
  assert not rows.scores_NB[0].any()


def test_a_critic_starts_from_it(whole, tmp_path):
  path = str(whole.run.workdir / "export" / "reward_model")
  more = dict(advantage__name="gae", critic__init="exported", critic__path=path)
  run = make_run(tmp_path / "a", **more)
  with jax.set_mesh(run.mesh):
    found, _ = value.run(run, test_config.run_params(run))
  assert digest(found) == digest(whole.params)


def test_one_that_is_not_there_or_reads_other_tokens_is_refused(
    whole, tmp_path
):
  run = make_run(tmp_path / "a")
  with pytest.raises(RunError, match="holds no whole reward model"):
    train.load(run, str(tmp_path))
  run.config.task.name = "countdown"
  with pytest.raises(RunError, match="reward.*: task.name is 'arithmetic' the"):
    train.load(run, str(whole.run.workdir / "export" / "reward_model"))


def test_it_is_a_classifier_of_transformers_as_well(whole, tmp_path):
  """Its files alone, without our checkpoint, are the same network."""
  out = whole.run.workdir / "export" / "reward_model"
  said = json.loads((out / "config.json").read_text())
  assert said["architectures"] == ["LlamaForSequenceClassification"]
  assert said["id2label"] == {"0": "LABEL_0"} and said["pad_token_id"] == 0
  alone = tmp_path / "alone"
  shutil.copytree(out, alone, ignore=shutil.ignore_patterns(str(STEPS)))
  assert not classifier.is_one(str(out)) and classifier.is_one(str(alone))
  run = make_run(tmp_path / "a", reward__scorers=f"{alone}*1")
  with jax.set_mesh(run.mesh):
    classifier.check(run)
    params, cfg = train.load(run, str(alone))
  assert digest(params) == digest(whole.params)
  assert cfg == whole.run.critic_cfg
  start = dict(critic__init="exported", critic__path=str(alone))
  run = make_run(tmp_path / "b", advantage__name="gae", **start)
  with jax.set_mesh(run.mesh):
    found, _ = value.run(run, test_config.run_params(run))
  assert digest(found) == digest(whole.params)
