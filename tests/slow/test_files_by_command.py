"""Commands on files: --stage=prepare, and every stage from a checkpoint on."""

import json
import os
import subprocess
import sys

import checkpoints
import pyarrow
import pyarrow.parquet
import pytest
import tiny_data
from conftest import ROOT, child_env

pytestmark = pytest.mark.slow


def save_dapo(path, count):
  """Rows as DAPO-Math-17k has them, in its one Parquet file."""
  rows = [
      dict(
          data_source="math_dapo",
          prompt=[
              dict(
                  role="user",
                  content="Solve the following math problem step by step. More."
                  f"\n\n{i} + {i}?\n\nPut it on a line after "
                  '"Answer:".',
              )
          ],
          reward_model=dict(ground_truth=str(2 * i), style="rule"),
      )
      for i in range(count)
  ]
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def save_lines(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def command(*flags, code=0):
  """Runs the command line; the output of standard output and error."""
  argv = [sys.executable, "-m", "rl_reason.main", *flags]
  env = child_env() | {"HF_HUB_OFFLINE": "1"}
  done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout, done.stderr


SMALL = {
    "rollout.batch": 16,
    "rollout.group_size": 4,
    "rollout.max_prompt": 300,
    "rollout.max_tokens": 8,
    "reward.overlong_buffer": 2,
    "reward.workers": 2,
    "reward.functions": "boxed*0.5..1,steps*0.5,length*-0.3",
    "updates.minibatches": 2,
    "updates.token_budget": 576,
    "dynamic_sampling.enabled": False,
    "model.dtype": "float32",
    "rl.steps": 2,
    "optimizer.warmup_steps": 1,
    "evaluate.every": 1,
    "evaluate.prompts": 8,
    "evaluate.interim_prompts": 4,
    "evaluate.samples": 2,
    "evaluate.mean_of": 2,
    "evaluate.batch": 4,
    "log.loggers": "",
}


def test_dapo_on_a_checkpoint_and_files(tmp_path):
  """The command of configs/dapo_qwen.py, evaluation, and export."""
  model = checkpoints.checkpoint(
      tmp_path / "model", "qwen2", vocab_size=300, max_position_embeddings=512
  )
  tiny_data.byte_tokenizer().save_pretrained(model)
  save_dapo(tmp_path / "dapo-math-17k.parquet", 40)
  aime = save_lines(
      tmp_path / "aime.jsonl",
      [dict(problem=f"What is {i} times 7?", answer=7 * i) for i in range(9)],
  )
  own = save_lines(
      tmp_path / "own.jsonl",
      [dict(question=f"Is {i} odd?", answer=i % 2) for i in range(6)],
  )
  code = save_lines(
      tmp_path / "mbpp.jsonl",
      [dict(text=f"Add {i}.", test_list=["assert f(1)"]) for i in range(20)],
  )
  human = save_lines(
      tmp_path / "human.jsonl",
      [dict(prompt="def f(x):", test="def check(f): f(1)", entry_point="f")],
  )
  poems = tmp_path / "poems.csv"
  poems.write_text("prompt,words\n" + "".join(f"{i}?,9\n" for i in range(20)))
  flags = [f"--config.{name}={value}" for name, value in SMALL.items()]
  workdir = f"--workdir={tmp_path / 'run'}"
  command(
      "--config=configs/dapo_qwen.py",
      "--config.rollout.stop_tokens=()",
      f"--config.model.path={model}",
      f"--config.data.train={tmp_path / 'dapo-math-17k.parquet'},"
      f"mbpp:train@{code},{poems}",
      "--config.data.kind=poems.csv=none,math",
      f"--config.data.evaluate=aime24@{aime},{own},humaneval@{human}",
      *flags,
      workdir,
  )
  run = tmp_path / "run"
  lines = [json.loads(x) for x in (run / "metrics.jsonl").open()]
  evaluated = [x for x in lines if x["stage"] == "evaluate"]
  assert [x["step"] for x in evaluated] == [0, 1, 2]
  for name in ("aime24", "own", "humaneval"):
    assert 0 <= evaluated[-1][f"val-core/{name}/acc/mean@2"] <= 1
  steps = [x for x in lines if x["stage"] == "rl"]
  for name in ("boxed", "steps", "length"):
    assert all(f"reward/{name}/mean" in x for x in steps)
  assert not any(x["train/verifier_failures"] for x in steps)
  prompts = {json.loads(x)["prompt"] for x in (run / "samples.jsonl").open()}
  for start in ("Work out the math problem", "Solve this task in Python"):
    assert any(x.startswith(f"<|s|>user {start}") for x in prompts), prompts

  before = (run / "data" / "data.json").read_text()
  said = " ".join(command("--stage=evaluate", workdir)[0].split())
  assert "aime24: not comparable with mean@32 of DAPO, arXiv:2503.14476" in said
  assert "humaneval: not comparable with mean@200 of Codex" in said
  assert "own: not" not in said
  assert (run / "data" / "data.json").read_text() == before
  results = json.loads((run / "results-newest.json").read_text())["results"]
  assert set(results) == {"aime24", "own", "humaneval"}
  assert results["own"]["mean@2,none"] >= 0
  page = (run / "responses-newest.html").read_text()
  assert "What is 3 times 7?" in page
  said, _ = command(  # as published, except for the lengths and the set
      "--stage=evaluate",
      f"--config.data.evaluate=aime24@{aime},{own}",
      "--config.data.template=published",
      "--config.evaluate.sampling=published",
      "--config.rollout.max_prompt=400",
      workdir,
  )
  assert (
      "aime24: not comparable with mean@32 of DAPO, arXiv:2503.14476, sec 4.1:"
      " rollout.max_tokens = 8, not 20480; 8 prompts, not 30"
  ) in " ".join(said.split())
  [path] = run.glob("evaluation-*max_prompt=400.json")
  values = json.loads(path.read_text())
  for name in ("aime24/acc/mean@32", "own/acc/mean@2"):
    assert f"val-core/{name}/ci95" in values
  command(  # on another set
      "--stage=evaluate",
      "--config=configs/dapo_qwen.py",
      f"--config.model.path={model}",
      f"--config.data.train={tmp_path / 'dapo-math-17k.parquet'}",
      f"--config.data.evaluate={own}",
      *flags,
      "--step=1",
      workdir,
  )
  results = json.loads((run / "results-1.json").read_text())["results"]
  assert set(results) == {"own"}
  command("--stage=export", workdir)
  names = os.listdir(run / "export" / "policy")
  assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)


