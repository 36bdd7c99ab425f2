"""The table of all algorithms: its plan, its ranks, its page."""

import json

import numpy as np
import pytest

from bench import results
from studies.table import ranks, run as table

pytestmark = pytest.mark.slow


@pytest.fixture
def at_root(monkeypatch):
  monkeypatch.chdir(results.ROOT)


def test_pairs_of_rows_are_compared_by_seed():
  runs = []
  for seed, noise in enumerate((0.01, 0.02, 0.03)):
    for row, last in (("rloo", 0.5 - 2 * noise), ("ppo", 0.6 - noise)):
      runs.append(_run("arithmetic", row, seed, last, 100))
  line = table.pairs(dict(runs=runs))[-2]
  assert line == "| rloo | ppo | -12.0 ± 2.5 | +0.0 ± 0.0 | 3 |"
  assert table.pairs(dict(runs=[])) == []


def test_ranks_of_rows_that_differ_and_of_rows_that_do_not():
  rng = np.random.default_rng(2)
  seed_effect_N1 = rng.normal(0, 5, (32, 1))  # shared: cancels in pairs
  values_NK = seed_effect_N1 + rng.normal([0, 0, 4], 1, (32, 3))
  found = ranks.ranks(values_NK)
  assert found.low_K.tolist() == [2, 2, 1]
  assert found.high_K.tolist() == [3, 3, 1]
  assert not found.different_KK[0, 1] and found.different_KK[0, 2]
  # More than Student's 2.04 for one pair: the intervals hold for all three.
  assert 2.2 < found.quantile < 3.2
  assert ranks.ranks(values_NK[: ranks.LEAST - 1]) is None


def test_ranks_rarely_exclude_a_true_rank():
  rng, wrong = np.random.default_rng(1), 0
  for _ in range(40):
    found = ranks.ranks(rng.normal(0, 1, (16, 4)), samples=300)
    wrong += found.different_KK.any()
  assert wrong <= 6  # 5% of 40 are 2


def _run(task, row, seed, last, tokens):
  return dict(
      task=task,
      row=row,
      seed=seed,
      environment=0,
      seconds=3600,
      steps=[0, 25, 30],
      tokens=[0, tokens, 1.2 * tokens],
      # Steps 0 and 30 are of other prompts than step 25.
      accuracy=[0.9, last, last],
      best=[0.9, 1, 1],
  )


def _start(seed):
  run = dict(task="calculator", row=table.START, seed=seed, environment=0)
  # Of these prompts is the evaluation after the step that changes nothing.
  return run | dict(
      steps=[0, 1, 2], tokens=[0, 9, 18], accuracy=[0.9, 0.2, 0.9]
  )


def _result(count):
  runs = []
  for seed in range(count):
    runs.append(_start(seed))
    for i, row in enumerate(table.rows("calculator")):
      tokens = 2000 if row == "dapo" else 1000
      last = 0.5 + 0.01 * i + 0.001 * ((7 * seed + i * seed * seed) % 5)
      runs.append(_run("calculator", row, seed, last, tokens))
  environments = [{"git commit": "abc"}]
  return dict(seeds=list(range(9)), environments=environments, runs=runs)


def test_the_page_of_a_part_of_the_seeds(at_root):
  text = "\n".join(table.page(_result(2)))
  assert "**34 of 477 runs are made**" in text
  assert "calculator 2 of 9 seeds" in text and "arithmetic 0 of 9" in text
  assert "max_rl is not defined on calculator" in text
  assert "| vapo | 2 | 61." in text and "## countdown" not in text
  # Two seeds have no ranks. DAPO is halfway at the tokens of the others.
  (dapo,) = [x for x in text.split("\n") if x.startswith("| dapo |")]
  assert dapo.split(" | ")[3:5] == ["–", "–"]
  assert dapo.split(" | ")[5].startswith("40.")
  text = "\n".join(table.page(_result(6)))
  # The last row has the highest accuracy.
  (last,) = [x for x in text.split("\n") if x.startswith("| vespo |")]
  assert last.split(" | ")[3].startswith("+6.") and " ± " in last
  assert last.split(" | ")[4] == "1 to 1"


def test_a_row_that_is_missing_leaves_the_seeds_of_all_rows():
  result = _result(3)
  result["runs"].pop()  # the last row of seed 2
  _, by_row = table.values(result, "calculator", "steps")
  assert table.complete(by_row)[1] == [0, 1]


def test_a_row_of_few_seeds_takes_no_ranks_from_the_others():
  result = _result(7)
  result["runs"] = [
      x for x in result["runs"] if x["row"] != "vespo" or x["seed"] < 2
  ]
  text = "\n".join(table.page(result))
  line = {x.split(" | ")[0][2:]: x.split(" | ") for x in text.split("\n")}
  assert line["vespo"][1] == "2" and line["vespo"][4] == "–"
  assert line["dppo"][1] == "7" and line["dppo"][4] == "1 to 1"
  assert "calculator, equal steps: dapo has the rank 2 to 2" in text
  grpo = "points of the losses from grpo, with intervals of all pairs of rows"
  assert grpo in text and "dppo +10.0 ± " in text and "vespo +" not in text


