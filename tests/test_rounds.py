"""Rounds: what each of them runs with, what it learns from, and resuming."""

import hashlib
import json
import threading
import types

import pytest
from tiny_session import tiny_config

from rl_reason.base import config, errors
from rl_reason.base.errors import Stopped
from rl_reason.checks import config_checks, run_directory
from rl_reason.data import sample_files, tokenizer
from rl_reason.data.datasets import DataError
from rl_reason.lab import rounds
from rl_reason.tasks import arithmetic

TOK = tokenizer.characters(arithmetic.ALPHABET + " ")


def rounds_config(**changes):
  c = tiny_config()
  c.rounds.count, c.generate.keep, c.rl.steps = 2, "correct", 0
  if changes.get("generate.keep") == "pairs":
    c.rl.steps = 3
  config.override(c, changes)
  return c


# --- configs of rounds -------------------------------------------------------


def test_a_round_of_sft_starts_from_the_policy_before_it(tmp_path):
  c = rounds_config(**{"rounds.steps": 7, "rounds.lr": 0.5})
  first, one, two = (rounds.of_round(c, i, tmp_path, "S") for i in range(3))
  for made in (first, one, two):
    assert made.rounds.count == 0  # a run of its own
  assert (first.seed, first.model.path) == (c.seed, "")
  assert first.sft == c.sft and first.rl.steps == 0
  assert len({first.seed, one.seed, two.seed}) == 3
  assert two.model.path == str(tmp_path / "round-1" / "export" / "policy")
  assert (two.sft.steps, two.sft.lr) == (7, 0.5)
  assert (two.sft.habits.steps, two.sft.samples) == (0, "S")
  assert c == rounds_config(**{"rounds.steps": 7, "rounds.lr": 0.5})


def test_the_reward_of_a_round_is_that_of_its_model(tmp_path):
  pairs = {"generate.keep": "pairs", "rounds.weight": 0.5}
  c = rounds_config(**pairs, **{"reward.functions": "length*-0.1"})
  one = rounds.of_round(c, 1, tmp_path, model="D")
  assert one.reward.functions == "D*0.5"
  assert one.reward.correct == one.reward.incorrect == 0
  assert one.rl.steps == 3 and one.sft.steps == 0 == one.sft.habits.steps
  c.rounds.verdict = True
  one = rounds.of_round(c, 1, tmp_path, model="D")
  assert one.reward.functions == "length*-0.1,D*0.5"
  assert (one.reward.correct, one.reward.incorrect) == (1, -1)


def test_the_critic_of_a_round_starts_from_its_reward_model(tmp_path):
  """Stages before the reward model exists start no critic from it."""
  pairs = {"generate.keep": "pairs", "critic.init": "exported"}
  c = rounds_config(**pairs, **{"advantage.name": "gae"})
  config_checks.fields(c)
  for number in (0, 1):
    assert rounds.of_round(c, number, tmp_path).critic.init == "policy"
  one = rounds.of_round(c, 1, tmp_path, model="D")
  assert (one.critic.init, one.critic.path) == ("exported", "D")
  c.critic.path = "mine"
  one = rounds.of_round(c, 1, tmp_path, model="D")
  assert (one.critic.init, one.critic.path) == ("exported", "mine")


def test_rounds_read_as_one_run_count_steps_and_tokens_of_samples(tmp_path):
  name, outer = "tokens/generated", [{}, dict(tokens=50), dict(tokens=30)]
  for number, about in enumerate(outer):
    place = rounds.directory(tmp_path, number)
    place.mkdir()
    lines = [
        dict(stage="sft", step=3),
        dict(stage="evaluate", step=0, x=number),
        *(
            {"stage": "rl", "step": i, name: 100 * i, "flops/total": 1}
            for i in (1, 2)
        ),
        dict(stage="evaluate", step=2, x=number + 0.5),
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place / "metrics.jsonl").write_text(text)
    outer[number] = dict(stage="evaluate", step=number) | {
        f"rounds/{k}": x for k, x in about.items()
    }
  text = "".join(json.dumps(line) + "\n" for line in outer)
  (tmp_path / "metrics.jsonl").write_text(text)
  found = rounds.lines_of_rl(tmp_path, steps=2)
  assert [(x["stage"], x["step"], x[name], x.get("x")) for x in found] == [
      ("evaluate", 0, 50, 1),
      ("rl", 1, 150, None),
      ("rl", 2, 250, None),
      ("evaluate", 2, 250, 1.5),
      ("rl", 3, 380, None),  # 250 + 30 + 100
      ("rl", 4, 480, None),
      ("evaluate", 4, 480, 2.5),
  ]
  assert not any("flops/total" in x for x in found)


