"""Phases: their texts, their configs, forgetting by hand, and resuming."""

import json
import pathlib
import threading
import types

import numpy as np
import optax
import pytest
from tiny_session import tiny_config

from rl_reason import tasks
from rl_reason.base import config, phase_plan, resume_rules
from rl_reason.base.errors import ConfigError, Stopped
from rl_reason.checks import config_checks, config_files, phase_rules, rules
from rl_reason.data import held_out, pipelines
from rl_reason.evaluation import forgetting
from rl_reason.lab import phases
from rl_reason.report import scores
from rl_reason.stages import continued_run
from rl_reason.tasks import evaluation_tasks

PLAN = (
    "until=2; task.difficulties=(2, 3)",
    "until=3; task.difficulties=(4,); optimizer.lr=0.5; refresh=reference",
    "until=6; task.difficulties=(2, 3); refresh=optimizer",
)


def phased(plan=PLAN, **changes):
  c = tiny_config()
  c.kl.kind, c.kl.coef = "k3", 0.1
  c.rl.steps, c.phases = phase_plan.parse(plan)[-1].until, plan
  config.override(c, changes)
  return c


# --- texts -------------------------------------------------------------------


def test_a_text_is_an_end_and_fields():
  one, two, _ = phase_plan.parse(PLAN)
  assert one == (2, {"task.difficulties": "(2, 3)"}, ())
  assert two.refresh == ("reference",) and two.fields["optimizer.lr"] == "0.5"
  assert phase_plan.lengths(phase_plan.parse(PLAN)) == (2, 1, 3)
  short = phase_plan.with_ends(PLAN, (1, 2, 3))
  assert [x.until for x in phase_plan.parse(short)] == [1, 2, 3]
  assert phase_plan.parse(short)[1].fields == two.fields


@pytest.mark.parametrize(
    "plan, words",
    [
        (("seed=1",), "until must be a step of the run after step 0"),
        (("until=3", "until=3"), "after step 3"),
        (("until=3; x",), "must look like"),
        (("until=3; a=1; a=2",), "each name once"),
        (("until=3", "until=4; refresh=critic"), "refresh = critic: must be"),
        (("until=3; refresh=optimizer",), "the first phase has no earlier"),
        ((3,), "3 is no text"),
    ],
)
def test_other_texts_are_refused(plan, words):
  with pytest.raises(ValueError, match=words):
    phase_plan.parse(plan)


# --- configs -----------------------------------------------------------------


def test_a_phase_starts_from_the_one_before(tmp_path):
  c = phased()
  one, two, three = (phase_rules.of_phase(c, i, tmp_path) for i in range(3))
  first, second = (str(tmp_path / f"phase-{i}") for i in range(2))
  assert [x.rl.steps for x in (one, two, three)] == [2, 1, 3]
  assert (one.seed, one.sft.reuse, one.rl.init) == (c.seed, "", "")
  assert (two.sft.reuse, two.rl.init) == (first, first)
  assert (three.sft.reuse, three.rl.init) == (first, second)
  assert two.rl.init_optimizer and not three.rl.init_optimizer
  # A reference stays until it is refreshed.
  references = [x.kl.reference for x in (one, two, three)]
  assert references == ["", first, first]
  assert len({x.seed for x in (one, two, three)}) == 3
  # A change is of one phase alone.
  assert (two.optimizer.lr, three.optimizer.lr) == (0.5, c.optimizer.lr)
  assert not any(x.phases for x in (one, two, three))
  assert one.evaluate.tasks == "arithmetic(2+3)"
  assert two.evaluate.tasks == three.evaluate.tasks
  assert two.evaluate.tasks == "arithmetic(2+3),arithmetic(4)"
  for x in (one, two, three):
    config_checks.fields(x)


def test_without_a_kl_there_is_no_reference(tmp_path):
  c = phased(**{"kl.kind": "none", "kl.coef": 0.0})
  assert phase_rules.of_phase(c, 2, tmp_path).kl.reference == ""


def test_a_phase_that_is_added_changes_no_earlier_one(tmp_path):
  texts = "until=1", "until=2; rollout.max_tokens=20"
  before, after = phased(texts), phased((*texts, "until=3; seed=1"))
  after.phases = (*texts, "until=3; task.difficulties=(2,)")
  for number in range(2):
    old, new = (
        phase_rules.of_phase(c, number, tmp_path) for c in (before, after)
    )
    assert old.evaluate.tasks == new.evaluate.tasks
    assert old.evaluate.tasks == "arithmetic(2+3+4+5+6)"


