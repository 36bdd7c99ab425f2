"""A replayed step equals the step of the run; what overrides may change.

Runs of all stages, and of other kinds, are in tests/slow/test_replay_runs.py.
"""

import json
import shutil
import types

import numpy as np
import pytest
import replayed

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import command_line, rules, saved_config
from rl_reason.lab import replay, replay_record
from rl_reason.tasks import arithmetic


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The work directory of three steps of Dr. GRPO."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(arithmetic, "verify", lambda text, row: len(text) % 2)
    workdir = tmp_path_factory.mktemp("runs") / "dr_grpo"
    yield replayed.reinforced(workdir, **replayed.DR_GRPO)


@pytest.mark.slow
def test_a_step_is_rebuilt_to_the_bit_and_twice_rewarded(finished):
  """Twice the reward is twice the gradient of the first optimizer step."""
  place = replayed.replayed_session(
      finished, 3, reward__correct=2, reward__incorrect=-2
  )
  record, arrays = replayed.check(place, finished)
  assert record["checkpoint"] == 2
  # Shares of tokens add up to 1, and clipped tokens have none of them.
  share_MBT, clipped_MBT = arrays["share_MBT"], arrays["clipped_MBT"]
  np.testing.assert_allclose(share_MBT.sum((1, 2)), 1, atol=0.02)
  assert clipped_MBT.any() and not share_MBT[clipped_MBT].any()
  steps = record["optimizer_steps"]
  for m, step in enumerate(steps):
    by_hand = replayed.clip_fraction(arrays, m, 0.2, 0.2)
    assert step["metrics"]["pg_clipfrac"] == pytest.approx(by_hand, abs=1e-6)
  assert "layer 0" in steps[0]["norms"]

  assert record["overrides"] == {"reward.correct": 2, "reward.incorrect": -2}
  assert place.name == "step-3,reward.correct=2.0,reward.incorrect=-2.0"
  other = record["other"]
  np.testing.assert_allclose(
      arrays["other_advantages_BT"], 2 * arrays["advantages_BT"], rtol=1e-6
  )
  assert other["gradient_cosines"][0] == pytest.approx(1, abs=1e-6)
  one, two = (
      x[0]["metrics"]["grad_norm"] for x in (steps, other["optimizer_steps"])
  )
  assert two == pytest.approx(2 * one, rel=1e-5)
  assert not list((finished / "replay").glob(".step*")), "the copy is removed"


def test_a_changed_record_is_named(finished, tmp_path):
  lines = (finished / "metrics.jsonl").read_text().splitlines()
  at = [i for i, x in enumerate(lines) if json.loads(x)["stage"] == "rl"][1]
  changed = json.loads(lines[at]) | {"actor/grad_norm": 7.0}
  edited = [*lines[:at], json.dumps(changed)]
  del changed["actor/grad_norm"]
  less = [*lines[:at], json.dumps(changed)]
  several = (("edited", edited), ("short", lines[:at]), ("less", less))
  for name, left in several:
    (tmp_path / name).mkdir()
    (tmp_path / name / "metrics.jsonl").write_text("\n".join(left) + "\n")
  found = replay_record.compare(tmp_path / "edited", finished, 0, 2)
  (difference,) = found["differences"]
  assert difference["metric"] == "actor/grad_norm" and found["equal"] is False
  text = replay_record.verdict(found, 2)
  assert text.startswith("warning: ")
  assert "step 2, actor/grad_norm: 7.0 there" in text
  found = replay_record.compare(tmp_path / "short", finished, 0, 2)
  assert found["equal"] is None
  assert "has not logged step 2" in replay_record.verdict(found, 2)
  # What was not rebuilt is not equal.
  found = replay_record.compare(finished, tmp_path / "less", 0, 2)
  lost = dict(step=2, metric="actor/grad_norm", rebuilt=None)
  lost["recorded"] = json.loads(lines[at])["actor/grad_norm"]
  assert lost in found["differences"] and not found["equal"]
  found = replay_record.compare(finished, tmp_path / "short", 0, 2)
  assert lost in found["differences"] and not found["equal"]


