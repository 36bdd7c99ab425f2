"""The grid of four switches: its plan, its effects by hand, and its page."""

import json

import pytest
from switch_runs import result

from studies.four_switches import run as study

pytestmark = pytest.mark.slow


def test_each_combination_runs_on_each_seed_from_one_sft():
  jobs = study.plan(study.SEEDS[:2])
  runs = [x for x in jobs if x.row]
  assert len(jobs) - len(runs) == 2 and len(runs) == 32
  assert len({x.row for x in runs}) == 16
  by_row = {x.row: x.fields for x in runs if x.seed == study.SEEDS[0]}
  off, on = by_row["all off"], by_row[", ".join(study.SWITCHES)]
  assert off["surrogate.args.clip_high"] == 0.2
  assert off["reward.overlong_buffer"] == 0
  assert not off["dynamic_sampling.enabled"]
  assert off["reduction.name"] == "seq_mean_token_mean"
  assert on["surrogate.args.clip_high"] == 0.28
  assert on["reward.overlong_buffer"] == 16
  assert on["dynamic_sampling.enabled"]
  assert on["reduction.name"] == "token_mean"


def test_effects_by_hand():
  runs = study.complete(result()["runs"])
  one = study.contrast(runs, study.FINAL, "Dynamic Sampling")
  assert [*one.values()] == pytest.approx([6.0] * 3)
  token = study.contrast(runs, study.FINAL, "Token-Level Loss")
  assert [*token.values()] == pytest.approx([2.0] * 3)  # half of the cells
  both = study.contrast(
      runs, study.FINAL, "Token-Level Loss", "Overlong Shaping"
  )
  assert [*both.values()] == pytest.approx([-4.0] * 3)
  assert study.contrast(
      runs, study.LENGTH, "Clip-Higher", "Dynamic Sampling"
  ) == pytest.approx(dict.fromkeys(study.SEEDS[:3], 0.0))
  together = study.gap(runs, study.FINAL, (1,) * 4, (0,) * 4)
  assert [*together.values()] == pytest.approx([6.0] * 3)


def test_seeds_that_lack_runs_count_in_no_effect():
  known = result(left_out=1)
  assert {x["seed"] for x in study.complete(known["runs"])} == {
      *study.SEEDS[:2]
  }
  (note,) = study.notes(known)
  assert note.startswith("47 of 48 runs have been made; effects are of the 2")


@pytest.mark.parametrize(
    ("values", "sign", "verdict"),
    [
        ([1.0, 1.1, 0.9], 1, "held"),
        ([1.0, 1.1, 0.9], -1, "refuted"),
        ([1.0, -1.1, 0.9], 1, "open"),
        ([1.0], 1, "open: fewer than two seeds"),
    ],
)
def test_verdicts(values, sign, verdict):
  assert study._verdict(dict(enumerate(values)), sign) == verdict


def test_the_page_says_what_moves_what():
  lines = "\n".join(study.page(result()))
  assert "Dynamic Sampling moves the held-out accuracy most (+6.0" in lines
  assert "Clip-Higher moves the entropy most (+0.100" in lines
  assert "collapsed on 3 of 3 seeds" in lines and "| healthy |" in lines
  words = [x[-1] for x in study.verdicts(result())]
  assert words == ["held", "held", "open", "held", "held", "refuted"]


def test_the_interactive_page_has_all_runs():
  text = study.interactive(result())
  data = text.split('id="data">')[1].split("</script>")[0]
  found = json.loads(data)
  assert len(found["runs"]) == 48 and "@DATA@" not in text
  assert found["effects"]["entropy, nats per token"]["Clip-Higher"][
      0
  ] == pytest.approx(0.1)
