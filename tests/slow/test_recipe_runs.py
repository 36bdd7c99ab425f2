"""A recipe as its docstring has it, on local copies of a model and of data."""

import json
import subprocess
import sys

import checkpoints
import pytest
import tiny_data
from conftest import child_env

pytestmark = pytest.mark.slow


def test_gsm8k_on_local_copies(tmp_path):
  """SFT is off; RL, evaluation and export work from any directory."""
  model = checkpoints.checkpoint(
      tmp_path / "model", "qwen2", vocab_size=300, max_position_embeddings=512
  )
  tiny_data.byte_tokenizer().save_pretrained(model)
  for split, numbers in (("train", range(2, 42)), ("test", range(50, 70))):
    rows = [
        dict(question=f"Is it {i}?", answer=f"It is {i}.\n#### {i}")
        for i in numbers
    ]
    tiny_data.write(tmp_path / f"{split}.jsonl", rows)
  subprocess.run(
      [sys.executable, "-m", "rl_reason.main"]
      + ["--config=recipes/gsm8k_0_5b:smoke", "--workdir=run"]
      + [f"--config.model.path={model}"]
      + [f"--config.data.train=gsm8k@{tmp_path}/train.jsonl"]
      + [f"--config.data.evaluate=gsm8k@{tmp_path}/test.jsonl"]
      + ["--config.rollout.batch=16", "--config.rollout.max_prompt=128"]
      + ["--config.rollout.max_tokens=8", "--config.reward.overlong_buffer=8"]
      # A random model solves nothing: it learns from the lengths.
      + ["--config.dynamic_sampling.enabled=false"]
      + ["--config.evaluate.samples=2", "--config.evaluate.mean_of=2"],
      cwd=tmp_path,
      env=child_env() | {"HF_HUB_OFFLINE": "1"},
      check=True,
  )
  lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())
  evaluated = [x for x in lines if x["stage"] == "evaluate"]
  assert [x["step"] for x in evaluated][-1] == 3
  assert "val-core/gsm8k/acc/mean@2" in evaluated[-1]