def test_sets_of_the_user_stay(tmp_path):
  c = phased(**{"evaluate.tasks": "xor"})
  found = phase_rules.of_phase(c, 1, tmp_path).evaluate.tasks
  assert found == "arithmetic(2+3),arithmetic(4),xor(1+2+3)"


def test_tasks_share_a_tokenizer(tmp_path):
  other = "until=3; task.name=countdown; task.difficulties=(2,)"
  c = phased(("until=1", other))
  assert {*phase_rules.alphabet(c)} == {*"0123456789+-=;#*?,:"}
  two = phase_rules.of_phase(c, 1, tmp_path)
  assert two.tokenizer == str(tmp_path / "tokenizer")
  own, others = evaluation_tasks.of_run(two.evaluate.tasks, "countdown", (2,))
  assert own.label == "countdown-2" and [x.label for x in others] == [
      "arithmetic-2+3+4+5+6"
  ]
  assert phase_rules.alphabet(phased()) == ""


def faults(c):
  found = rules.Faults()
  phase_rules.check(c, "all", found)
  return found.lines


@pytest.mark.parametrize(
    "text, words",
    [
        ("model.width=3", "model.width = 3: cannot change between phases"),
        ("tokenizer=x", "tokenizer = x: cannot change"),
        ("lora.rank=2", "start another run for another model"),
        ("sft.steps=3", "SFT precedes the first phase"),
        ("rl.steps=3", "the end of a phase is its `until`"),
        ("kl.reference=x", "say refresh=reference"),
        ("optimizer.name=muon", "say refresh=optimizer"),
        ("optimizer.clip_norm=0", "say refresh=optimizer"),
        ("task.difficulties=(9,)", "rollout.max_prompt = 12: "),
        ("rollout.bach=3", "did you mean rollout.batch"),
        ("rollout.batch=7", "must divide rollout.batch = 7"),
        ("rollout.max_prompt=3", "rollout.max_prompt = 3: "),
        ("task.name=countdown", "4 is none of countdown's"),
        ("task.name=guess", "an environment plays the prompts"),
    ],
)
def test_phases_that_cannot_work_are_refused_before_the_first(text, words):
  lines = faults(phased(("until=1; task.difficulties=(2,)", f"until=3;{text}")))
  assert lines and all(x.startswith("phases: phase 1: ") for x in lines), lines
  assert any(words in x for x in lines), lines


def test_what_is_refused_is_allowed_with_its_remedy():
  text = "until=3; optimizer.name=muon; refresh=optimizer"
  assert not faults(phased(("until=1", text)))
  assert not faults(phased())


def test_a_phase_that_cannot_evaluate_an_earlier_one_is_refused():
  plan = "until=1; task.name=guess; task.difficulties=()", "until=3"
  c = phased(plan, **{"sft.steps": 0, "sft.habits.steps": 0, "sft.reuse": "x"})
  assert any("evaluates no held-out rows of 'guess'" in x for x in faults(c))


def test_the_steps_of_the_run_are_those_of_its_phases():
  c = phased(**{"rl.steps": 5})
  with pytest.raises(ConfigError, match="rl.steps = 5: phases end at step 6"):
    config_checks.fields(c)
  c.rl.steps, c.rounds.count, c.generate.keep = 6, 2, "correct"
  with pytest.raises(ConfigError, match="phases have no rounds"):
    config_checks.fields(c)
  small = config_files.smoke(phased())
  config_checks.fields(small)
  assert small.rl.steps == 3


def test_phases_may_be_added():
  old, longer = config.flat(phased()), (*PLAN, "until=9")
  assert not resume_rules.differences(old, config.flat(phased(longer)))
  for other in (PLAN[:2], (*PLAN[:2], "until=9"), ()):
    new = config.flat(phased(other)) if other else config.flat(tiny_config())
    found = resume_rules.differences(old, new)
    assert any(x.startswith("phases: ") for x in found)
  # A run that began without phases cannot go on in phases.
  assert resume_rules.differences(config.flat(tiny_config()), old)


# --- sets of several tasks ---------------------------------------------------


