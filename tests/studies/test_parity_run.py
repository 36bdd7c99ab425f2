"""The same GRPO run by TRL, tunix and this package: what all are given."""

import itertools
import json

import numpy as np
import pytest

from bench import results
from bench.peers import parity_reward
from rl_reason.checks import config_checks
from studies.parity_run import run as parity_run
from studies.trl_defaults import run as trl_defaults

pytestmark = pytest.mark.slow

TRL = results.read("trl_defaults")


@pytest.fixture
def place(monkeypatch, tmp_path):
  """No model is made."""
  monkeypatch.setattr(parity_run, "PLACE", tmp_path)
  monkeypatch.setattr(parity_run, "make_model", lambda: tmp_path / "model")


def test_both_get_the_same_value_of_a_knob(place):
  """studies/trl_defaults/fields.toml tells which field is which."""
  known = trl_defaults.fields()
  others = {"bf16", "gradient_checkpointing"}  # the other way round
  for _, (field, value), (name, theirs) in parity_run.KNOBS:
    assert name in TRL["defaults"]
    assert known[name]["field"] == field
    if name not in {*others, "max_steps"}:
      assert value == theirs
  here, there = parity_run.fields(1), parity_run.options(1)
  # TRL counts optimizer steps.
  assert there["max_steps"] == here["rl.steps"] * here["updates.epochs"]
  assert not there["bf16"] and here["model.dtype"] == "float32"


def test_the_fields_of_all_rows_are_accepted(place):
  for row in (parity_run.OURS, *parity_run.CONTROLS, parity_run.OURS_FIXED):
    fields = parity_run.fields(3, row)
    c, _ = config_checks.checked("configs/trl_grpo.py", fields)
    assert c.reward.functions.endswith(":correct")
    assert {**fields, **parity_run.CONTROLS.get(row, {})} == fields
  there = parity_run.options(3, parity_run.TRL_FIXED)["learning_rate"]
  assert (
      there == fields["optimizer.lr"] < parity_run.options(3)["learning_rate"]
  )


def test_runs_of_another_checkpoint_are_not_mixed(monkeypatch, tmp_path):
  """Nor lost: the data of the repository stay as they are."""
  monkeypatch.setattr(parity_run, "PLACE", tmp_path / "none")
  before = dict(weights="1f95")
  assert parity_run._weights(before, collect=True) == "1f95", "no model here"
  (tmp_path / "model.safetensors").write_bytes(b"other")
  monkeypatch.setattr(parity_run, "make_model", lambda: tmp_path)
  with pytest.raises(SystemExit, match="began with 1f95: they cannot be mixed"):
    parity_run._weights(before, collect=False)
  found = parity_run._weights({}, collect=False)
  assert parity_run._weights(dict(weights=found), collect=False) == found


@pytest.mark.parametrize("seeds", [0, 1])
def test_a_page_of_too_few_seeds_is_refused(seeds):
  result = results.read("parity_run")
  known = result["seeds"][:seeds]
  result["runs"] = [x for x in result["runs"] if x["seed"] in known]
  with pytest.raises(SystemExit, match=f"two seeds .* there are {seeds}: "):
    parity_run.page(result)


def test_the_seeds_before_and_after_the_look_are_told_apart():
  early_NS = np.full((5, 40), 0.02) + np.arange(5)[:, None] * 1e-3
  late_NS = -early_NS[:4]
  both_NS = np.concatenate([early_NS, late_NS])
  text = parity_run._halves(both_NS, np.zeros_like(both_NS))
  assert "After the first 5 seeds it was +2.2 ± 0.2 points" in text
  assert "in the other 4," in text and "it is -2.1 ± 0.2." in text
  assert parity_run._halves(early_NS, np.zeros_like(early_NS)) == ""


def test_a_seed_fixes_the_order_of_different_prompts():
  orders = [parity_run.prompts(seed) for seed in (1, 1, 2)]
  assert orders[0] == orders[1] != orders[2]
  sets = [{x["prompt"] for x in order} for order in orders]
  count = parity_run.ROLLOUTS * parity_run.PROMPTS
  assert len(sets[0]) == count and sets[0] == sets[2]
  held_out = {x["question"] for x in parity_run.problems()["evaluate"]}
  assert not held_out & sets[0]


