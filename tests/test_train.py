"""`rl_reason.train`: objects in hand, mistakes as exceptions, names."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pyarrow
import pytest
import tiny_session
from conftest import ROOT

from rl_reason import api, run
from rl_reason.base import config, errors
from rl_reason.configs import base
from rl_reason.data import given_rows
from rl_reason.tasks import Row, passed_objects


def train(*args, **options):
  return api.train(*args, devices=jax.devices()[:1], **options)


@pytest.fixture(autouse=True, scope="module")
def quick():
  """Compiles in half of the time."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


def tiny_config(**fields):
  """One RL step of one layer on one device."""
  c = tiny_session.tiny_config()
  c.sft.steps, c.sft.habits.steps = 1, 0
  c.rollout.update(batch=32, group_size=4, max_prompt=16, max_tokens=8)
  c.dynamic_sampling.enabled = False
  c.evaluate.update(prompts=8, interim_prompts=8, batch=8, samples=1)
  c.rl.steps, c.reward.workers = 1, 1
  for name, value in fields.items():
    tiny_session.set_field(c, name.replace("__", "."), value)
  return c


ROWS = [
    dict(question=f"{n}+1?", answer=str(n + 1), response="2", length=n)
    for n in range(40)
]


class Task:
  """Whether a response repeats the digit."""

  ALPHABET = "0123456789="

  def problem(self, rng, difficulty):
    digits = "".join(map(str, rng.integers(10, size=3)))
    return Row(f"{digits}=", digits[-1])

  def verify(self, text, row):
    return row.answer in text

  def demonstrate(self, row, style, rng):
    return row.answer


@pytest.mark.slow
def test_a_task_in_hand(tmp_path, monkeypatch, capsys):
  """A preset by name, overrides, a new directory, signals as before."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs" / "train-1").mkdir(parents=True)
  before = signal.getsignal(signal.SIGTERM)
  programs = jax.config.jax_compilation_cache_dir
  usual, tiny = config.flat(base.get_config()), config.flat(tiny_config())
  overrides = {k: x for k, x in tiny.items() if x != usual[k]}
  result = train(
      "dapo",
      task=Task(),
      overrides=overrides | {"task.difficulties": ()},
      stage="sft",
  )
  assert str(result.workdir) == "runs/train-2"
  assert result.config.task.name == "rl_reason.tasks.passed_objects:Task"
  name = "sft/val-core/rl_reason.tasks.passed_objects:Task/acc/mean@1"
  assert name in result.metrics
  assert signal.getsignal(signal.SIGTERM) is before
  assert jax.config.jax_compilation_cache_dir == programs
  assert not (result.workdir / "compiled").exists()
  assert "work directory runs/train-2" in capsys.readouterr().out


def raises(response, row):
  raise KeyError("of the user")


PAIR = [dict(question="1+1?", answer="2"), dict(question="2+2?", answer="4")]
LINES = [json.dumps(x) for x in PAIR]
MISTAKES = [
    (dict(config="dapoo"), "did you mean dapo"),
    (dict(overrides={"rollout.batchs": 3}), "did you mean rollout.batch"),
    (dict(stage="report"), "stage = 'report': must be one of all"),
    (dict(reward=3), "reward = 3: must be a function"),
    (dict(reward=lambda x: 0), r"takes \(x\): a reward function takes"),
    (dict(evaluate_rows=ROWS), "rows are missing"),
    (dict(logger=[print, "wandbb"]), "log.loggers = .*did you mean wandb"),
    (dict(rows=ROWS, task=Task()), "rows: task.name = .*Task' is given, too"),
    (dict(rows=ROWS[:1]), "too few rows: at least 2"),
    (dict(rows=[dict(question=object())] * 9), "row 0 is no dict of JSON"),
    (dict(rows=[dict(question=b"1")] * 9), "b'1' is of the type bytes"),
    (dict(rows="none.jsonl"), "rows = 'none.jsonl': there is no such file"),
    (dict(rows=["1+1?"]), r"row 0 is '1\+1\?' \(str\); a row is a dict"),
    (dict(rows=ROWS[0]), "is one dict, and no dict of columns; give a list"),
    (dict(rows=dict(question=["?"], answer=[])), "question 1, answer 0"),
    (dict(rows=7), "rows: int has no rows; give a list of dicts"),
    (
        dict(rows=ROWS, evaluate_rows=[None]),
        "evaluate_rows: row 0 is 'None' .NoneType.",
    ),
    (
        dict(
            reward=lambda response, row: 0,
            overrides={"reward.executor": "process"},
        ),
        "another process cannot import rl_reason.tasks.passed_objects:lambda",
    ),
    (dict(rows=ROWS), "name a tokenizer"),
]


@pytest.mark.parametrize("arguments, words", MISTAKES)
def test_mistakes_are_exceptions(arguments, words, tmp_path):
  options = dict(config=tiny_config(), workdir=tmp_path / "run", show=False)
  with pytest.raises(errors.ConfigError, match=words):
    train(**options | arguments)


def test_rows_are_a_path_columns_or_a_table(tmp_path):
  (tmp_path / "a.jsonl").write_text("".join(map("{}\n".format, LINES)))
  (tmp_path / "b.json").write_text(f"[{','.join(LINES)}]")
  columns = {name: [x[name] for x in PAIR] for name in PAIR[0]}

  class Frame(dict):  # as pandas has it

    iloc = None

    def to_dict(self, orient):
      return PAIR if orient == "records" else None

  for given_as in (
      PAIR,
      iter(PAIR),
      tmp_path / "a.jsonl",
      str(tmp_path / "b.json"),
      columns,
      {name: np.array(x) for name, x in columns.items()},
      pyarrow.Table.from_pylist(PAIR),
      Frame(),
  ):
    assert list(map(dict, given_rows.rows_of(given_as, "rows"))) == PAIR
  splits = dict(train=types.SimpleNamespace(column_names=["question"]))
  with pytest.raises(errors.ConfigError, match=r"rows=dataset\['train'\]"):
    given_rows.rows_of(splits, "rows")


def test_names_of_objects():
  assert passed_objects.name_of(raises) == f"{__name__}:raises"
  assert passed_objects.name_of(signal) == "signal"
  one, two = (lambda: 1), (lambda: 2)
  names = [passed_objects.name_of(x) for x in (one, two, one)]
  assert names[0] == names[2] != names[1]
  found = config.functions.load(names[1])
  assert found is two


def test_a_cell_that_runs_again_gives_the_same_names():
  """And a run resumes by them; other functions of the same code differ."""

  def cell(limit):
    class Judge:

      def __init__(self):
        self.limit = limit

      def __call__(self, response, row):
        return self.limit

    return passed_objects.name_of(
        lambda x: len(x) / limit
    ), passed_objects.name_of(Judge())

  first, other, again = cell(3), cell(4), cell(3)
  assert again == first and not {*other} & {*first}


def test_the_package_imports_nothing_until_it_trains():
  code = """