def test_a_text_of_sets():
  found = evaluation_tasks.parse("arithmetic(2+3), countdown")
  assert [x.label for x in found] == ["arithmetic-2+3", "countdown-2+3"]
  assert evaluation_tasks.parse(",".join(x.text for x in found)) == found
  bare = evaluation_tasks.TaskSet("mine")  # its task defines no difficulties
  assert (bare.label, bare.text, bare.levels) == ("mine", "mine(0)", (0,))
  for text, words in (
      ("arithmetic(2+", "is no task"),
      ("countdown(9)", "9 is none of countdown's"),
      ("guess", "several turns"),
      ("files", "sets of its own"),
      ("arithmetic(2),arithmetic(2)", "twice"),
      ("nowhere", "none of arithmetic"),
  ):
    with pytest.raises(ValueError, match=words):
      evaluation_tasks.parse(text)


def test_rows_of_further_tasks_are_verified_by_their_own():
  own, other = tasks.get("arithmetic"), tasks.get("countdown")
  rows = pipelines.RowSource(
      own, "arithmetic-2", (2,), 0, others=(("countdown-2", other, (2,)),)
  )
  sets = held_out.evaluation_sets(rows, 4)
  assert [*sets] == ["arithmetic-2", "countdown-2"]
  assert {x.source for x in sets["countdown-2"]} == {"countdown-2"}
  mine, theirs = sets["arithmetic-2"][0], sets["countdown-2"][0]
  both = evaluation_tasks.Several(own, {"countdown-2": other})
  rng = np.random.default_rng(0)
  good = own.demonstrate(mine, "careful", rng)
  best = other.demonstrate(theirs, "careful", rng)
  pairs = [(best, theirs), (good, mine), ("#", theirs), (best, mine)]
  assert both.begin(pairs)() == [True, True, False, False]
  assert both.answer(best, theirs) == other.answer(best, theirs)
  assert both.DIFFICULTIES == own.DIFFICULTIES


# --- forgetting --------------------------------------------------------------


def line(step, stage="evaluate", **accuracies):
  found = {f"val-core/{k}/acc/mean@1": x for k, x in accuracies.items()}
  return dict(stage=stage, step=step) | found


def test_forgetting_by_hand(tmp_path):
  before, now = tmp_path / "before", tmp_path / "now"
  for place, lines in (
      (before, [line(0, a=0.2), line(5, a=0.6), line(9, a=0.5, validation=1)]),
      (now, [line(0, a=0.5, b=0.1), line(5, a=0.7, b=0.9)]),
  ):
    place.mkdir()
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (place / "metrics.jsonl").write_text(text)
  known = forgetting.best_before(str(before), now)
  assert known == {"val-core/a/acc/mean@1": 0.7}  # b is new, validation chooses
  assert forgetting.best_before("", now) == {}
  found = forgetting.measured(line(9, a=0.45, b=0.3), known, 1)
  assert found == pytest.approx(
      {"val-aux/a/forgetting/mean": 0.25, "val-aux/mean_forgetting": 0.25}
  )
  (text,) = forgetting.texts(found, line(9, a=0.45, b=0.3))
  assert text.startswith("forgetting of a: +25.0 points")
  # A line remembers the best score of earlier runs.
  last = line(9, a=0.45) | found
  assert forgetting.best([last]) == {"val-core/a/acc/mean@1": 0.7}
  better = line(9, a=0.8) | {"val-aux/a/forgetting/mean": -0.1}
  assert forgetting.best([better]) == {"val-core/a/acc/mean@1": 0.8}
  assert scores.scores(last)["forgetting"].text() == "25.0%"
  assert forgetting.measured(line(9, b=0.3), {}, 1) == {}


def test_forgetting_of_a_reward_is_in_its_units(tmp_path, monkeypatch):
  """On the screen, in the report and in the table of the phases."""
  name = "val-core/a/reward/mean@1"
  values = {name: -2.5, "val-core/a/reward/greedy": -2.5}
  found = forgetting.measured(values, {name: -1.25}, 1)
  (text,) = forgetting.texts(found, values)
  assert text.startswith("forgetting of a: +1.25, its best")
  last = dict(stage="evaluate", step=9) | values | found
  assert scores.scores(last)["forgetting"].text() == "1.25"
  monkeypatch.setattr(phases, "merged", lambda *_: [last])
  _, rows = phases.summary(tmp_path, (types.SimpleNamespace(until=9),))
  assert rows == [["a", "-2.5", "+1.25"]]


