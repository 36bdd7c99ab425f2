"""From a checkpoint and files to a trained model: every stage, on tiny ones."""

import json
import os
import re
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import tiny_data
import tiny_session
from conftest import ROOT, child_env

from rl_reason import tasks, verifiers
from rl_reason.evaluation import evaluate
from rl_reason.tasks import files


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


def command(*flags):
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", *flags],
      cwd=ROOT,
      env=child_env() | {"HF_HUB_OFFLINE": "1"},
      capture_output=True,
      text=True,
  )
  assert not done.returncode, done.stdout + done.stderr
  return done.stdout


SMALL = {
    "rollout.batch": 16,
    "rollout.group_size": 4,
    "rollout.max_prompt": 300,
    "rollout.max_tokens": 8,
    "reward.overlong_buffer": 2,
    "reward.workers": 2,
    "reward.scorers": "boxed*0.5..1,steps*0.5,length*-0.3",
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
    "log.tensorboard": False,
}


@pytest.mark.slow
def test_dapo_on_a_checkpoint_and_files(tmp_path):
  """The command of configs/dapo_qwen.py, evaluation, and export."""
  import test_hf  # slow to import

  model = test_hf.checkpoint(
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
  flags = [f"--config.{name}={value}" for name, value in SMALL.items()]
  workdir = f"--workdir={tmp_path / 'run'}"
  command(
      "--config=configs/dapo_qwen.py",
      f"--config.model.path={model}",
      f"--config.data.train={tmp_path / 'dapo-math-17k.parquet'}",
      f"--config.data.evaluate=aime24@{aime},{own}",
      *flags,
      workdir,
  )
  run = tmp_path / "run"
  lines = [json.loads(x) for x in (run / "metrics.jsonl").open()]
  evaluated = [x for x in lines if x["stage"] == "evaluate"]
  assert [x["step"] for x in evaluated] == [0, 1, 2]
  for name in ("aime24", "own"):
    assert 0 <= evaluated[-1][f"val-core/{name}/acc/mean@2"] <= 1
  steps = [x for x in lines if x["stage"] == "rl"]
  for name in ("boxed", "steps", "length"):
    assert all(f"reward/{name}/mean" in x for x in steps)
  assert not any(x["train/verifier_failures"] for x in steps)
  sample = json.loads((run / "samples.jsonl").open().readline())
  assert sample["prompt"].startswith("<|s|>user Work out")

  before = (run / "data" / "data.json").read_text()
  command("--stage=evaluate", workdir)
  assert (run / "data" / "data.json").read_text() == before
  results = json.loads((run / "results-newest.json").read_text())["results"]
  assert set(results) == {"aime24", "own"}
  assert results["own"]["mean@2,none"] >= 0
  page = (run / "responses-newest.html").read_text()
  assert "What is 3 times 7?" in page
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


def test_verdicts_come_from_other_processes():
  """In order; a verifier that fails costs that response alone."""
  kinds = dict(math="rl_reason.verifiers.math", bad="no.such.module")
  row = tasks.Row("", "4", 0, kind="math")
  task = files.Verifier(2, 10.0)
  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(verifiers, "KINDS", kinds)
      verdicts = task.begin(
          [
              (r"\boxed{4}", row),
              (r"\boxed{5}", row),
              (r"\boxed{4}", row._replace(kind="bad")),
              (r"so it is \boxed{2+2}", row),
              (r"\boxed{4.1}", row),
              (r"\boxed{4.1}", row._replace(tolerance=0.1)),
          ]
      )
      assert verdicts() == [True, False, None, True, False, True]
    assert task.answer(r"\boxed{4}", row) == "4"
    assert task.answer("", row) == ""
  finally:
    task.close()


VERIFIER = """
def check(text, reference):
  if text == "raise":
    raise ValueError(f"no {reference}")
  if text == "hang":
    while True:
      pass
  return text.endswith(reference)

constant = 3
"""


def test_a_verifier_of_the_user(tmp_path, monkeypatch):
  """In worker processes; the first failure is shown, the rest are counted."""
  (tmp_path / "verifier_of_test.py").write_text(VERIFIER)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  kind, shown = "verifier_of_test:check", []
  files.check_kind(kind)
  for wrong in ("verifier_of_test:constant", "verifier_of_test:no", "poetry"):
    with pytest.raises(ValueError):
      files.check_kind(wrong)
  row = tasks.Row("", "4", 0, kind=kind)
  task = files.Verifier(1, 0.3, shown.append)
  try:
    texts = ["2+2=4", "raise", "5", "hang", "raise"]
    verdicts = task.begin([(text, row) for text in texts])()
    assert verdicts == [True, None, False, None, None]
    assert task.answer("so\nit is 4\n", row) == "it is 4"
  finally:
    task.close()
  [text] = shown
  assert "verifier_of_test.py" in text and "ValueError: no 4" in text


def test_the_task_of_the_documentation(tmp_path, monkeypatch):
  """As printed: checks, problems, demonstrations, and a sampled round."""
  text = (ROOT / "docs" / "data.md").read_text()
  [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  assert code.count("\n") <= 40
  (tmp_path / "my_task.py").write_text(code)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  session = tiny_session.make_session(
      tmp_path, task__name="my_task", evaluate__prompts=8, rollout__batch=8
  )
  task = session.task
  rows = session.rows.evaluation_sets(8)["my_task"]
  assert len(rows) == 8 and {row.difficulty for row in rows} <= {2, 3, 4, 5, 6}
  for row in rows:
    assert int(row.answer) == sum(map(int, row.prompt[:-1])) % 10
    for style in ("careful", "direct"):
      assert task.verify(task.demonstrate(row, style, None), row)
    assert not task.verify(row.answer, row)
  careful = task.demonstrate(tasks.Row("3142=", "0", 4), "careful", None)
  assert careful == "3480#0" and task.answer(careful, rows[0]) == "0"
  params = tiny_session.random_params(session)
  numbers, [responses] = evaluate.evaluate(session, params, 8, "testing")
  assert responses.name == "my_task" and len(responses.texts_NG) == 8
  assert 0 <= numbers["val-core/my_task/acc/mean@1"] < 1
  assert numbers["val-aux/verifier_failures"] == 0
