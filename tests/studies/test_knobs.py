"""The grid of four knobs: its plan, effects by hand, and its page."""

import collections

import pytest
from conftest import ROOT
from knob_runs import result

from bench import results
from studies.knobs import run as knobs

pytestmark = pytest.mark.slow


def test_each_third_of_the_grid_is_balanced():
  """Each pair of settings of two knobs occurs equally often."""
  runs = result()["runs"]
  assert len(runs) == 243
  for third in range(3):
    cells = [x["cell"] for x in runs if sum(x["cell"]) % 3 == third]
    for i in range(4):
      for j in range(i):
        count = collections.Counter((x[i], x[j]) for x in cells)
        assert len(count) == 9 and len(set(count.values())) == 1


def test_settings_are_fields_that_work(monkeypatch):
  """Corners of the grid; SFT comes first and is shared by the cells."""
  monkeypatch.chdir(ROOT)
  for name, settings in knobs.KNOBS.items():
    first, *_, last = settings
    kept = {first: settings[first], last: settings[last]}
    monkeypatch.setitem(knobs.KNOBS, name, kept)
  monkeypatch.setattr(knobs, "SEEDS", knobs.SEEDS[:1])
  base, *runs = knobs.plan()
  assert not base.row and {x.bases for x in runs} == {(base.workdir,)}
  assert len({x.workdir for x in runs}) == len(runs) == 16
  fields = {tuple(knobs.indices(x)): x.fields for x in runs}
  found = fields[0, 1, 1, 1]
  assert found["rollout.group_size"] == 2
  assert found["surrogate.args.clip_low"] == 0.2
  assert found["surrogate.args.clip_high"] == 0.2
  assert (found["reward.correct"], found["reward.functions"]) == (0, "steps")
  assert found["reward.overlong_coef"] == 2
  assert fields[1, 1, 0, 0]["reward.overlong_buffer"] == 0


def test_effects_by_hand():
  """An additive effect is the same in one third of the grid."""
  for count in (243, 81):
    runs = knobs.balanced(result(count)["runs"])
    longer = knobs.by_seed(
        runs, knobs.OUTCOMES[2], "length punishment", "coefficient 2"
    )
    assert [*longer.values()] == [2, 2, 2]
  runs = result()["runs"]
  slow = knobs.by_seed(runs, knobs.EARLY, "group size", "32")
  # Not in the two ninths whose runs have failed.
  assert [*slow.values()] == pytest.approx([-0.1 * 7 / 9] * 3)
  assert [*knobs.by_seed(runs, knobs.FINAL, "group size", "32").values()] == (
      pytest.approx([0.0] * 3)
  )
  proxy = knobs.by_seed(
      runs, knobs.FINAL, "reward shape", "steps alone", length_punishment="none"
  )
  assert [*proxy.values()] == pytest.approx([-0.1] * 3)
  text = {x[0][:9]: x[1:] for x in knobs.verdicts(result())}
  assert text["Steps alo"] == ["-10.0\xa0±\xa00.0", "held"]
  assert text["Groups of"] == ["-7.8\xa0±\xa00.0", "held"]
  for name in ("The verdi", "A clip bo", "A length "):
    assert text[name][1] == "held"
  # Without the difference between seeds, but with the other sign.
  upside = result()
  for run in upside["runs"]:
    run["accuracy"] = [1 - x for x in run["accuracy"]]
  found = [x[2] for x in knobs.verdicts(upside)]
  assert found == ["refuted", "held", "refuted", "refuted", "refuted"]


def test_interactions_by_hand():
  """Steps alone end at .1 under a punishment, and .1 lower without one."""
  page = knobs.page(result())
  (row,) = (x for x in page if x.startswith("| reward") and "-71" in x)
  cells = row.split(" | ")
  assert cells[2:] == [
      "-10.0 ± 0.0",
      *["-71.0 ± 2.5"] * 2,
      "-61.0 ± 2.5",
      "-61.0 ± 2.5 |",
  ]
  (text,) = (x for x in page if "interactions with it" in x)
  assert text.endswith(
      "excludes 0 for 2 of the 12 interactions (reward shape steps alone at"
      " coefficient 1, reward shape steps alone at coefficient 2)."
  )


def test_partial_data_are_said_to_be_partial():
  data = result(100)
  assert len(knobs.balanced(data["runs"])) == 81
  page = "\n".join(knobs.page(data))
  assert "- 100 of 243 runs have been made" in page
  assert "of the 81 runs that complete a balanced third" in page
  one = "\n".join(knobs.page(result(27)))
  assert one.count("one seed") == 2 * 4 * 4 + 2 * 3 * 5
  assert one.count("open: fewer than two seeds") == 5
  nothing = "\n".join(knobs.page(result(0) | dict(environment={})))
  assert "- 0 of 243 runs" in nothing


def test_the_committed_data_are_of_the_plan():
  data = results.read(knobs.NAME)
  path = results.folder(knobs.NAME) / f"{knobs.NAME}.json"
  assert path.stat().st_size < 1_500_000
  assert tuple(data["seeds"]) == knobs.SEEDS
  assert data["knobs"] == {k: list(x) for k, x in knobs.KNOBS.items()}
  seen = [(x["seed"], *x["cell"]) for x in data["runs"]]
  assert len(set(seen)) == len(seen)
