"""The page of a run: complete, self-contained, small, and safe to open."""

import json
import re

import pytest
from conftest import data_of_page

from rl_reason.report import environment, page, scores

LIMIT = 2_000_000
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "]]>&lt;b&gt;&#60;",
    "\u2028\u2029'\"`${1+1}\\u003c",
    "@DATA@",
    "\ud800 \x00 \u202e",
)
CONFIG = {
    "task.name": "toy",
    "task.difficulties": [1, 2],
    "rl.steps": 4,
    "advantage.name": "group_norm",
    "advantage.args.lam": float("inf"),
    "loss.positive_nll": 3.0,
    "reward.shuffle": True,
    "evaluate.interim_prompts": 5,
}


def sft_line(stage, step):
  return {"stage": stage, "step": step, "sft/loss": 1 / step}


def evaluation(step, accuracy, best, stage="evaluate"):
  out = {"stage": stage, "step": step}
  for name, value in {
      "mean@4": accuracy,
      "greedy": accuracy + 0.1,
      "maj@8": accuracy,
      "pass@1": accuracy,
      "pass@8": best,
  }.items():
    out[f"val-core/toy/acc/{name}"] = value
    out[f"val-core/toy/acc/{name}/ci95"] = 0.0123456789
  out["val-aux/toy/difficulty_2/acc/mean@4"] = accuracy
  out["val-aux/response_length/mean"] = 10.0 + step
  out["val-aux/response_length/clip_ratio"] = 0.0
  return out


def rl_line(step):
  return {
      "stage": "rl",
      "step": step,
      "train/accuracy": 0.1 + 1 / (step + 7),
      "train/all_correct": 0.125,
      "train/all_incorrect": 0.5,
      "train/groups_with_signal": 2,
      "critic/rewards/mean": -0.123456789 / step,
      "response_length/mean": 13.4296875,
      "actor/entropy": None if step == 2 else 0.418299496,
      "actor/ppo_kl": 1.69375125e-09,
      "timing_s/gen": 0.25,
      "timing_s/host": 0.5,
      "timing_s/step": 1.0,
      "tokens/generated": 1000 * step,
  }


def sample(stage, step, text="ab", count=3, **fields):
  out = dict(
      stage=stage,
      step=step,
      prompt="1+1=",
      answer="2",
      response=text * count,
      correct=step % 2,
      truncated=False,
      tokens=[text] * count,
      logp=[-1.90734863e-05 - 0.1 * i for i in range(count)],
  )
  if stage == "rl":
    out |= dict(
        reward=-1.625,
        advantage=[-0.540061116] * count,
        entropy=[0.883502007] * count,
    )
  return out | fields


def put(folder, lines=(), rows=(), config=True):
  """A work directory."""
  for name, items in (("metrics", lines), ("samples", rows)):
    text = "".join(json.dumps(item) + "\n" for item in items)
    (folder / f"{name}.jsonl").write_text(text)
  if config:
    (folder / "config.json").write_text(json.dumps(CONFIG))
  return folder


def finished(folder):
  """A work directory of a finished run."""
  return put(
      folder,
      [sft_line("skill", 5), evaluation(5, 0.8, 0.9, "skill")]
      + [sft_line("habits", 5), evaluation(0, 0.2, 0.6)]
      + [rl_line(step) for step in range(1, 5)]
      + [evaluation(4, 0.7, 0.5)],
      [sample("evaluate", 0)]
      + [sample("rl", step) for step in range(1, 5)]
      + [sample("evaluate", 4)],
  )


def data_of(folder):
  path = page.write(folder)
  assert path == folder / "report.html"
  return data_of_page(path.read_text(encoding="utf-8"), "report")


def series(data, name):
  found = [s for c in data["charts"] for s in c["series"] if s["name"] == name]
  assert len(found) == 1, name
  return found[0]