def test_the_verifier_wants_one_mark_and_the_answer_after_it():
  texts = ["1+2=3;#3", "#3", "3", "#03", "#3 ", "#3#3", "1+2=3;#4"]
  rewards = parity_reward.correct(texts, ["3"] * 7, prompts=None)
  assert rewards == [1, 1, 0, 0, 0, 0, 0]


def test_a_response_to_a_prompt_of_another_rollout_is_found(tmp_path):
  wanted = parity_run.prompts(1)

  def write(step, prompt):
    line = dict(stage="rl", step=step, prompt=prompt)
    (tmp_path / "samples.jsonl").write_text(json.dumps(line) + "\n")

  second = wanted[parity_run.PROMPTS]["prompt"]
  write(2, second)
  parity_run.check_prompts(tmp_path, 1)
  for step, prompt in ((1, second), (2, wanted[0]["prompt"])):
    write(step, prompt)
    with pytest.raises(SystemExit, match="is not of"):
      parity_run.check_prompts(tmp_path, 1)


def test_the_steps_of_a_rollout_are_merged():
  """TRL logs what sampling measures in the first step of a rollout only."""
  steps = [dict(reward=0.5, entropy=1.0), dict(entropy=3.0)]
  found = parity_run.of_rollouts([*steps, *steps])
  assert found == [dict(reward=0.5, entropy=2.0)] * 2


# --- statistics --------------------------------------------------------------


def test_the_permutation_test_is_of_all_swaps():
  """Against a loop over the swaps."""
  rng = np.random.default_rng(0)
  one_NS, other_NS = rng.normal(size=(2, 5, 7))
  one_NS += 1.2
  areas = []
  for swaps in itertools.product([False, True], repeat=5):
    swap_N1 = np.array(swaps)[:, None]
    pair = np.where(swap_N1, other_NS, one_NS), np.where(
        swap_N1, one_NS, other_NS
    )
    areas.append(abs(pair[0].mean(0) - pair[1].mean(0)).mean())
  assert areas[0] == pytest.approx(parity_run.area(one_NS, other_NS))
  share = np.mean(np.array(areas) >= areas[0] - 1e-12)
  assert 2 / 32 < share < 0.5  # neither the smallest possible nor a tie
  assert parity_run.permutation_test(one_NS, other_NS) == share


def test_curves_that_cross_differ():
  """Their means are equal: only the distance of the curves sees it."""
  rng = np.random.default_rng(0)
  noise_NS = 0.01 * rng.normal(size=(2, 8, 40))
  rise_S = np.linspace(0, 1, 40)
  found = parity_run.compare(rise_S + noise_NS[0], rise_S[::-1] + noise_NS[1])
  overlap, difference, permutations = parity_run.verdicts(found)
  assert difference and not overlap and not permutations
  assert found["area"] == pytest.approx(0.5, abs=0.05)
  assert found["p"] == 2 / 2**8
  same = parity_run.compare(rise_S + noise_NS[0], rise_S + noise_NS[1])
  assert all(parity_run.verdicts(same))
  few = parity_run.compare(rise_S + noise_NS[0, :4], noise_NS[1, :4])
  assert parity_run.verdicts(few) == [False, False, None]  # p is 1 in 8


def test_the_detectable_difference_is_detected_four_times_in_five():
  rng = np.random.default_rng(0)
  one_NS, other_NS = rng.normal(size=(2, 16, 10))
  detectable = parity_run.compare(one_NS, other_NS)["detectable"]
  spread = (one_NS - other_NS).mean(1).std(ddof=1)
  hits = 0
  for _ in range(400):
    again_NS = rng.normal(detectable, spread, (16, 10)) * np.ones((1, 10))
    again_NS[:] = again_NS[:, :1]  # the same in all rollouts
    mean, half = parity_run.comparison.interval(again_NS.mean(1))
    hits += abs(mean) > half
  assert 0.7 < hits / 400 < 0.9


def test_eos_is_the_cause_where_its_interval_has_the_difference():
  """Each is the mean and half the width of a 95% interval."""
  assert "not the cause" in parity_run.cause((0.001, 0.002), (0.006, 0.005))
  assert "undecided" in parity_run.cause((0.003, 0.004), (0.006, 0.005))
  assert "explains" in parity_run.cause((0.005, 0.002), (0.006, 0.005))