def test_replay_is_a_share_of_earlier_rounds(tmp_path):
  c = rounds_config(**{"generate.keep": "pairs"})
  place = lambda i, step: f"{tmp_path}/round-{i}/generated/{step}"  # noqa: E731
  assert rounds.mixture(c, 0, tmp_path) == ""
  assert rounds.mixture(c, 2, tmp_path) == f"{place(1, 3)}*1"
  c.rounds.replay = 0.1
  assert rounds.mixture(c, 1, tmp_path) == f"{place(0, 0)}*1"
  assert rounds.mixture(c, 3, tmp_path) == (
      f"{place(0, 0)}*0.05,{place(1, 3)}*0.05,{place(2, 3)}*0.9"
  )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"generate.keep": "all"}, "generate.keep = 'all': would imitate"),
        ({"generate.keep": "prompts"}, "'prompts': keeps no responses"),
        (
            {"generate.keep": "pairs", "rl.steps": 0},
            "rl.steps = 0: RL alone learns from the reward model of a round",
        ),
        (
            {"generate.keep": "pairs", "rounds.lr": 0.1},
            "rounds.lr = 0.1: does nothing: a round trains a",
        ),
        ({"rounds.verdict": True}, "does nothing: a round trains SFT"),
        (
            {"rounds.count": 0, "rounds.replay": 0.1},
            "rounds.replay = 0.1: does nothing without rounds.count",
        ),
        (
            {
                "task.name": "guess",
                "sft.mixture": "bisect:1",
                "sft.habits.mixture": "random:1",
                "task.difficulties": (3,),
                "dynamic_sampling.enabled": False,
            },
            "rounds.count = 2: --stage=generate plays no",
        ),
        ({"sft.samples": "no/where.jsonl"}, "sft.samples = 'no/where.jsonl': "),
        ({"reward.correct": 0, "reward.incorrect": 0}, "both may be 0 with"),
    ],
)
def test_rounds_that_cannot_work_are_refused(fields, words):
  with pytest.raises(errors.ConfigError) as refused:
    config_checks.fields(rounds_config(**fields), tuple(fields))
  assert words in str(refused.value)


def test_what_a_round_reads_may_not_change_when_it_is_resumed(tmp_path):
  c = rounds_config()
  (tmp_path / "config.json").write_text(json.dumps(config.flat(c)))
  c.rounds.count = 5  # further rounds
  run_directory.check(tmp_path, c)
  for name, value in {"generate.samples": 3, "rl.steps": 1}.items():
    other = rounds_config(**{name: value})
    with pytest.raises(errors.ConfigError, match=name):
      run_directory.check(tmp_path, other)


# --- the loop ----------------------------------------------------------------


