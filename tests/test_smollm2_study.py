"""The study of a pretrained model: what is read off its runs."""

import json

from bench import smollm2 as study
from configs import smollm2


def run(row, seed, first, last, spread=0.0):
  scores = [dict.fromkeys(study.COLUMNS, x) for x in (first, last)]
  for x in scores:
    x["pass@8"] += spread * x["mean@8"]
    x["truncated"] = 0.0
  curve = [first, last, last]
  return dict(
      row=row,
      seed=seed,
      steps=[0, 3],
      evaluations=scores,
      validation=[[0, first], [3, last]],
      accuracy=curve,
      length=curve,
      entropy=curve,
      step_seconds=curve,
      minutes=3.0,
      memory_gib=4.0,
  )


def result(last=0.6, control=0.1, seeds=study.SEEDS):
  runs = [run(study.RL, x, 0.1, last, 0.2) for x in seeds]
  if seeds:
    others = (study.SHUFFLED, study.SFT)
    runs += [run(x, study.SEEDS[0], 0.1, control) for x in others]
  shown = dict(response="7.", correct=1)
  responses = dict(question="3 + 4?", answer="7", before=shown, after=shown)
  return dict(runs=runs, responses=[responses], environment={})


def test_verdicts_by_hand():
  assert [x[2] for x in study.verdicts(result())] == ["holds"] * 4
  few = [x[2] for x in study.verdicts(result(seeds=study.SEEDS[:1]))]
  assert few == ["open", "holds", "holds", "open"]
  worse = [x[2] for x in study.verdicts(result(last=0.2))]
  assert worse == ["refuted", "refuted", "refuted", "holds"]
  fell = [x[2] for x in study.verdicts(result(last=0.05))]
  assert fell[3] == "refuted"
  assert [x[2] for x in study.verdicts(result(seeds=()))] == ["open"] * 4


def test_page_and_figure_have_each_run():
  page = "\n".join(study.page(result()))
  for row in (study.RL, study.SHUFFLED, study.SFT):
    assert f"| {row} | {study.SEEDS[0]} | 3 |" in page
  assert "| 3 + 4? | 7 | 7. (right) | 7. (right) |" in page
  held_out, training = study.figure(result())["blocks"][0]["panels"]
  assert [len(x["series"]) for x in (held_out, training)] == [3, 3]


def test_trl_is_told_what_the_config_says():
  c, options = smollm2.get_config(), study.trl_options(0)
  rows = options["per_device_train_batch_size"]
  assert rows * options["gradient_accumulation_steps"] == c.rollout.batch
  assert options["epsilon_high"] == 0.28 and options["learning_rate"] == 1e-5
  first = study.trl_rows()[0]["prompt"]
  assert [x["role"] for x in first] == ["system", "user"]


def test_the_row_of_trl_has_its_log_and_the_evaluation(tmp_path, monkeypatch):
  monkeypatch.setattr(study, "directory", lambda row, seed: tmp_path)
  step = {"reward": 0.5, "entropy": 0.3, "step_time": 40.0}
  step["completions/mean_length"] = 17.0
  found = dict(log=[step] * 3, seconds=120.0, cpu_seconds=180.0)
  found |= dict(memory_gib=5.0)
  (tmp_path / "run.json").write_text(json.dumps(found))
  scores = {study.CORE + name: 0.5 for name in study.COLUMNS}
  place = tmp_path / "evaluated" / "evaluation-newest.json"
  place.parent.mkdir()
  place.write_text(json.dumps(scores | {study.TRUNCATED: 0.1}))
  row = study.read_trl(study.TRL, study.SEEDS[0])
  assert row["steps"] == [3]
  assert (row["minutes"], row["cpu_minutes"]) == (2, 3)
  assert row["evaluations"][0]["mean@8"] == 0.5
