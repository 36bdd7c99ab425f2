"""Held-out sets of several tasks."""

import numpy as np
import pytest

from rl_reason import tasks
from rl_reason.data import held_out, pipelines
from rl_reason.tasks import evaluation_tasks


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