class Run:
  """Stages that only write what the loop reads; one of them may be killed."""

  def __init__(self, workdir, c):
    self.workdir, self.config, self.calls = workdir, c, []
    self.die_at, self.said = None, []

  def stages(self, c, workdir, screen, stop, stage="all"):
    call = stage, str(workdir.relative_to(self.workdir)), c.reward.correct
    self.calls.append(call)
    if len(self.calls) == self.die_at:
      raise Stopped
    workdir.mkdir(parents=True, exist_ok=True)
    if stage == "generate":
      path = workdir / "generated" / f"{c.rl.steps}.json"
      path.parent.mkdir(exist_ok=True)
      path.write_text(json.dumps(dict(totals=dict(rows=4, correct=5))))
      return None, None
    score = {
        "val-core/arithmetic/acc/mean@1": c.seed % 97 / 97,
        "val-core/preferences/accuracy": 0.7,
    }
    line = dict(stage="evaluate", step=c.rl.steps, x=1) | score
    if stage == "reward_model":
      line["stage"] = stage
    (workdir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return call, "policy"

  def __call__(self, **options):
    screen = types.SimpleNamespace(say=self.said.append)
    stop = threading.Event()
    return rounds.run(
        self.config, self.workdir, screen, stop, self.stages, **options
    )


def test_the_stages_of_a_loop_with_a_reward_model(tmp_path):
  run = Run(tmp_path, rounds_config(**{"generate.keep": "pairs"}))
  assert run()[1] == "policy"
  assert run.calls == [
      ("all", "round-0", 1),
      ("export", "round-0", 1),
      ("generate", "round-0", 1),
      ("reward_model", "round-1/reward_model", 1),
      ("all", "round-1", 0),
      ("export", "round-1", 1),
      ("generate", "round-1", 1),  # the verifier grades the pairs
      ("reward_model", "round-2/reward_model", 1),
      ("all", "round-2", 0),
  ]
  lines = [
      json.loads(x)
      for x in (tmp_path / "metrics.jsonl").read_text().splitlines()
  ]
  assert [x["step"] for x in lines] == [0, 1, 2]
  assert lines[2]["rounds/rows"] == 4 and "rounds/rows" not in lines[0]
  assert lines[2]["rounds/preferences/accuracy"] == 0.7
  assert any(x.startswith("round 2: mean@1 ") for x in run.said)
  assert (tmp_path / "report.html").exists()


def test_a_loop_goes_on_where_it_was_stopped(tmp_path):
  """Finished rounds are not entered again, except the last, for its result."""
  whole = Run(tmp_path / "whole", rounds_config())
  whole()
  want = (tmp_path / "whole" / "metrics.jsonl").read_text()
  for die_at in (1, 3, len(whole.calls) - 2):
    run = Run(tmp_path / f"stopped-{die_at}", rounds_config())
    run.die_at = die_at
    with pytest.raises(Stopped):
      run()
    run.die_at, first = None, len(run.calls)
    run()
    assert (run.workdir / "metrics.jsonl").read_text() == want
    again = {x[1] for x in run.calls[first:]}
    done = {x[1] for x in run.calls[: first - 1] if x[0] == "all"}
    assert again & done <= {sorted(done)[-1]} if done else True
  before = len(whole.calls)
  assert whole()[1] == "policy"
  assert whole.calls[before:] == [("all", "round-2", 1)]
  whole.config.rounds.count = 3
  whole()
  assert whole.calls[-1] == ("all", "round-3", 1)


def test_the_name_of_a_work_directory_can_be_a_source():
  given = {"seed": 1, "reward.functions": "length*-0.1,steps(a=1)*1"}
  names = [
      run_directory.default("grpo", rounds_config(**x, **given), x | given)
      for x in ({}, {"evaluate.prompts": 17, "tokenizer": "t" * 90})
  ]
  for name in names:
    assert not set(name.name) & set(run_directory.NO_SOURCE)
    assert len(name.name) <= run_directory.MAX_NAME
  assert names[0].name.endswith("+seed=1") and names[0] != names[1]


def test_what_has_no_rounds_is_refused_with_the_remedy(tmp_path):
  run = Run(tmp_path / "run", rounds_config())
  with pytest.raises(errors.ConfigError, match="--workdir=.*round-0"):
    run(stage="evaluate")
  run.workdir = tmp_path / "run,seed=1"
  with pytest.raises(errors.ConfigError, match="without the characters , "):
    run()
  assert not run.calls


# --- samples -----------------------------------------------------------------


def written(tmp_path, rows):
  path = tmp_path / "samples.jsonl"
  path.write_text("".join(json.dumps(x) + "\n" for x in rows))
  return str(path)


def test_samples_are_read_as_they_are_and_counted(tmp_path):
  good = [dict(prompt="1+2=", response=x) for x in (" 3", "#3", "#3")]
  good[0]["correct"] = None  # nobody knows
  bad = [
      dict(prompt="1+2=", response="#3", truncated=True),
      dict(prompt="1+2=", response="#4", correct=False),
      dict(prompt="1+2=", response="123456789"),
      dict(prompt="1+2+3+4=", response="#3"),
      dict(prompt="1+2="),
      [1],
      dict(prompt=[dict(role="user", content="1")], response="1"),
  ]
  said = []
  path = written(tmp_path, good + bad)
  args = "sft.samples", path, TOK, (4, 9), said.append
  parts, weights = sample_files.read(*args)
  assert parts == [[("1+2=", " 3"), ("1+2=", "#3")]] and weights == [2]
  (line,) = said
  assert line.startswith(
      f"sft.samples: 2 of 10 rows of {path} (1 have no end, "
  )
  for words in (
      "1 are incorrect",
      "2 lack prompt, response",
      "1 have a prompt that cannot be rendered: the tokenizer has no chat",
      "1 are repeated",
      "2 are longer than rollout.max_prompt or rollout.max_tokens",
  ):
    assert words in line
  with pytest.raises(DataError, match="none is left; raise generate.prompts"):
    sample_files.read(*args, pairs=True)


def test_samples_with_an_answer_and_no_verdict_are_said(tmp_path):
  """Of rows that are imitated; without an answer, there is no verdict."""
  texts = "#4", "#3", "#2", "#1", "#0", "123456789"
  rows = [dict(prompt="1+2=", response=x, answer="3") for x in texts]
  rows[1]["correct"], rows[2]["correct"] = True, None
  rows[3]["answer"], rows[4]["answer"] = "", None
  said = []
  path = written(tmp_path, rows)
  args = "sft.samples", path, TOK, (4, 9), said.append
  sample_files.read(*args)
  assert said[1].startswith(
      f"warning: sft.samples: 2 of the 5 rows of {path} that are left have an"
  )


def test_generated_files_are_those_of_their_manifest(tmp_path):
  out = tmp_path / "generated" / "3"
  out.mkdir(parents=True)
  part = out / "part-000000000.jsonl"
  part.write_text('{"prompt": "1+2=", "response": "#3"}\n')
  digest = hashlib.sha256(part.read_bytes()).hexdigest()
  manifest = dict(files={part.name: dict(sha256=digest)})
  out.with_name("3.json").write_text(json.dumps(manifest))
  args = "f", str(out), TOK, (4, 9), lambda _: None
  assert sample_files.read(*args) == ([[("1+2=", "#3")]], [1])
  part.write_text('{"prompt": "1+2=", "response": "#4"}\n')
  for _ in range(2):
    with pytest.raises(DataError, match="is missing or damaged, says 3.json"):
      sample_files.read(*args)
    part.unlink(missing_ok=True)
    (out / "part-1.jsonl").write_text("{}\n")


def test_pairs_may_be_rejected_for_having_no_end(tmp_path):
  rows = [
      dict(prompt=f"{i}+2=", chosen="#3", rejected="1" * size)
      for i, size in enumerate((8, 9, 10))
  ]
  text = f"{written(tmp_path, rows)}*0.5"
  parts, weights = sample_files.read(
      "f", text, TOK, (4, 9), lambda _: None, pairs=True
  )
  assert [x[2] for x in parts[0]] == ["1" * 8, "1" * 9] and weights == [0.5]


def test_pairs_of_a_prompt_are_learned_or_held_out():
  rows = [(f"{i % 25}=", "a", str(i)) for i in range(50)]
  (learned,), (held,) = sample_files.split([rows])
  assert sorted(learned + held) == sorted(rows)
  assert not {x[0] for x in learned} & {x[0] for x in held}
  assert len({x[0] for x in held}) == 3
  with pytest.raises(DataError, match="too few prompts"):
    sample_files.split([rows[:1]])


def test_batches_have_the_shares_of_the_weights():
  parts = [[(f"a{i}", "x") for i in range(30)], [("b", "y")]]
  stream = sample_files.iterate(parts, [0.75, 0.25], 0, 40)
  first = next(stream)
  assert [x[0] for x in first].count("b") == 10
  assert len({x for x in first if x[0] != "b"}) == 30