def test_accuracy_at_equal_tokens_is_of_one_set_of_prompts():
  """Interpolated on the curve and not below it, from the SFT model on."""
  curve = dict(
      steps=[0, 5, 10, 25, 30],
      tokens=[0, 100, 200, 400, 500],
      # Steps 0 and 30 are of other prompts.
      accuracy=[0.9, 0.8, 0.9, 0.92, 0.1],
  )
  runs = [
      _start(0),
      _run("calculator", "dapo", 0, 0.5, 0) | curve,
      _run("calculator", "grpo", 0, 0.7, 150) | dict(tokens=[0, 150, 160]),
      # Its value pretraining takes more tokens than the comparison.
      _run("calculator", "vapo", 0, 0.7, 0) | dict(tokens=[151, 170, 180]),
      _run("calculator", "ppo", 1, 0.7, 150),  # START of seed 1 is missing
  ]
  result = dict(seeds=[0, 1], environments=[{"git commit": "abc"}], runs=runs)
  end, by_row = table.values(result, "calculator", "tokens")
  assert end == 150 and by_row["grpo"] == {0: 0.7}
  assert 0.85 < by_row["dapo"][0] < 0.9  # a straight line has 0.85
  assert by_row["vapo"] == {0: 0.2} and by_row["ppo"] == {}
  end, by_row = table.values(result, "calculator", "steps")
  assert end == 30 and by_row["ppo"] == {1: 0.7}
  assert by_row["dapo"][0] == pytest.approx(0.1)


def test_the_plan_of_a_seed_shares_models_and_skips_recorded_runs(at_root):
  planned = table.plan(7)
  count = {task: sum(bool(x.row) for x in y) for task, y in planned.items()}
  assert count == dict(arithmetic=19, countdown=19, calculator=18)
  (start,) = [x for x in planned["countdown"] if x.row == table.START]
  assert start.fields["rl.steps"] == 2 and start.fields["evaluate.every"] == 1
  assert start.fields["evaluate.prompts"] == 384
  steps = [x for x in start.args if x.startswith("--config.rl.steps")]
  assert steps[-1] == "--config.rl.steps=2"  # the last one counts
  assert start.args[-1] == f"--workdir={start.workdir}"
  assert start.workdir.name == "start-7" and start.bases
  bases = {x.bases[0] for y in planned.values() for x in y if x.row}
  assert len(bases) == 3  # one SFT model a task
  dapo = {t: x for t, y in planned.items() for x in y if x.row == "dapo"}
  assert dapo["countdown"].fields["reward.overlong_buffer"] == 16
  assert dapo["calculator"].fields["dynamic_sampling.signal"] == "reward"
  sapo = [x for x in planned["calculator"] if x.row == "sapo"]
  assert sapo[0].fields["surrogate.name"] == "sapo"
  (grpo,) = [x for x in planned["countdown"] if x.row == "grpo"]
  assert grpo.fields["reward.overlong_buffer"] == 0
  recorded = {("countdown", "grpo", 7): {}}
  wanted = table.missing(planned, recorded)
  assert len(wanted) == sum(map(len, planned.values())) - 1
  assert grpo not in wanted


def test_only_known_rows_are_asked_for(at_root, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["table", "--rows", "no_such_row"])
  with pytest.raises(SystemExit):
    table.main()
  assert "no_such_row" in capsys.readouterr().err


def test_new_runs_join_the_runs_of_the_repository(tmp_path, monkeypatch):
  monkeypatch.setattr(results, "folder", lambda name: tmp_path)
  monkeypatch.setattr(table, "NEW", tmp_path / "new.json")
  old, new = _result(2), _result(3)
  new["environments"] = [{"git commit": "other"}]
  (tmp_path / "table.json").write_text(json.dumps(old))
  assert table.data() == old
  new["runs"] = [x for x in new["runs"] if x["seed"] != 0]
  (tmp_path / "new.json").write_text(json.dumps(new))
  found = table.data()
  commits = [x["git commit"] for x in found["environments"]]
  by_seed = {x["seed"]: commits[x["environment"]] for x in found["runs"]}
  assert by_seed == {0: "abc", 1: "abc", 2: "other"}
  assert len(found["runs"]) == 54


def test_a_run_that_is_about_to_end_is_not_read_yet(
    at_root, monkeypatch, tmp_path
):
  """Another run may be collected between its last line and its seconds."""
  job = next(x for x in table.plan(7)["arithmetic"] if x.row == "grpo")
  job = job._replace(workdir=tmp_path)
  monkeypatch.setattr(results, "run_environment", lambda _: {})
  score = "val-core/arithmetic/acc"
  lines = [
      {"stage": "evaluate", "step": step, f"{score}/mean@4": 0.5, "tokens": 1}
      | {"val-core/arithmetic/acc/pass@4": 0.6}
      for step in (0, 30)
  ]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "metrics.jsonl").write_text(text)
  job.update_record(args=[])
  assert table.read("arithmetic", job) is None
  job.update_record(seconds=9.04)
  found = table.read("arithmetic", job)
  assert (found["seconds"], found["accuracy"]) == (9.0, [0.5, 0.5])
