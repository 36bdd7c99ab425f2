"""Every stage by its command, as the README has them, at smoke size."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT, child_env

pytestmark = pytest.mark.slow
DAPO = "--config=configs/dapo.py"


def command(*flags, cwd=ROOT):
  return subprocess.run(
      [sys.executable, "-m", "rl_reason.main", *flags],
      cwd=cwd,
      env=child_env(),
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
  )


@pytest.mark.parametrize(
    "flag, words",
    [
        ("tokenizer=/no/such/tokenizer", "tokenizer = '/no/such/tokenizer'"),
        (
            "rollout.max_prompt=5",
            "rollout.max_prompt = 5: '9+9+9+9+9+9=' has 12",
        ),
    ],
)
def test_what_never_began_leaves_its_directory_free(flag, words, tmp_path):
  """Found before anything compiles; a mended command may come after it."""
  done = command(
      DAPO + ":smoke",
      f"--config.{flag}",
      f"--workdir={tmp_path}",
  )
  assert done.returncode == 2, done.stderr
  assert words in done.stderr and done.stderr.count("\n") == 1
  assert "compiled" not in done.stdout
  assert not (tmp_path / "config.json").exists()


def test_automatic_rematerialization_is_kept(tmp_path):
  """One line at the start; the choice is in config.json."""
  auto = DAPO + ":smoke", "--config.model.remat=auto", "--stage=sft"
  for words in ("by formula an update needs", "as at the start of this run"):
    done = command(*auto, f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    (line,) = re.findall("model.remat = 'none', .*", done.stdout)
    assert words in line
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["model.remat"] == "none"


def test_smoke_evaluate_and_report(tmp_path):
  """The README's commands, small: every stage, then the stages on their own."""
  workdir = f"--workdir={tmp_path}"
  done = command(DAPO + ":smoke", workdir)
  assert done.returncode == 0, done.stderr
  last = done.stdout.splitlines()[-8:]
  assert "accuracy" in " ".join(last) and "report.html" in last[-1]
  assert (tmp_path / "report.html").stat().st_size < 2_000_000
  metrics = [
      json.loads(line)
      for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
  ]
  assert {m["stage"] for m in metrics} == {"sft", "habits", "rl", "evaluate"}
  for m in metrics:
    if m["stage"] == "rl":
      assert m["rollout/logp_gap_max"] <= 1e-4
      assert m["actor/first_log_ratio_max"] <= 1e-5

  done = command("--stage=evaluate", workdir)
  assert done.returncode == 0, done.stderr
  again = json.loads((tmp_path / "evaluation-newest.json").read_text())
  final = [m for m in metrics if m["stage"] == "evaluate"][-1]
  shared = {k for k in final if k.startswith("val-core/arithmetic/")}
  assert shared and all(again[k] == final[k] for k in shared)
  assert "val-aux/score" not in again, "an evaluation chooses no checkpoint"
  assert "held-out scores of step" in done.stdout and "mean@" in done.stdout
  for word in ("val-core/", "warning", "updates of the policy", "report.html"):
    assert word not in done.stdout, "this belongs to the training"

  levels = "--config.task.difficulties=(7,8)"
  wider = "--config.rollout.max_prompt=16"
  done = command("--stage=evaluate", workdir, levels, wider)
  assert done.returncode == 0, done.stderr
  name = "evaluation-newest,task.difficulties=7+8,rollout.max_prompt=16.json"
  found = json.loads((tmp_path / name).read_text())
  scored = {k.split("/")[2] for k in found if "/difficulty_" in k}
  assert scored == {"difficulty_7", "difficulty_8"}
  assert "by difficulty: 7: " in done.stdout
  again = json.loads((tmp_path / "evaluation-newest.json").read_text())
  assert all(again[k] == final[k] for k in shared)
  done = command("--stage=evaluate", workdir, levels)
  assert done.returncode == 2 and "rollout.max_prompt = 12" in done.stderr

  done = command("--stage=evaluate", "--step=77", workdir)
  assert done.returncode == 1 and "--step = 77" in done.stderr
  done = command("--stage=report", workdir)
  assert done.returncode == 0, done.stderr
  done = command(DAPO + ":smoke", workdir)
  assert done.returncode == 0 and "complete" in done.stdout


def test_policies_side_by_side_on_unseen_operators(tmp_path):
  """Two checkpoints and a model, with operators that training never had."""
  workdir = f"--workdir={tmp_path / 'run'}"
  trained = "--config.task.name=operators", "--config.task.difficulties=(2,3)"
  done = command(DAPO + ":smoke", *trained, workdir)
  assert done.returncode == 0, done.stderr
  done = command("--stage=export", workdir)
  assert done.returncode == 0, done.stderr
  export = tmp_path / "run" / "export" / "policy"
  unseen = "--config.task.difficulties=(5,12,23)"
  copies = "--config.evaluate.perturb=numbers"
  model = f"--config.evaluate.models={export}"
  evaluate = "--stage=evaluate", workdir, unseen, copies
  done = command(*evaluate, "--step=sft,newest", model)
  assert done.returncode == 0, done.stderr
  assert "warning: operators" not in done.stdout
  table = (tmp_path / "run" / "side-by-side.md").read_text().splitlines()
  head, _, *rows = [line.strip("| ").split(" | ") for line in table]
  sft, newest, exported = head[3:]
  suffix = ",task.difficulties=5+12+23"
  assert (sft, newest) == (f"sft{suffix}", f"newest{suffix}")
  assert exported.startswith("models/") and exported.endswith("/newest")
  assert {row[0] for row in rows} == {"operators", "operators~numbers"}
  for _, score, pairs, _, of_newest, of_export in rows:
    if "length" not in score and score != "truncated":
      assert int(pairs) > 8 and " (" in of_newest
    # The same policy, sampled with the same noise.
    assert of_export == of_newest
  name = f"evaluation-newest{suffix}.json"
  found = json.loads((tmp_path / "run" / name).read_text())
  scored = {k.split("/")[2] for k in found if "/difficulty_" in k}
  assert scored == {"difficulty_5", "difficulty_12", "difficulty_23"}
  label = "minus_sft" + suffix
  for of_set in ("operators", "operators~numbers"):
    assert f"val-aux/{of_set}/{label}/acc/greedy/ci95" in found
  # The same by evaluate.against: copies are compared with copies.
  against = tmp_path / "run" / f"prompts-sft{suffix}.jsonl"
  done = command(*evaluate, f"--config.evaluate.against={against}")
  assert done.returncode == 0, done.stderr
  assert "nothing to compare" not in " ".join(done.stdout.split())
  again = json.loads((tmp_path / "run" / name).read_text())
  shared = [k for k in found if label in k]
  assert shared and all(again[k] == found[k] for k in shared)
  # Without copies there is nothing to compare them with, and the remedy.
  done = command(*evaluate[:3])
  assert done.returncode == 0, done.stderr
  plain = tmp_path / "run" / f"prompts-newest{suffix}.jsonl"
  done = command(*evaluate, f"--config.evaluate.against={plain}", "--step=sft")
  said = " ".join(done.stdout.split())
  assert "operators~numbers: no problem and score in common" in said
  assert "evaluate both with the same evaluate.perturb" in said
  done = command("--stage=evaluate", workdir, "--step=sft,77")
  assert done.returncode == 1 and "--step = 77" in done.stderr
  assert "evaluating the policy" not in done.stdout
