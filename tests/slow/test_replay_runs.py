"""Replays of whole runs, by their work directories alone."""

import pathlib

import jax
import numpy as np
import pytest
import replayed
import tiny_session

half_correct = tiny_session.half_correct
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]
FEW = dict(rl__steps=3, evaluate__every=0, checkpoint__keep_best=0)


def test_a_run_of_dapo_from_the_policy_of_sft(tmp_path):
  """All checkpoints before the step are gone; then other bounds of the clip."""
  run = replayed.trained(
      tmp_path / "run",
      **FEW,
      checkpoint__keep_last=1,
      reduction__name="token_mean",
      surrogate__args=dict(clip_high=0.28),
      updates__minibatches=4,
      optimizer__lr=0.003,
  )
  assert [x.name for x in (run / "checkpoints" / "rl").iterdir()] == ["3"]
  place = replayed.replayed(run, 2, surrogate__args__clip_high=0.001)
  record, arrays = replayed.check(place, run)
  assert record["checkpoint"] is None
  assert record["recorded"]["parameters"], "step 3 sampled with the policy"
  other = record["other"]
  np.testing.assert_array_equal(
      arrays["other_advantages_BT"], arrays["advantages_BT"]
  )
  # Both take the same first update, as all ratios are 1 before it, so both
  # meet the second minibatch with equal ratios.
  clipped = [
      [step["metrics"]["pg_clipfrac"] for step in x["optimizer_steps"]]
      for x in (record, other)
  ]
  assert clipped[0][0] == clipped[1][0] == 0
  assert other["gradient_cosines"][0] == pytest.approx(1)
  for bound, found in zip((0.28, 0.001), clipped, strict=True):
    by_hand = replayed.clip_fraction(arrays, 1, 0.2, bound)
    assert found[1] == pytest.approx(by_hand, abs=1e-6)
  assert clipped[1][1] > clipped[0][1] + 0.05
  assert other["gradient_cosines"][1] < 0.999


KINDS = {
    "critic": dict(
        advantage__name="gae_length_adaptive",
        advantage__args=dict(alpha=1.0),
        critic__pretrain_steps=2,
        updates__minibatches=2,
        loss__positive_nll=0.1,
    ),
    "kl": dict(
        kl__kind="k3",
        kl__coef=0.1,
        updates__minibatches=2,
        loss__entropy_coef=0.01,
    ),
    "lora": dict(lora__rank=2, kl__kind="k2", kl__coef=0.1),
    "ahead": dict(rl__staleness=1, updates__minibatches=2),
    "environment": dict(
        task__name="guess",
        task__difficulties=(3,),
        dynamic_sampling__enabled=False,
        sft__mixture="",
        sft__habits=dict(steps=0, lr=2e-5, schedule="cosine", mixture=""),
    ),
    "early stopping": dict(updates__max_kl=0.5),
}

# These need the policy of SFT, or a pretrained critic.
OF_ALL_STAGES = "critic", "kl", "lora"


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_runs(tmp_path, kind):
  train, replay_step = replayed.trained, replayed.replayed
  if kind not in OF_ALL_STAGES:
    train, replay_step = replayed.reinforced, replayed.replayed_session
  run = train(tmp_path / "run", **FEW | KINDS[kind])
  place = replay_step(run, 3)
  record, _ = replayed.check(place, run)
  assert record["checkpoint"] == 2


def test_the_run_itself_as_the_other_config(tmp_path, monkeypatch):
  """Its credit and its update, made in the way of overrides, are the same."""
  run = replayed.trained(tmp_path / "run", **FEW | KINDS["critic"])
  from rl_reason.lab import replay

  found = {}
  credited, take = replay.credited, replay.Watch._take

  def both(self, state, base, updates):
    found["both"] = updates
    return take(self, state, base, updates)

  monkeypatch.setattr(replay.Watch, "_take", both)
  # Of all overrides, this one moves neither credit nor gradient.
  replayed.replayed(run, 3, optimizer__lr=1e-9)
  (_, own), (_, other) = found["both"]
  for a, b in ((own.batch, other.batch), (own.data_M, other.data_M)):
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get((a, b)))
  jax.tree.map(np.testing.assert_array_equal, own.credit, other.credit)
  assert credited is replay.credited


def test_functions_of_files_of_the_user(tmp_path, monkeypatch):
  """The record of a run names them; they are imported from the user's files."""
  here = tmp_path / "here"
  here.mkdir()
  (here / "my_rewards_of_replay.py").write_text(
      "def short(response, row):\n  return -len(response.text) / 50\n"
  )
  (here / "my_advantage_of_replay.py").write_text(
      "from rl_reason.algorithms import advantages\n\n\n"
      "def twice(rewards_B, groups_B):\n"
      "  return 2 * advantages.group_mean(rewards_B, groups_B)\n"
  )
  monkeypatch.chdir(here)
  run = replayed.trained(
      pathlib.Path("run"),
      **FEW,
      advantage__name="my_advantage_of_replay:twice",
      reward__functions="my_rewards_of_replay:short*0.5",
  )
  place = replayed.replayed(run, 2)
  replayed.check(place, run)
  place = replayed.replayed(
      run, 2, reward__functions="my_rewards_of_replay:short*1.5"
  )
  _, arrays = replayed.check(place, run)
  gap_B = arrays["other_rewards_B"] - arrays["rewards_B"]
  # A token is a character, but for the EOS of a response that has ended.
  characters_B = arrays["lengths_B"] - ~arrays["truncated_B"]
  assert characters_B.any()
  np.testing.assert_allclose(gap_B, -characters_B / 50, rtol=1e-5)
