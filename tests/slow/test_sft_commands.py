"""docs/sft.md from its first command to its last, on a tiny checkpoint."""

import json
import re
import subprocess
import sys

import pytest
import sft_page
from conftest import child_env

pytestmark = pytest.mark.slow
SMALL = {
    "model.dtype": "float32",
    "log.loggers": "",
    "evaluate.prompts": 40,
    "evaluate.interim_prompts": 16,
    "evaluate.batch": 8,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
}
RL = {
    "rollout.batch": 8,
    "rollout.group_size": 4,
    "rollout.max_tokens": 64,
    "reward.overlong_buffer": 8,
    "reward.functions": "length*-0.3",  # else no group has signal
    "dynamic_sampling.signal": "reward",
    "dynamic_sampling.max_rounds": 2,
    "updates.minibatches": 2,
    "updates.token_budget": 1280,
    "rl.steps": 1,
    "optimizer.warmup_steps": 0,
    "sft.batch": 8,
}


def command(directory, words):
  argv = [sys.executable, "-m", "rl_reason.main", *words]
  env = child_env() | {"HF_HUB_OFFLINE": "1"}
  done = subprocess.run(
      argv, cwd=directory, env=env, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def flags(fields):
  return [f"--config.{name}={value}" for name, value in fields.items()]


def test_the_commands_of_the_page(tmp_path):
  """The first screen is the printed one; RL goes on from SFT in three ways."""
  sft_page.write(tmp_path)
  sft, evaluate, both, reuse, export, from_export = sft_page.commands()
  said = command(tmp_path, [*sft, *flags(SMALL)])
  screen = re.search(
      r"(?m)^    rl_reason: all, .*\n(?:^    .*\n)+", sft_page.PAGE
  )
  for line in screen[0].splitlines():
    assert line.strip() in said, line
  run = tmp_path / "runs" / "my_sft"
  lines = [json.loads(x) for x in (run / "metrics.jsonl").open()]
  assert {x["stage"] for x in lines} == {"sft", "evaluate"}
  losses = [x["sft/loss"] for x in lines if "sft/loss" in x]
  assert losses[-1] < losses[0]
  command(tmp_path, evaluate)
  assert (run / "results-newest.json").exists()

  changes = flags(SMALL | RL)
  said = command(tmp_path, [*both, *changes])
  assert "SFT: 20 steps of 8 rows are" in said
  # The SFT of the other run had these lengths and this batch.
  same = SMALL | RL | {"sft.batch": 64}
  said = command(tmp_path, [*reuse, *flags(same)])
  assert "SFT:" not in said
  command(tmp_path, export)
  said = command(tmp_path, [*from_export, *changes])
  assert "tensors of runs/my_sft/export/policy" in said
  for name in ("both", "rl", "from_export"):
    metrics = (tmp_path / "runs" / name / "metrics.jsonl").read_text()
    assert '"stage": "rl"' in metrics and '"stage": "habits"' not in metrics
