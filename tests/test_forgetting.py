"""Held-out sets of several tasks, and forgetting by hand."""

import json

import numpy as np
import optax
import pytest

from rl_reason import tasks
from rl_reason.data import held_out, pipelines
from rl_reason.evaluation import forgetting
from rl_reason.report import scores
from rl_reason.stages import continued_run
from rl_reason.tasks import evaluation_tasks

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


def test_forgetting_of_a_reward_is_in_its_units():
  """On the screen and in the report."""
  name = "val-core/a/reward/mean@1"
  values = {name: -2.5, "val-core/a/reward/greedy": -2.5}
  found = forgetting.measured(values, {name: -1.25}, 1)
  (text,) = forgetting.texts(found, values)
  assert text.startswith("forgetting of a: +1.25, its best")
  last = dict(stage="evaluate", step=9) | values | found
  assert scores.scores(last)["forgetting"].text() == "1.25"


def test_the_schedule_of_carried_moments_begins_anew():
  tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lambda n: 0.1))
  params = {"a": np.ones(2, np.float32)}
  fresh = old = tx.init(params)
  for _ in range(3):
    _, old = tx.update(params, old, params)
  _, (adam, _, schedule) = continued_run.with_schedule_of(fresh, old)
  assert (int(adam.count), int(schedule.count)) == (3, 0)
  assert np.array_equal(adam.mu["a"], old[1][0].mu["a"]) and adam.mu["a"].any()
