"""Continual learning: forgetting by hand, the state, and rules."""

import json
import types

import numpy as np
import optax
import pytest
import tiny_session

from rl_reason.base import feature
from rl_reason.checks import file_checks, path_contents, rules
from rl_reason.features.continual_learning import continued_run, forgetting
from rl_reason.monitoring import display
from rl_reason.report import scores


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


def test_a_run_that_is_not_there_is_refused(tmp_path):
  c = tiny_session.tiny_config()
  c.rl.init = str(tmp_path / "gone")
  faults = rules.Faults()
  file_checks.check(c, "all", faults)
  [line] = faults.lines
  assert line.startswith("rl.init = ") and "no such directory" in line


def test_the_content_of_the_run_before_is_its_checkpoints_of_rl(tmp_path):
  """Evaluations add to its directory, and a run that reads it still resumes."""
  c = tiny_session.tiny_config()
  place = tmp_path / "before"
  (place / "checkpoints" / "rl").mkdir(parents=True)
  (place / "checkpoints" / "rl" / "1").write_text("a")
  c.rl.init = str(place)
  before = path_contents.content(c, "rl.init")
  (place / "report.html").write_text("later")
  assert path_contents.content(c, "rl.init") == before != ""
  (place / "checkpoints" / "rl" / "1").write_text("b")
  assert path_contents.content(c, "rl.init") != before


def test_each_evaluation_measures_forgetting_and_says_it(tmp_path, capsys):
  c = tiny_session.tiny_config()
  c.rl.init = str(tmp_path)
  (tmp_path / "metrics.jsonl").write_text(json.dumps(line(5, a=0.6)) + "\n")
  output = types.SimpleNamespace(
      workdir=tmp_path / "now", display=display.Display(True)
  )
  session = types.SimpleNamespace(output=output)
  loop = feature.Loop(*(None,) * len(feature.Loop._fields))
  loop = loop._replace(session=session)
  assert feature.set_fields(c, "all_sets")
  found = feature.start(c, loop).evaluated(line(2, a=0.5), 2)
  assert found["val-aux/a/forgetting/mean"] == pytest.approx(0.1)
  assert "forgetting of a: +10.0 points" in capsys.readouterr().out
