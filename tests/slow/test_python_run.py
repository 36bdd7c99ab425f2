"""configs/python.py as its docstring has it, on a tiny model and tiny rows."""

import json
import subprocess
import sys

import checkpoints
import pytest
import tiny_data
from conftest import child_env

pytestmark = pytest.mark.slow


def test_programs_are_run_in_training_and_evaluation(tmp_path):
  """Turns of a random model are no programs; all stages know it."""
  model = checkpoints.checkpoint(
      tmp_path / "model", "qwen2", vocab_size=300, max_position_embeddings=512
  )
  tiny_data.byte_tokenizer().save_pretrained(model)
  for split, numbers in (("train", range(40)), ("test", range(40, 48))):
    rows = [
        dict(
            text=f"Write f, which adds {i} to a number.",
            code=f"def f(x):\n  return x + {i}",
            test_list=[f"assert f(1) == {i + 1}", "assert f(0) or True"],
            task_id=i,
        )
        for i in numbers
    ]
    tiny_data.write(tmp_path / f"{split}.jsonl", rows)
  subprocess.run(
      [sys.executable, "-m", "rl_reason.main"]
      + ["--config=python:smoke", "--workdir=run"]
      + [f"--config.model.path={model}", "--config.data.ngram=0"]
      + [f"--config.data.train=mbpp:train@{tmp_path}/train.jsonl"]
      + [f"--config.data.evaluate=mbpp:test@{tmp_path}/test.jsonl"]
      # A random model ends its turns at these letters.
      + ["--config.environment.stop_strings=('a', 'e', 'i', 'o', 'u', '0')"]
      + ["--config.rollout.batch=16", "--config.rollout.max_tokens=128"]
      # It passes no test: it learns from the lengths.
      + ["--config.rollout.group_size=4", "--config.reward.functions=length*1"]
      + ["--config.evaluate.samples=1", "--config.evaluate.mean_of=1"],
      cwd=tmp_path,
      env=child_env() | {"HF_HUB_OFFLINE": "1"},
      check=True,
  )
  lines = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").open()))
  steps = [x for x in lines if "environment/turns/mean" in x]
  assert len(steps) == 3
  assert all(x["train/verifier_failures"] == 0 for x in steps)
  assert max(x["environment/turns/max"] for x in steps) >= 2
  last = [x for x in lines if x["stage"] == "evaluate"][-1]
  assert "val-core/mbpp/acc/mean@1" in last
