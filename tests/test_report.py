"""The page of a run: complete, self-contained, small, and safe to open."""

import importlib
import json
import pathlib
import re
import sys

import pytest
from conftest import data_of_page

from rl_reason.base import config, errors
from rl_reason.checks import config_checks, run_directory
from rl_reason.monitoring import run_log
from rl_reason.report import (
    charts,
    compare,
    groups,
    head,
    page,
    scores,
    terms,
)

LIMIT = 5_000_000
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
  out["val-aux/toy/difficulty_2/turns/mean"] = out["val-aux/turns/mean"] = 3.5
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
      "perf/memory_gib": 0.5,
      "tokens/generated": 1000 * step,
  }


def sample(stage, step, text="ab", count=3, **fields):
  out = dict(stage=stage, step=step)
  if stage == "rl":
    out |= dict(group=7, discarded=False)
  out |= dict(
      prompt="1+1=",
      answer="2",
      response=text * count,
      correct=step % 2,
      truncated=False,
      length=count,
      tokens=[text] * count,
      logp=[-1.90734863e-05 - 0.1 * i for i in range(count)],
  )
  if stage == "rl":
    out |= dict(
        reward=-1.625,
        advantage=[-0.54006] * count,
        entropy=[0.8835 + 0.01 * i for i in range(count)],
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
      [sft_line("sft", 5), evaluation(5, 0.8, 0.9, "sft")]
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


def test_a_report_has_the_definitions_of_terms(tmp_path):
  """As text: a report is a single file, in which no link to docs/ works."""
  found = {x["term"]: x for x in data_of(finished(tmp_path))["terms"]}
  clip = found["clip-higher, dual clip"]
  assert clip["names"] == ["clip-higher", "dual clip"] and not clip["common"]
  assert clip["what"].startswith("Clip-higher lets the ratio of a token rise")
  assert clip["where"] == "surrogate.args.clip_high, surrogate.args.dual_clip"
  assert found["held out, validation"]["common"]
  assert found["LoRA"]["where"].startswith("lora.rank, ")  # of a feature
  every = [name for x in found.values() for name in x["names"]]
  assert len(every) == len(set(every)), "two terms have the same name"
  assert not [x for x in found.values() if re.search(r"[`\]]", x["what"])]


# Charts without a term: their names say all.
PLAIN = {
    "Accuracy",
    "Energy",
    "Generation rounds",
    "Learning rate",
    "Memory",
    "Probability of sampled tokens",
    "Response length",
    "Time of a step",
    "Turns",
}


def test_every_chart_names_a_term():
  known = {n for x in terms.shown() for n in x["names"] if not x["common"]}
  for chart in charts.CHARTS:
    text = f"{chart['title']} {chart['about']}".lower()
    found = [x for x in known if re.search(rf"\b{re.escape(x)}s?\b", text)]
    assert bool(found) != (chart["title"] in PLAIN), (chart["title"], found)


def test_runs_are_compared_on_one_page(tmp_path, monkeypatch):
  first, second = tmp_path / "a,seed=1", tmp_path / "b" / "c"
  for i, folder in enumerate((first, second)):
    folder.mkdir(parents=True)
    rows = [rl_line(step) for step in range(1, 2001)]
    put(
        folder,
        [evaluation(0, 0.1, 0.2), *rows, evaluation(2000, 0.5 + i / 10, 1)],
    )
    fields = CONFIG | {"seed": i, "rl.steps": 2000}
    (folder / "config.json").write_text(json.dumps(fields))
  monkeypatch.chdir(tmp_path)
  assert run_directory.several("a,seed=1,b/c") == [
      pathlib.Path("a,seed=1"),
      pathlib.Path("b/c"),
  ]
  with pytest.raises(errors.ConfigError, match="d: holds no run"):
    run_directory.several("b/c,d")
  path = compare.write([first, second])
  assert path == first / "compare.html" and path.stat().st_size < LIMIT
  data = data_of_page(path.read_text(encoding="utf-8"), "compare")
  assert data["runs"] == ["a,seed=1", "b/c"]
  assert data["differ"] == [["", "a,seed=1", "b/c"], ["seed", "0", "1"]]
  rows = {row["name"]: row["cells"] for row in data["scores"]["rows"]}
  assert rows["mean@4"][1] == ["10.0% ± 1.2 → 60.0% ± 1.2", 0.6]
  assert rows["tokens"][0][0] == "2e+06" and rows["RL steps"][1][0] == "2000"
  (chart,) = (x for x in data["charts"] if x["title"] == "Accuracy: training")
  assert [one["label"] for one in chart["series"]] == data["runs"]
  for one in chart["series"]:
    assert len(one["y"]) == len(data["axes"][one["axis"]]["hours"]) == 800
    assert one["low"][0] <= one["y"][0] <= one["high"][0]


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
  assert data["x"] == ["step", "tokens", "hours"]
  hours = [round(i / 3600, 8) for i in range(1, 5)]
  rl, evaluated = data["axes"]["rl"], data["axes"]["evaluate"]
  assert rl.pop("hours") == pytest.approx(hours, abs=1e-8)
  assert rl == dict(
      step=[1, 2, 3, 4], tokens=[1000, 2000, 3000, 4000], flops=[None] * 4
  )
  assert evaluated.pop("hours") == pytest.approx([0, hours[-1]], abs=1e-8)
  assert evaluated == dict(step=[0, 4], tokens=[0, 4000], flops=[None] * 2)
  held_out = series(data, "mean@4")
  assert held_out["y"] == [0.2, 0.7]
  assert held_out["half"] == [0.0123456789] * 2
  assert series(data, "train/mixed")["y"] == [0.375] * 4
  assert series(data, "timing_s/host")["y"] == [0.5] * 4
  assert data["axes"]["habits"]["step"] == [10]  # after the 5 of SFT


def test_flops_are_an_axis_and_a_critic_costs_before_step_1(tmp_path):
  costs = {"flops/total": 7e12, "tokens/generated": 600}
  lines = [evaluation(0, 0.2, 0.6) | costs]
  for step in (1, 2):
    lines.append(rl_line(step) | {"flops/total": 7e12 + 2e12 * step})
  data = data_of(put(tmp_path, lines))
  assert data["x"] == ["step", "tokens", "flops", "hours"]
  assert data["axes"]["rl"]["flops"] == [9e12, 11e12]
  assert data["axes"]["evaluate"] == dict(
      step=[0], tokens=[600], flops=[7e12], hours=[0]
  )


def test_groups_hold_the_numbers_of_the_samples(tmp_path):
  rows = [
      sample("evaluate", 0),
      sample("rl", 5, discarded=True),
      sample("rl", 5, correct=0, reward=None),
      {k: x for k, x in sample("rl", 5, group=8).items() if k != "tokens"},
  ]
  data = data_of(put(tmp_path, [], rows))
  held, first, second = data["groups"]
  assert (held["stage"], held["step"], len(held["responses"])) == (
      *("evaluate", 0),
      1,
  )
  assert first["discarded"] and len(first["responses"]) == 2
  for shown, row in zip(first["responses"], rows[1:3], strict=True):
    assert [shown[k] for k in ("correct", "reward")] == [
        row[k] for k in ("correct", "reward")
    ]
    assert shown["tokens"] == row["tokens"] and shown["length"] == 3
    for name in ("logp", "entropy"):
      assert shown["numbers"][name] == row[name]
    assert shown["numbers"]["advantage"] == row["advantage"][0]  # all equal
  assert second["responses"][0]["text"] == ["ababab"]
  assert data["groups_note"] == data["pairs_note"] == ""


def test_headline_table_and_pairs(tmp_path):
  data = data_of(finished(tmp_path))
  assert data["title"] == tmp_path.name
  assert data["tiles"][0]["values"] == ["20.0% ± 1.2", "70.0% ± 1.2"]
  rows = {row["name"]: row["cells"] for row in data["scores"]["rows"]}
  texts = [text for text, _ in rows["mean@4"]]
  assert texts == ["20.0% ± 1.2", "70.0% ± 1.2", "+50.0 points", "80.0% ± 1.2"]
  assert rows["difficulty 2"][1] == ["70.0%", 0.7]
  assert rows["difficulty 2, turns"][1][0] == "3.5"
  assert rows["turns"][2][0] == "+0.0 turns"
  assert rows["response length"][2][0] == "+4.0 tokens"
  (pair,) = data["pairs"]
  assert [side["step"] for side in pair["sides"]] == [0, 4]
  assert data["notes"] == ["Control experiment: the verdicts are shuffled."]
  assert dict(data["run"])["model FLOPs utilization"].startswith("unknown")
  assert ["advantage.args.lam", "Infinity"] in data["config"]


def head_of(folder, name, fields=(), **files):
  """What the head of a page says of a config."""
  c, _ = config_checks.checked(f"configs/{name}.py", {})
  for file, values in files.items():
    path = folder / file.replace("__", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(values))
  return dict(head.describe(folder, config.flat(c) | dict(fields)))


def test_the_head_says_what_is_trained(tmp_path):
  """The default command's; a CPU with one device."""
  machine = {"device count": 1, "backend": "cpu", "cpu model": "AMD EPYC"}
  sizes = {"parameters": 101_184}
  found = head_of(tmp_path, "dapo", machine=machine, model=sizes)
  assert found == {
      "model": (
          "2 layers of width 64, 101,184 parameters, initialized at random"
      ),
      "data": (
          "generated problems of the task arithmetic, difficulties 2, 3, 4, 5,"
          " 6; 1,000 held-out prompts at most"
      ),
      "before RL": (
          "SFT, 1,000 steps of 96 rows, learning rate 0.004 (cosine); SFT on"
          " habits, 80 steps of 96 rows, learning rate 0.0003 (cosine)"
      ),
      "reward": (
          "1 if the verifier (arithmetic) accepts, else -1; soft overlong"
          " penalty of at most 1 in the last 4 tokens"
      ),
      "algorithm": (
          "advantage group_norm (ddof 1); surrogate ppo, ratio clipped at 1 -"
          " 0.2 and 1 + 0.28, dual clip 10; reduction token_mean; dynamic"
          " sampling of at most 10 rounds"
      ),
      "learning rate": "0.0002, constant; adamw, gradient norm clipped at 1",
      "batch": (
          "256 responses a step: 32 prompts of 8; 8 updates a step;"
          " temperature 1"
      ),
      "lengths": ("prompts of at most 12 tokens, responses of at most 48"),
      "steps": "40 of RL; seed 0",
      "devices": "1 × CPU (AMD EPYC); float32",
  }


def test_the_head_of_rows_of_a_model_and_of_a_critic(tmp_path):
  """Rows that are kept, LoRA, a KL, warm-up, a critic; nothing that is off."""
  sources = [
      dict(source="rows.jsonl", use=use, kept=kept)
      for use, kept in (("train", 7000), ("validation", 256), ("evaluate", 99))
  ]
  fields = {
      "model.path": "org/model-1B",
      "task.name": "files",
      "task.difficulties": (),
      "data.train": "rows.jsonl",
      "data.evaluate": "rows.jsonl",
      "data.template": "plain",
      "sft.steps": 0,
      "sft.habits.steps": 0,
      "lora.rank": 8,
      "kl.kind": "k3",
      "kl.coef": 0.001,
      "optimizer.warmup_steps": 10,
      "critic.warmup_steps": 5,
      "reward.functions": "length*-0.1",
  }
  sizes = {"parameters": 1_540_000_000, "critic parameters": 1_000_000}
  files = {"model": sizes, "data__data": dict(sources=sources)}
  found = head_of(tmp_path, "vapo", fields, **files)
  assert found["model"] == (
      "org/model-1B: 2 layers of width 64, 1.54 billion parameters; LoRA of"
      " rank 8 on q,k,v,o,gate,up,down"
  )
  assert found["data"] == (
      "7,000 rows of rows.jsonl; validation: 256 rows of rows.jsonl; held out:"
      " 99 rows of rows.jsonl; prompts by plain"
  )
  assert found["before RL"] == "value pretraining, 30 rollouts at most"
  assert found["reward"].startswith("1 if the verifier (math) accepts, else -1")
  assert "length*-0.1" in found["reward"]
  assert "KL k3 in the loss, 0.001" in found["algorithm"]
  assert "dual clip" not in found["algorithm"]
  assert "dynamic sampling" not in found["algorithm"]
  assert found["critic"].startswith("scalar, 1 million parameters; lambda 1;")
  assert found["critic"].endswith("after 5 steps of warm-up")
  assert "after 10 steps of warm-up" in found["learning rate"]
  assert found["steps"] == "40 of RL; seed 0"


def test_the_head_of_sft_alone_names_no_algorithm(tmp_path):
  found = head_of(tmp_path, "dapo", {"rl.steps": 0})
  assert found.keys() == {
      *("model", "data", "before RL", "lengths", "steps", "devices")
  }
  assert head.describe(tmp_path, {}) == []


def test_a_run_without_sft_has_no_scores_after_sft(tmp_path):
  lines = [evaluation(0, 0.2, 0.6), rl_line(1), evaluation(1, 0.3, 0.6)]
  assert "before RL" in data_of(put(tmp_path, lines))["scores"]["head"]
  lines = [sft_line("sft", 5), *lines]
  found = data_of(put(tmp_path, lines))["scores"]["head"]
  assert "after SFT, before RL" in found


def test_hashes_are_in_no_table_but_the_last(tmp_path):
  put(tmp_path, [evaluation(0, 0.2, 0.6)])
  fields = CONFIG | {"content.model.path": "5eed"}
  (tmp_path / "config.json").write_text(json.dumps(fields))
  data = data_of(tmp_path)
  assert ["content.model.path", "5eed"] in data.pop("machine")
  assert "5eed" not in json.dumps(data)


def test_lengths_are_of_their_own_set(tmp_path):
  """A curve each of held-out and of validation prompts; the summary too."""

  def line(step, **lengths):
    out = {}
    for name, length in lengths.items():
      out |= {
          k.replace("/toy/", f"/{name}/"): x
          for k, x in evaluation(step, 0.5, 0.6).items()
      }
      out[f"val-aux/{name}/response_length/mean"] = length
    return out | {"val-aux/response_length/mean": 99.0}

  lines = [
      line(0, toy=10.0, validation=30.0),
      line(2, validation=32.0),
      line(4, toy=14.0, validation=34.0),
  ]
  data = data_of(put(tmp_path, lines))
  assert series(data, "response length")["y"] == [10, None, 14]
  found = series(data, "validation response length")
  assert (found["label"], found["y"]) == ("validation", [30, 32, 34])
  assert "10.0 -> 14.0" in scores.summary(tmp_path)[3]


def test_several_validation_sets_have_one_curve(tmp_path):
  lines = []
  for step, values in ((0, (0.25, 0.75)), (1, (0.5, 1.0))):
    line = evaluation(step, 0.1, 0.6)
    for name, value in zip(
        ("validation-a", "validation-b"), values, strict=True
    ):
      line |= {
          k.replace("/toy/", f"/{name}/"): x
          for k, x in evaluation(step, value, 0.6).items()
      }
    lines.append(line)
  data = data_of(put(tmp_path, lines))
  assert series(data, "validation mean@4")["y"] == [0.5, 0.75]


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
  shown = [g for g in data["groups"] if g["stage"] == "evaluate"]
  assert [g["prompt"] for g in shown] == list(HOSTILE) * 2
  (group,) = (g for g in data["groups"] if g["stage"] == "rl")
  assert [r["tokens"][0] for r in group["responses"]] == list(HOSTILE)


@pytest.mark.parametrize(
    "lines, rows, note",
    [
        ([], [], "RL is at step 0 of 4"),
        ([sft_line("sft", 1), sft_line("habits", 1)], [], "no evaluation"),
        ([evaluation(5, 0.8, 0.9, "sft")], [], "no evaluation"),
        ([evaluation(0, 0.2, 0.6)], [sample("evaluate", 0)], "once"),
        ([evaluation(0, 0.2, 0.6), rl_line(1)], [], "RL is at step 1 of 4"),
        (
            [evaluation(0, 0.2, 0.6), rl_line(1), evaluation(1, 0.3, 0.6)],
            [sample("rl", 1)],
            "at step 1, on 5 prompts",
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
  assert data_of(tmp_path)["groups"] == []
  assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
  assert "no evaluation" in " ".join(scores.summary(tmp_path))


def test_a_long_run_has_bands(tmp_path):
  lines = [evaluation(0, 0.1, 0.2)]
  for step in range(1, 2001):
    lines.append(rl_line(step))
    if step % 10 == 0:
      lines.append(evaluation(step, 0.5, 0.6))
  data = data_of(put(tmp_path, lines))
  one = series(data, "train/accuracy")
  step_of = data["axes"]["rl"]["step"]
  assert len(step_of) == charts.MAX_POINTS == 400 and step_of[-1] == 2000
  for i, step in enumerate(step_of):
    values = [0.1 + 1 / (s + 7) for s in range(step - 4, step + 1)]
    assert one["y"][i] == pytest.approx(sum(values) / 5, rel=1e-5)
    assert one["low"][i] == pytest.approx(min(values), rel=1e-5)
    assert one["high"][i] == pytest.approx(max(values), rel=1e-5)
  assert "low" not in series(data, "mean@4")  # 201 evaluations: all of them
  assert any("mean over 5.0 of 2000 steps" in x for x in data["notes"])


@pytest.fixture(scope="module")
def long_responses(tmp_path_factory):
  """2,000 steps, whose responses have 4,000 tokens."""
  folder = tmp_path_factory.mktemp("long")
  rows = [sample("evaluate", s, "wörd ", 4000) for s in (0, 2000)] * 3
  for step in range(100, 2001, 100):
    for group in range(3):
      for i in range(4):
        row = sample("rl", step, "token ", 4000, group=group)
        if i:
          del row["tokens"]
        rows.append(row)
  return put(folder, [rl_line(step) for step in range(1, 2001)], rows)


def test_long_responses_have_head_and_tail_within_5_megabytes(long_responses):
  data = data_of(long_responses)
  assert (long_responses / "report.html").stat().st_size < LIMIT
  assert {g["step"] for g in data["groups"]} == {0, *range(100, 2001, 100)}
  responses = [r for g in data["groups"] for r in g["responses"]]
  cut = [r for r in responses if "gap" in r]
  whole = [r for r in responses if "gap" not in r]
  assert f"{len(cut)} responses are cut in the middle" in data["groups_note"]
  assert len(whole) > 10 and {r["length"] for r in responses} == {4000}
  assert data["groups"][-1]["responses"][0] in whole  # the newest are whole
  for r in cut:
    if "tokens" in r:
      assert len(r["tokens"]) == 300 == 4000 - r["gap"]
      assert len(r["numbers"]["logp"]) == 300
    else:
      assert sum(map(len, r["text"])) == 1200 == 24000 - r["gap"]


def test_groups_too_large_even_alone(tmp_path):
  rows = [
      sample("rl", 1, "\u2028" * 1000, count=300, group=i, prompt=str(i))
      for i in range(4)
  ]
  shown, note = groups.groups(
      put(tmp_path, [], rows) / "samples.jsonl",
      groups.index(tmp_path / "samples.jsonl"),
      budget=10_000,
  )
  assert shown == [] and note == "0 of 4 groups; samples.jsonl has all."


def test_a_start_names_the_modules_of_the_user_that_have_changed(
    tmp_path, monkeypatch
):
  """Not those that are imported for the first time, nor unchanged ones."""
  monkeypatch.syspath_prepend(str(tmp_path))
  file = tmp_path / "my_changed_reward.py"
  file.write_text("ONE = 1\n")
  importlib.import_module("my_changed_reward")
  assert run_log.record_start(tmp_path) == []
  assert run_log.record_start(tmp_path) == []
  file.write_text("ONE = 2\n")
  (tmp_path / "my_other_reward.py").write_text("")
  importlib.import_module("my_other_reward")
  assert run_log.record_start(tmp_path) == ["my_changed_reward"]
  assert run_log.record_start(tmp_path) == []
  modules = run_log.starts(tmp_path)[-1]["own_code"]
  assert {"my_changed_reward", "my_other_reward"} <= set(modules)
  assert not {"numpy", "json", "rl_reason.run"} & set(modules)
  file.unlink()  # a module whose file is gone has no hash
  assert run_log.record_start(tmp_path) == []
  modules = run_log.starts(tmp_path)[-1]["own_code"]
  assert "my_other_reward" in modules and "my_changed_reward" not in modules
  # Starts of earlier versions name no modules.
  (tmp_path / "starts.jsonl").write_text('{"command": "", "date": ""}\n')
  assert run_log.record_start(tmp_path) == []


def test_command_date_and_what_differs_from_the_base(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["/x/main.py", "--config=configs/dapo.py"])
  run_log.record_start(tmp_path)
  run_log.record_start(tmp_path)
  fields = config.flat(
      config.with_defaults(importlib.import_module("configs.dapo").get_config())
  )
  put(tmp_path, [rl_line(step) for step in range(1, 91)])
  (tmp_path / "config.json").write_text(json.dumps(fields))
  data = data_of(tmp_path)
  run = dict(data["run"])
  assert run["command"] == "python -m rl_reason.main --config=configs/dapo.py"
  assert re.match(r"\d{4}-\d\d-\d\d \d\d:", run["begun"])
  assert run["resumed"].startswith("1 times")
  assert run["RL steps and evaluations"] == "0:01:30"
  changed = {name: (value, base) for name, value, base in data["changed"]}
  assert changed == {
      "dynamic_sampling.enabled": ("true", "false"),
      "reduction.name": ("token_mean", "seq_mean_token_mean"),
      "reward.overlong_buffer": ("4", "0"),
      "sft.batch": ("96", "64"),
      "sft.habits.lr": ("0.0003", "2e-05"),
      "sft.habits.mixture": (
          "careful:2,leap:2,direct:3,ramble:1,sloppy:2",
          "",
      ),
      "sft.habits.steps": ("80", "0"),
      "sft.lr": ("0.004", "2e-05"),
      "sft.mixture": ("careful:1", ""),
      "sft.steps": ("1000", "0"),
      "sft.threshold": ("0.95", "0.0"),
      "surrogate.args.clip_high": ("0.28", "0.2"),
      "surrogate.args.dual_clip": ("10.0", "0.0"),
  }


@pytest.mark.parametrize("prefix", ["alert/", "alarm/"])
def test_behaviours_and_alerts(tmp_path, prefix):
  """Alerts are among the notes; earlier versions called them alarms."""
  extra = {"behaviour/retries": 0.5, f"{prefix}entropy_collapse": 1}
  put(tmp_path, [rl_line(1), rl_line(2) | extra])
  data = data_of(tmp_path)
  assert series(data, "behaviour/retries")["label"] == "retries"
  assert "Entropy collapse in 1 of 2 steps" in " ".join(data["notes"])


def test_a_page_that_cannot_be_written_is_said_once(tmp_path):
  said = []
  refresh = page.refresher(tmp_path, said.append)
  refresh()
  assert (tmp_path / "report.html").exists() and not said
  (tmp_path / "metrics.jsonl").write_text("{]\n")
  refresh()
  refresh()
  assert len(said) == 1 and "line 1 is damaged" in said[0]


def test_summary_before_and_after(tmp_path):
  accuracy, greedy, best, length, turns = scores.summary(finished(tmp_path))
  assert "mean@4" in accuracy and "after 4 steps" in accuracy
  assert "20.0% +- 1.2 -> 70.0% +- 1.2" in accuracy
  assert "30.0% +- 1.2 -> 80.0% +- 1.2" in greedy
  assert "60.0% +- 1.2 -> 50.0% +- 1.2" in best
  assert "-10.0 points: coverage shrank" in best
  assert "10.0 -> 14.0" in length
  assert turns == "turns: 3.5 -> 3.5"


@pytest.mark.parametrize(
    "best, verdict",
    [(0.7, "did not shrink"), (0.61, "no clear change"), (0.5, "shrank")],
)
def test_summary_of_coverage(tmp_path, best, verdict):
  lines = [evaluation(0, 0.2, 0.6), evaluation(4, 0.5, best)]
  assert verdict in scores.summary(put(tmp_path, lines))[2]


def test_summary_of_one_evaluation(tmp_path):
  lines = scores.summary(put(tmp_path, [evaluation(0, 0.2, 0.6)]))
  assert "20.0% +- 1.2 at step 0" in lines[0]
  assert "evaluated only once" in lines[-1]
  assert not any("->" in line for line in lines)


DAMAGES = {
    "empty": b"",
    "binary": bytes(range(256)) * 2,
    "lines of bytes": (bytes(range(256)) + b"\n") * 2,
    "half": b'{"stage": "rl", "st',
    "half a line": b'{"stage": "rl", "st\n',
    "deep": b"[" * 100_000 + b"\n",
    **{
        x: f"{x}\n".encode()
        for x in ("[]", "null", "{}", "3", '"x"', "[1, 2]", "NaN", '{"a": 1}')
    },
    "texts": b'{"1": "3", "parameters": "x", "rl.steps": "3", "seed": "x"}\n',
    "lists": b'{"1": {"a": [[1, 2]]}, "sources": [3], "rl.steps": [3]}\n',
    "not finite": b'{"1": {"a": [[1, NaN, 0, 0]]}, "sources": [{"kept": 1}]}\n',
    "no number": b'{"sources": [{"kept": NaN}], "parameters": NaN}\n',
    "sample": b'{"stage": "evaluate", "step": 0, "prompt": 3}\n',
    "two samples": b'{"stage": "rl", "step": 1, "group": 1, "tokens": 3}\n',
    "doubtful": b'{"stage": "doubtful", "step": 1}\n',
    "start": b'{"command": 3, "date": null, "own_code": []}\n',
    "line": b'{"stage": "rl", "step": "1"}\n',
    "line of text": b'{"stage": "rl", "step": 1, "train/accuracy": "0.5"}\n',
    "score": b'{"set": "a", "measure": "b", "prompt": "c", "scores": [3]}\n',
}


def test_damaged_files_are_named_and_left_out(tmp_path):
  """Each file that a report reads, damaged in each way: never a traceback."""
  folder = put(tmp_path, [rl_line(1), rl_line(2)], [sample("rl", 1)])
  page.write(folder)
  (folder / "prompts-0.jsonl").write_text("")
  data = folder / "data"
  data.mkdir()
  names = (
      *("config.json", "model.json", "machine.json", "environment.json"),
      *("calibration.json", "samples.jsonl", "starts.jsonl", "metrics.jsonl"),
      *("data/data.json", "prompts-0.jsonl"),
  )
  named = dict.fromkeys(names, 0)
  for name in names:
    path = folder / name
    before = path.read_bytes() if path.exists() else None
    for what, damage in (DAMAGES | {"directory": None}).items():
      path.unlink(missing_ok=True)
      path.mkdir() if damage is None else path.write_bytes(damage)
      said = []
      try:
        page.write(folder, said.append)
        page.doubtful_summary(folder)
        if name in ("config.json", "starts.jsonl", "prompts-0.jsonl"):
          compare.write([folder, folder])
      except errors.RunError as e:
        said.append(str(e))
      assert all(str(path) in x and "\n" not in x for x in said), (name, what)
      named[name] += bool(said)
      page_data(folder / "report.html")
    path.rmdir()
    if before is not None:
      path.write_bytes(before)
  assert all(x > 3 for x in named.values()), named


def page_data(path):
  """The JSON of a page, which no NaN may break."""
  text = path.read_text()
  start = text.index('type="application/json"')
  text = text[text.index(">", start) + 1 :]
  return json.loads(
      text[: text.index("</script>")],
      parse_constant=lambda x: pytest.fail(f"{x} is no JSON"),
  )