def test_curves_hold_the_numbers_of_the_log(tmp_path):
  data = data_of(finished(tmp_path))
  lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").open()]
  rl = [x for x in lines if x["stage"] == "rl"]
  for name in ("train/accuracy", "critic/rewards/mean", "actor/entropy"):
    assert series(data, name)["y"] == [x[name] for x in rl]
  assert data["x"] == ["step", "tokens"]
  assert data["axes"]["rl"] == dict(
      step=[1, 2, 3, 4], tokens=[1000, 2000, 3000, 4000], flops=[None] * 4
  )
  assert data["axes"]["evaluate"] == dict(
      step=[0, 4], tokens=[0, 4000], flops=[None] * 2
  )
  held_out = series(data, "mean@4")
  assert held_out["y"] == [0.2, 0.7]
  assert held_out["half"] == [0.0123456789] * 2
  assert series(data, "train/mixed")["y"] == [0.375] * 4
  assert series(data, "timing_s/host")["y"] == [0.5] * 4
  assert data["axes"]["habits"]["step"] == [10]  # behind the skill's 5


def test_flops_are_an_axis_and_a_critic_costs_before_step_1(tmp_path):
  costs = {"flops/total": 7e12, "tokens/generated": 600}
  lines = [evaluation(0, 0.2, 0.6) | costs]
  for step in (1, 2):
    lines.append(rl_line(step) | {"flops/total": 7e12 + 2e12 * step})
  data = data_of(put(tmp_path, lines))
  assert data["x"] == ["step", "tokens", "flops"]
  assert data["axes"]["rl"]["flops"] == [9e12, 11e12]
  assert data["axes"]["evaluate"] == dict(step=[0], tokens=[600], flops=[7e12])


def test_viewer_holds_the_numbers_of_the_samples(tmp_path):
  data = data_of(finished(tmp_path))
  rows = [json.loads(x) for x in (tmp_path / "samples.jsonl").open()]
  assert len(data["viewer"]) == len(rows)
  for shown, row in zip(data["viewer"], rows, strict=True):
    for name in ("tokens", "logp", "advantage", "entropy", "reward", "prompt"):
      assert shown[name] == row.get(name)
  assert data["viewer_note"] == data["pairs_note"] == ""


def test_headline_table_and_pairs(tmp_path):
  data = data_of(finished(tmp_path))
  assert data["title"] == tmp_path.name
  assert data["tiles"][0]["values"] == ["20.0% ± 1.2", "70.0% ± 1.2"]
  rows = {row["name"]: row["cells"] for row in data["scores"]["rows"]}
  texts = [text for text, _ in rows["mean@4"]]
  assert texts == ["20.0% ± 1.2", "70.0% ± 1.2", "+50.0 points", "80.0% ± 1.2"]
  assert rows["difficulty 2"][1] == ["70.0%", 0.7]
  assert rows["response length"][2][0] == "+4.0 tokens"
  (pair,) = data["pairs"]
  assert [side["step"] for side in pair["sides"]] == [0, 4]
  assert data["notes"] == ["Control experiment: the verdicts are shuffled."]
  assert "advantage.name group_norm" in data["features"]
  assert "loss.positive_nll 3.0" not in data["features"]
  assert ["advantage.args.lam", "Infinity"] in data["config"]


def test_hostile_text_stays_text(tmp_path):
  rows = [
      sample(stage, step, text, prompt=text, answer=text)
      for stage, step in (("evaluate", 0), ("rl", 1), ("evaluate", 4))
      for text in HOSTILE
  ]
  folder = tmp_path / "</script><b>"
  folder.mkdir(parents=True)
  data = data_of(put(folder, [evaluation(0, 0.1, 0.2)], rows))
  text = (folder / "report.html").read_text(encoding="utf-8")
  assert "\u2028" not in text and "\u2029" not in text
  assert data["title"] == folder.name
  assert [row["prompt"] for row in data["viewer"]] == list(HOSTILE) * 3
  assert [row["tokens"][0] for row in data["viewer"]] == list(HOSTILE) * 3


@pytest.mark.parametrize(
    "lines, rows, note",
    [
        ([], [], "RL is at step 0 of 4"),
        ([sft_line("skill", 1), sft_line("habits", 1)], [], "no evaluation"),
        ([evaluation(5, 0.8, 0.9, "skill")], [], "no evaluation"),
        ([evaluation(0, 0.2, 0.6)], [sample("evaluate", 0)], "only one"),
        ([evaluation(0, 0.2, 0.6), rl_line(1)], [], "RL is at step 1 of 4"),
        (
            [evaluation(0, 0.2, 0.6), rl_line(1), evaluation(1, 0.3, 0.6)],
            [sample("rl", 1)],
            "at step 1 and on 5 prompts",
        ),
        ([dict.fromkeys(rl_line(1)) | dict(stage="rl", step=1)], [], "step 1"),
        (
            [
                dict.fromkeys(evaluation(0, 0, 0))
                | dict(stage="evaluate", step=0)
            ],
            [],
            "no evaluation",
        ),
    ],
)
def test_partial_runs(tmp_path, lines, rows, note):
  data = data_of(put(tmp_path, lines, rows))
  assert any(note in text for text in data["notes"])
  assert scores.summary(tmp_path)
  for chart in data["charts"]:
    for one in chart["series"]:
      assert any(y is not None for y in one["y"])


