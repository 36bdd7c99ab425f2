"""The scripts of rounds: their configs, their stages, going on after a kill."""

import json

import pytest
from conftest import example
from tiny_session import tiny_config

import rl_reason
from rl_reason.base import config, errors
from rl_reason.base.errors import Stopped
from rl_reason.checks import config_checks, run_directory

SFT, RL = "rejection_sampling", "iterative_grpo"


def test_a_round_of_sft_starts_from_the_policy_before_it(tmp_path):
  script, c = example(SFT), tiny_config()
  first, one, two = (script.of_round(c, i, tmp_path) for i in range(3))
  assert (first.seed, first.model.path) == (c.seed, "")
  assert first.sft == c.sft
  assert len({first.seed, one.seed, two.seed}) == 3
  assert two.model.path == str(tmp_path / "round-1" / "export" / "policy")
  assert (two.sft.steps, two.sft.lr) == (3, 1e-3)
  assert two.sft.habits.steps == 0
  assert c == tiny_config()


def test_the_reward_of_a_round_is_that_of_its_model(tmp_path):
  script, c = example(RL), tiny_config()
  c.reward.functions = "length*-0.1"
  first, one, two = (script.of_round(c, i, tmp_path, "D") for i in range(3))
  assert (first.rl.steps, first.sft, first.reward) == (0, c.sft, c.reward)
  model = tmp_path / "reward_model-1" / "export" / "reward_model"
  assert script.exported(tmp_path / "reward_model-1") == str(model)
  assert one.reward.functions == "D*1.0"
  assert one.reward.correct == one.reward.incorrect == 0
  assert one.rl.steps == 2 and one.sft.steps == 0 == one.sft.habits.steps
  learner = script.of_reward_model(c, 2, tmp_path)
  assert learner.reward == c.reward and learner.seed == two.seed
  assert learner.reward_model.init == str(model)


def test_the_critic_of_a_round_starts_from_its_reward_model(tmp_path):
  script = example(RL)
  c = script.get_config(critic=True)
  first, one = (script.of_round(c, i, tmp_path, "D") for i in range(2))
  assert first.critic.init == "policy"
  assert script.of_reward_model(c, 1, tmp_path).critic.init == "policy"
  assert (one.critic.init, one.critic.path) == ("exported", "D")


def test_pairs_of_earlier_rounds_are_a_share_of_the_pairs(tmp_path):
  script, c = example(RL), tiny_config()
  place = lambda i, step: f"{tmp_path}/round-{i}/generated/{step}"  # noqa: E731
  for number, wanted in (
      (1, f"{place(0, 0)}*1"),
      (2, f"{place(0, 0)}*0.1,{place(1, 2)}*0.9"),
      (3, f"{place(0, 0)}*0.05,{place(1, 2)}*0.05,{place(2, 2)}*0.9"),
  ):
    learner = script.of_reward_model(c, number, tmp_path)
    assert learner.reward_model.samples == wanted


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sft.samples": "no/where.jsonl"}, "sft.samples = 'no/where.jsonl': "),
        ({"reward.correct": 0, "reward.incorrect": 0}, "both may be 0 with"),
    ],
)
def test_what_cannot_work_is_refused(fields, words):
  c = tiny_config()
  config.override(c, fields)
  with pytest.raises(errors.ConfigError, match=words):
    config_checks.fields(c, tuple(fields))


def test_samples_of_a_run_may_have_other_rewards(tmp_path):
  """And nothing else; the manifest of the samples has their config."""
  c = tiny_config()
  (tmp_path / "config.json").write_text(json.dumps(config.flat(c)))
  c.reward.correct = 2.0
  run_directory.check(tmp_path, c, "generate")
  with pytest.raises(errors.ConfigError, match="reward.correct"):
    run_directory.check(tmp_path, c)
  c.seed = 5
  with pytest.raises(errors.ConfigError, match="seed"):
    run_directory.check(tmp_path, c, "generate")


# --- the loops ---------------------------------------------------------------


class Train:
  """`rl_reason.train` that only makes work directories; a call may die."""

  def __init__(self, root):
    self.root, self.calls, self.die_at = root, [], None

  def __call__(self, c, *, workdir, stage="all"):
    workdir.mkdir(parents=True, exist_ok=True)
    if stage == "generate":
      (workdir / "generated" / str(c.rl.steps)).mkdir(
          parents=True, exist_ok=True
      )
    name = str(workdir.relative_to(self.root))
    self.calls.append((stage, name, c.reward.correct))
    if len(self.calls) == self.die_at:
      raise Stopped


LOOPS = {
    SFT: [
        ("all", "round-0", 1),
        ("export", "round-0", 1),
        ("generate", "round-0", 1),
        ("all", "round-1", 1),
        ("export", "round-1", 1),
        ("generate", "round-1", 1),
        ("all", "round-2", 1),
    ],
    RL: [
        ("all", "round-0", 1),
        ("export", "round-0", 1),
        ("generate", "round-0", 1),
        ("reward_model", "reward_model-1", 1),
        ("all", "round-1", 0),
        ("export", "round-1", 0),
        ("generate", "round-1", 1),  # the verifier grades the pairs
        ("reward_model", "reward_model-2", 1),
        ("all", "round-2", 0),
    ],
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_goes_on_where_it_was_stopped(
    name, tmp_path, monkeypatch, capsys
):
  script, whole = example(name), LOOPS[name]
  monkeypatch.setattr(script.compare, "write", lambda places: places[0])

  def run(place, die_at=None):
    train = Train(place)
    train.die_at = die_at
    monkeypatch.setattr(rl_reason, "train", train, raising=False)
    try:
      script.main(place, tiny_config(), 2)
    except Stopped:
      assert die_at
    return train.calls

  assert run(tmp_path / "whole") == whole
  last = 3 if name == SFT else 4  # stages of a round
  assert run(tmp_path / "whole") == whole[-last:]  # nothing but the last round
  out = capsys.readouterr().out
  assert "round 1 is finished: " in out and "round 2 of 2: " in out
  for die_at in (1, 3, len(whole) - 1):
    place = tmp_path / str(die_at)
    assert run(place, die_at) == whole[:die_at]
    again = run(place)
    assert again == whole[-len(again) :]
    assert len(again) >= len(whole) - die_at + 1