def test_the_schedule_of_carried_moments_begins_anew():
  tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lambda n: 0.1))
  params = {"a": np.ones(2, np.float32)}
  fresh = old = tx.init(params)
  for _ in range(3):
    _, old = tx.update(params, old, params)
  _, (adam, _, schedule) = continued_run.with_schedule_of(fresh, old)
  assert (int(adam.count), int(schedule.count)) == (3, 0)
  assert np.array_equal(adam.mu["a"], old[1][0].mu["a"]) and adam.mu["a"].any()


# --- the loop ----------------------------------------------------------------


class Run:
  """Stages that only write logs and checkpoints' records."""

  def __init__(self, workdir):
    self.workdir, self.calls, self.die_at = workdir, [], None
    self.tables, self.said = [], []

  def stages(self, c, workdir, screen, stop, stage="all"):
    self.calls.append(workdir.name)
    if len(self.calls) == self.die_at:
      raise Stopped
    place = workdir / "checkpoints" / "rl" / str(c.rl.steps)
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").write_text("{}")
    (place / "host.json").write_text(json.dumps(dict(evaluated=True)))
    number = int(workdir.name[-1])
    names = "ab"[: number + 1]
    lines = [dict(stage="sft", step=1, x=number)]
    for step in (0, c.rl.steps):
      lines += [dict(stage="rl", step=step, loss=number)] * bool(step)
      score = dict.fromkeys(names, (number + 1) / (step + 4))
      lines.append(line(step, **score))
      if number:
        lines[-1] |= {"val-aux/a/forgetting/mean": 0.25 * step}
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (workdir / "metrics.jsonl").write_text(text)
    return workdir.name, "policy"

  def __call__(self, c, **options):
    screen = types.SimpleNamespace(
        say=self.said.append, table=lambda *x: self.tables.append(x)
    )
    stop = threading.Event()
    return phases.run(c, self.workdir, screen, stop, self.stages, **options)


def test_a_loop_goes_on_where_it_was_stopped(tmp_path):
  whole = Run(tmp_path / "whole")
  assert whole(phased()) == ("phase-2", "policy")
  assert whole.calls == ["phase-0", "phase-1", "phase-2"]
  want = (whole.workdir / "metrics.jsonl").read_text()
  for die_at in (1, 2, 3):
    run = Run(tmp_path / f"stopped-{die_at}")
    run.die_at = die_at
    with pytest.raises(Stopped):
      run(phased())
    run.die_at = None
    assert run(phased())[1] == "policy"
    assert run.calls[die_at:] == whole.calls[die_at - 1 :]
    assert (run.workdir / "metrics.jsonl").read_text() == want
  whole(phased())
  assert whole.calls[3:] == ["phase-2"]  # for its result
  whole(phased((*PLAN, "until=9")))
  assert whole.calls[4:] == ["phase-3"]


def test_the_log_has_the_steps_of_the_whole_run(tmp_path):
  run = Run(tmp_path)
  run(phased())
  lines = [
      json.loads(x)
      for x in (tmp_path / "metrics.jsonl").read_text().splitlines()
  ]
  found = [(x["stage"], x["step"]) for x in lines]
  assert found == [
      *[("sft", 1), ("evaluate", 0), ("rl", 2), ("evaluate", 2)],
      *[("rl", 3), ("evaluate", 3), ("rl", 6), ("evaluate", 6)],
  ]
  boundary = lines[3]  # of the policy that both phases evaluate
  assert boundary["val-core/a/acc/mean@1"] == pytest.approx(1 / 6)
  assert boundary["val-core/b/acc/mean@1"] == pytest.approx(2 / 4)
  assert not [x for x in boundary if "forgetting" in x]
  ((title, head, rows),) = run.tables
  assert head == ["", "step 2", "step 3", "step 6", "forgetting"]
  assert [x[0] for x in rows] == ["a", "b"] and rows[0][-1] == "+75.0 points"
  assert rows[1] == ["b", "50.0%", "40.0%", "42.9%", "–"]


def test_a_single_stage_belongs_to_a_phase(tmp_path):
  run = Run(tmp_path)
  with pytest.raises(ConfigError, match="--workdir=.*phase-0 without --config"):
    run(phased(), stage="evaluate")
  assert not run.calls and not pathlib.Path(tmp_path / "config.json").exists()