def test_empty_directory(tmp_path):
  assert data_of(tmp_path)["viewer"] == []
  assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
  assert "no evaluation" in " ".join(scores.summary(tmp_path))


def test_long_run_is_thinned_and_says_so(tmp_path):
  lines = [evaluation(0, 0.1, 0.2)]
  for step in range(1, 2401):
    lines.append(rl_line(step))
    if step % 10 == 0:
      lines.append(evaluation(step, 0.5, 0.6))
  rows = [sample("evaluate", s, count=200) for s in (0, 2400)] * 20
  rows += [sample("rl", step, "<&", count=400) for step in range(5, 2401, 10)]
  rows.append(sample("rl", 2400, "<" * 50, count=4000))
  data = data_of(put(tmp_path, lines, rows))
  assert (tmp_path / "report.html").stat().st_size < LIMIT
  accuracy = series(data, "train/accuracy")["y"]
  assert len(accuracy) == len(data["axes"]["rl"]["step"]) == page.MAX_POINTS
  step_of = data["axes"]["rl"]["step"]
  assert step_of[0] == 1 and step_of[-1] == 2400
  assert accuracy == [0.1 + 1 / (step + 7) for step in step_of]
  assert any("500 of 2400 steps" in note for note in data["notes"])
  assert re.search(rf"\d+ of {len(rows)} responses", data["viewer_note"])
  assert len({row["step"] for row in data["viewer"]}) > 10
  (long,) = [row for row in data["viewer"] if row["length"] == 4000]
  assert len(long["tokens"]) == len(long["logp"]) == page.MAX_TOKENS
  assert "at most 1000 tokens" in data["viewer_note"]


def test_rows_too_large_even_alone(tmp_path):
  rows = [
      sample("evaluate", step, "\u2028" * 1000, count=300, prompt=str(i))
      for step in (0, 1)
      for i in range(2)
  ]
  data = data_of(put(tmp_path, [], rows))
  assert (tmp_path / "report.html").stat().st_size < LIMIT
  assert data["viewer"] == [] and "0 of 4" in data["viewer_note"]
  assert len(data["pairs"]) == 2


def test_summary_before_and_after(tmp_path):
  accuracy, greedy, best, length = scores.summary(finished(tmp_path))
  assert "mean@4" in accuracy and "after 4 steps" in accuracy
  assert "20.0% +- 1.2 -> 70.0% +- 1.2" in accuracy
  assert "30.0% +- 1.2 -> 80.0% +- 1.2" in greedy
  assert "60.0% +- 1.2 -> 50.0% +- 1.2" in best
  assert "-10.0 points: exploration shrank" in best
  assert "10.0 -> 14.0" in length


@pytest.mark.parametrize(
    "best, verdict",
    [(0.7, "did not shrink"), (0.61, "no clear change"), (0.5, "shrank")],
)
def test_summary_of_exploration(tmp_path, best, verdict):
  lines = [evaluation(0, 0.2, 0.6), evaluation(4, 0.5, best)]
  assert verdict in scores.summary(put(tmp_path, lines))[2]


def test_summary_of_one_evaluation(tmp_path):
  lines = scores.summary(put(tmp_path, [evaluation(0, 0.2, 0.6)]))
  assert "20.0% +- 1.2 at step 0" in lines[0]
  assert "only one evaluation" in lines[-1]
  assert not any("->" in line for line in lines)


def test_environment(tmp_path, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "")
  values = environment.describe()
  json.dumps(values)
  for name in (*environment.PACKAGES, "python", "platform", "device kind"):
    assert values[name]
  assert values["device count"] >= 1 and values["process count"] == 1
  assert environment.commit(tmp_path) is None  # no repository, no failure
