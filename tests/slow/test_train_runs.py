"""A whole run from Python: rows, rewards and loggers in hand."""

import threading
import types

import jax
import numpy as np
import pytest
import tiny_session
from test_train import ROWS, tiny_config, train
from tiny_data import byte_tokenizer

from rl_reason.stages.run_output import open_stage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tok_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("tokenizer")
  byte_tokenizer().save_pretrained(path)
  return str(path)


@pytest.fixture(scope="module")
def trained(tok_dir, tmp_path_factory):
  """The result of a run on rows; what its reward and loggers have seen."""
  seen = types.SimpleNamespace(batches=[], logged=[], closed=[])

  def high(batch):
    seen.batches.append(batch)
    return [np.mean(ids) for ids in batch.token_ids]

  class Logger:

    def write(self, step, metrics):
      seen.logged.append((metrics, step))

    def close(self):
      seen.closed.append(True)

  seen.result = train(
      tiny_config(tokenizer=tok_dir),
      rows=iter(ROWS),
      reward=[(high, 0.5), "length*-0.1"],
      logger=[Logger(), lambda metrics, step: seen.logged.append(step)],
      workdir=tmp_path_factory.mktemp("train") / "run",
      show=False,
  )
  return seen


def test_rows_and_rewards_train(trained):
  result, c = trained.result, trained.result.config
  name = "rl_reason.tasks.passed_objects:high"
  assert c.reward.functions == f"{name}*0.5,length*-0.1"
  mean = result.metrics[f"rl/reward/{name}/mean"]
  means = [np.mean(x) for batch in trained.batches for x in batch.token_ids]
  assert len(means) == 32 and mean == pytest.approx(np.mean(means))
  assert result.metrics[f"rl/reward/{name}/failures"] == 0
  assert 0 <= result.metrics["evaluate/val-core/evaluate_rows/acc/mean@1"] <= 1
  assert result.metrics["rl/reward/length/std"] >= 0
  columns = [batch.rows[0].columns for batch in trained.batches]
  assert all(x in ROWS for x in columns)
  assert (result.workdir / "report.html").exists()
  assert [x["stage"] for x in result.history][-1] == "evaluate"


def test_every_fifth_row_is_held_out(trained):
  files = (trained.result.workdir / "rows").glob("*/*")
  lines = {path.name: path.read_text().count("\n") for path in files}
  assert lines == {"rows.jsonl": 32, "evaluate_rows.jsonl": 8}


def test_loggers_are_called_and_closed(trained):
  metrics = [x for x in trained.logged if isinstance(x, tuple)]
  assert len(metrics) == len(trained.logged) / 2 and trained.closed == [True]
  [(rl, step)] = [x for x in metrics if "rl/train/accuracy" in x[0]]
  assert step == 1 and "rl/critic/rewards/mean" in rl


def test_the_result_samples(trained):
  prompts = ["1+1?", "2+1?", "3+1?"]
  texts = trained.result.sample(prompts, count=2, temperature=0.0)
  assert [len(x) for x in texts] == [2, 2, 2]
  assert all(a == b and isinstance(a, str) for a, b in texts)
  shapes = [x.shape for x in jax.tree.leaves(trained.result.params)]
  assert (len(byte_tokenizer()), 16) in shapes


def test_a_finished_run_is_not_trained_again(trained):
  """In another thread, where no signal arrives; the rows are the same."""
  first, results = trained.result, []

  def again():
    results.append(
        train(
            first.config,
            rows=ROWS,
            workdir=first.workdir,
            show=False,
        )
    )

  thread = threading.Thread(target=again)
  thread.start()
  thread.join()
  [second] = results
  assert tiny_session.digest(second.params) == tiny_session.digest(first.params)
  assert second.history == first.history


def test_without_a_verifier_the_reward_decides(tok_dir, tmp_path):
  """Rows without answers: signal, evaluation and `best` by the reward."""

  async def early(completions, length, **columns):
    found = zip(length, completions, strict=True)
    return [n / 100 - sum(map(ord, text)) / 10_000 for n, text in found]

  rows = [{k: x for k, x in row.items() if k != "answer"} for row in ROWS]
  c = tiny_config(tokenizer=tok_dir, rl__steps=2, checkpoint__keep_last=1)
  c.dynamic_sampling.update(enabled=True, max_rounds=2)
  result = train(
      c, rows=rows, reward=early, workdir=tmp_path / "run", show=False
  )
  assert result.config.data.kind == "none"
  found = [
      x["val-core/evaluate_rows/reward/mean@1"]
      for x in result.history
      if x["stage"] == "evaluate"
  ]
  assert len(found) == 3 and len(set(found)) > 1
  output = result.session.output
  checkpoints = open_stage(result.config, output, "rl").checkpoints
  assert checkpoints.best() == int(np.argmax(found))
  steps = [x for x in result.history if x["stage"] == "rl"]
  assert len(steps) == 2
  for x in steps:
    assert "train/accuracy" not in x and x["actor/grad_norm"] > 0
    assert x["train/groups_with_signal"] > 0
    mean = x["reward/rl_reason.tasks.passed_objects:early/mean"]
    assert x["critic/rewards/mean"] == pytest.approx(mean, rel=1e-5)