def test_numbers_that_are_not_finite_are_shown():
  """The record has None for them, as JSON does."""
  found = types.SimpleNamespace(
      rows=types.SimpleNamespace(age_B=np.array([0, 0, -1])),
      batch=types.SimpleNamespace(
          mask_BT=np.array([[True, False]] * 2),
          advantages_BT=np.array([[1.0, 9], [-0.5, 9]]),
      ),
  )
  step = dict(metrics=dict(grad_norm=None, pg_clipfrac=0.25))
  assert replay_record._text(found, dict(optimizer_steps=[step])) == (
      "2 responses, 2 tokens in the loss, advantages -0.5 to 1; gradient norms"
      " nan and clip fractions 0.25 of 1 optimizer steps"
  )


def test_the_policy_after_a_step_is_compared(finished, tmp_path):
  """A run logs the digest of the policy that samples in the step after."""
  logged = {"rollout/policy_version": 2, "rollout/policy_digest": 7}
  lines = [
      json.loads(x)
      for x in (finished / "metrics.jsonl").read_text().split("\n")[:-1]
  ]
  (third,) = [x for x in lines if (x["stage"], x["step"]) == ("rl", 3)]
  third |= logged
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "metrics.jsonl").write_text(text)
  found = replay_record.compare(tmp_path, finished, 0, 2, digest=7)
  assert found["equal"] and found["parameters"]
  assert "and the policy after the step" in replay_record.verdict(found, 2)
  found = replay_record.compare(tmp_path, finished, 0, 2, digest=8)
  text = replay_record.verdict(found, 2)
  assert not found["equal"] and "digest of the policy after the step" in text
  found = replay_record.compare(finished, finished, 0, 3, digest=8)
  assert found["equal"] and not found["parameters"], "no step came after it"


@pytest.mark.parametrize(
    "field, value, why",
    [
        ("rollout.temperature", "0.5", "decides which responses are sampled"),
        ("dynamic_sampling.batches", "1", "which groups are in the batch"),
        ("seed", "1", "the policy or the prompts of the step"),
        ("rl.steps", "9", "the policy or the prompts of the step"),
        ("reward.shuffle", "True", "permutes the verdicts"),
        ("reward.functions", "length", "the responses of the batch are scored"),
        ("advantage.name", "gae", "values of a critic, which the run"),
        ("log.groups", "9", "changes nothing that a replay shows"),
        ("surrogate.args.clip_high", "-1", "must be"),
    ],
)
def test_what_changes_the_batch_is_refused(finished, field, value, why):
  with pytest.raises(ConfigError, match=f"{field} = .*{why}"):
    saved_config.read(finished, "replay", {field: value})


def test_rewards_that_select_groups_are_refused(finished, tmp_path):
  config = json.loads((finished / "config.json").read_text())
  config["dynamic_sampling.signal"] = "reward"
  (tmp_path / "config.json").write_text(json.dumps(config))
  with pytest.raises(ConfigError, match="decides which groups have signal"):
    saved_config.read(tmp_path, "replay", {"reward.correct": "2"})


def test_a_config_of_the_user_is_compared_with_the_record(finished):
  """With --config, the differences are the overrides."""
  c = replayed.config(**replayed.DR_GRPO)
  for given, refused in (({"kl.coef": "0.1", "kl.kind": "k3"}, ""), FOREIGN):
    faults = rules.Faults()
    command_line.examine(c, given, finished, "replay", faults, trace=False)
    assert len(faults.lines) == bool(refused)
    assert refused in "".join(faults.lines)


FOREIGN = {"rollout.temperature": "0.5"}, "which responses are sampled"


def test_an_optimizer_with_other_moments_is_refused(finished):
  with pytest.raises(ConfigError, match="optimizer.name = 'sgd': .* moments"):
    replayed.replayed_session(finished, 3, optimizer__name="sgd")


@pytest.mark.parametrize("which", ["0", "9", "best"])
def test_a_step_that_does_not_exist_is_refused(finished, which):
  own = saved_config.recorded(finished)
  with pytest.raises(ConfigError, match="has steps 1 to 3 of RL"):
    replay._step(which, own, finished)
  assert replay._step("newest", own, finished) == 3


def test_no_early_checkpoint_names_the_remedy(finished, tmp_path):
  """A run whose SFT is lost, too."""
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  for step in (0, 1):
    shutil.rmtree(workdir / "checkpoints" / "rl" / str(step))
  with pytest.raises(RunError, match="checkpoint.keep_last") as e:
    replayed.replayed_session(workdir, 1)
  assert "older than step 1 (there are [2, 3])" in str(e.value)
  assert not list((workdir / "replay").glob(".step*"))