def test_models_that_no_run_has_trained(tmp_path):
  """Side by side on their own chat templates; pairs are rows of the file."""
  tok = tiny_data.byte_tokenizer()
  models = []
  for name, kind in (("one", "qwen2"), ("two", "llama")):
    models.append(
        checkpoints.checkpoint(
            tmp_path / name, kind, vocab_size=300, max_position_embeddings=512
        )
    )
    tok.save_pretrained(models[-1])
    tok.chat_template = "Q: {{ messages[-1]['content'] }} A:"
  own = save_lines(
      tmp_path / "own.jsonl",
      [dict(question=f"What is {i} + 1?", answer=i + 1) for i in range(6)],
  )
  said, _ = command(
      "--stage=evaluate",
      "--config=configs/dapo_qwen.py",
      f"--config.model.path={models[0]}",
      f"--config.evaluate.models={models[1]}",
      f"--config.data.train={own}",
      f"--config.data.evaluate={own}",
      "--config.data.chat=True",
      "--config.evaluate.perturb=paraphrase,distractor",
      *(f"--config.{name}={value}" for name, value in SMALL.items()),
      f"--workdir={tmp_path / 'run'}",
  )
  assert "warning: own" not in said
  lines = (tmp_path / "run" / "side-by-side.md").read_text().splitlines()
  rows = [line.strip("| ").split(" | ") for line in lines[2:]]
  copies = {"own", "own~paraphrase", "own~distractor"}
  assert {x[0] for x in rows} == copies
  assert all(x[2] == "6" for x in rows if x[1] in ("mean@2", "greedy"))
  prompts = [
      json.loads(x)["prompt"]
      for path in (tmp_path / "run").rglob("prompts-newest.jsonl")
      for x in path.open()
  ]
  assert len(prompts) == 2 * 3 * 6
  assert sum(x.startswith("Q: ") and x.endswith(" A:") for x in prompts) == 18


def test_prepare(tmp_path):
  """Rows without a reference answer: no verifier runs."""
  tiny_data.byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
  row = {"question": "1+1?", "response": "It is 2."}
  path = tiny_data.write(tmp_path / "pairs.jsonl", [row])
  flags = [
      "--stage=prepare",
      "--config=configs/base.py",
      "--config.task.name=files",
      "--config.sft.steps=1",
      f"--config.tokenizer={tmp_path / 'tokenizer'}",
      f"--config.data.train={path}",
      f"--workdir={tmp_path / 'run'}",
  ]
  assert f"1 of 1 rows of {path} kept" in command(*flags)[0]
  [row] = tiny_data.rows(tmp_path / "run" / "data")
  assert row.response == "It is 2."
  assert "prepared already" in command(*flags)[0]
  (tmp_path / "pairs.jsonl").write_text("nothing\n")
  _, error = command(*flags, code=2)
  assert error.count("\n") == 1 and "1 rows: the row is malformed" in error