import sys, rl_reason
assert not any(x.startswith("rl_reason.") for x in sys.modules)
rl_reason.train
assert "jax" not in sys.modules
"""
  done = subprocess.run(
      [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
  )
  assert not done.returncode, done.stderr


def test_the_printed_run_begins(tmp_path, monkeypatch, capsys):
  """docs/your_loop.md, up to the stages: they say what they were asked for."""
  text = (ROOT / "docs" / "your_loop.md").read_text()
  [code] = re.findall(r'```python\n("""Short answers.*?)```', text, re.DOTALL)
  seen = {}

  def stages(c, workdir, screen, stop, *, logger, **_):
    seen.update(c=c, rows=pathlib.Path(c.data.train).read_text())
    line = {"critic/rewards/mean": -0.5}
    [own] = logger
    own({f"rl/{k}": x for k, x in line.items()}, 3)
    line = dict(stage="evaluate", step=9)
    line["val-core/evaluate_rows/reward/greedy"] = -0.25
    (workdir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return None, None

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(run, "stages", stages)
  monkeypatch.setattr(api.Result, "sample", lambda self, x, count: [x * count])
  exec(compile(code, "printed", "exec"), {"__name__": "printed"})
  c, out = seen["c"], capsys.readouterr().out
  terms = "rl_reason.tasks.passed_objects:short*0.5,repetition*-0.1"
  assert c.reward.functions == terms and c.data.kind == "none"
  assert c.rl.steps == 20 and seen["rows"].count("\n") == 160
  assert "3 -0.5\n" in out and "-0.25\n" in out
  assert "no row has a reference answer" in out and "40 rows are held" in out


def test_cells_may_be_arrays():
  """As pandas reads lists of Parquet."""
  for cell, has in (
      (np.arange(3), True),
      ("", False),
      (None, False),
      (0, True),
  ):
    assert api._has({"answer": cell}, ["answer"]) == has
