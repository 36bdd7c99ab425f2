"""Whole runs, then commands that get nothing but their directories."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
import tiny_session
from checkpoints import bits, checkpoint, with_tokenizer
from conftest import child_env
from test_train import ROWS, tiny_config, train
from tiny_data import byte_tokenizer

from rl_reason.base import config as config_lib

pytestmark = pytest.mark.slow

CODE = '''
from rl_reason.tasks import Row

def short(response, row):
  return -len(response.text) / 10

def centred(rewards_B, groups_B, values_BT, *, scale: float = 1.0):
  return scale * (rewards_B[:, None] - values_BT)

class Game:
  """A guess of a digit: over after two turns."""

  ALPHABET = "0123456789 ="
  DIFFICULTIES = (0,)

  def problem(self, rng, difficulty):
    digits = "".join(map(str, rng.integers(10, size=4)))
    return Row(f"{digits}=", digits[0])

  def demonstrate(self, row, style, rng):
    return [row.answer]

  def reset(self, row, rng):
    self.answer, self.turns = row.answer, 0
    return None

  def step(self, response):
    self.turns += 1
    right = response == self.answer
    return " 0 ", float(right), right or self.turns > 1
'''
TRAIN = """
import sys
from conftest import ROOT
from test_train import tiny_config
from rl_reason import api

api.train(tiny_config(), overrides=eval(sys.argv[1]), workdir=sys.argv[2])
"""


def command(where, *flags, code=0):
  """Runs the command in a directory; returns what it prints."""
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", *flags],
      cwd=where,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.returncode == code, done.stdout + done.stderr
  assert "Traceback" not in done.stderr
  return done.stdout + done.stderr


@pytest.fixture
def places(tmp_path):
  """A directory where a run is trained, and another one."""
  here, there = tmp_path / "here", tmp_path / "there"
  here.mkdir()
  there.mkdir()
  (here / "my_code.py").write_text(CODE)
  return here, there


def train_in(where, **overrides):
  """Trains in a process of its own, whose working directory is `where`."""
  env = child_env()
  env["PYTHONPATH"] = os.pathsep.join([*sys.path, env.get("PYTHONPATH", "")])
  fields = {name.replace("__", "."): x for name, x in overrides.items()}
  argv = [sys.executable, "-c", TRAIN, repr(fields), "runs/a"]
  subprocess.run(argv, cwd=where, env=env, check=True)
  return where / "runs" / "a"


def test_code_of_the_user_is_not_needed(places):
  """An own game, advantage with a critic, and reward: none is there later."""
  here, there = places
  train_in(
      here,
      task__name="my_code:Game",
      task__difficulties=(),
      advantage__name="my_code:centred",
      reward__functions="my_code:short*0.5",
  )
  shutil.move(here / "runs" / "a", there / "b")
  out = command(there, "--stage=export", "--workdir=b")
  assert "critic of step 1 written to b/export/critic" in out
  last = bits(there / "b" / "export" / "policy")
  out = command(there, "--stage=export", "--workdir=b", "--step=sft")
  assert "the policy of SFT written to b/export/policy" in out
  first = bits(there / "b" / "export" / "policy")
  assert first.keys() == last.keys() and first != last
  out = command(there, "--stage=evaluate", "--workdir=b", code=2)
  assert "task.name = 'my_code:Game': cannot be imported: there is no" in out
  shutil.copy(here / "my_code.py", there)
  out = command(there, "--stage=evaluate", "--workdir=b", "--step=1")
  assert "evaluating the policy of step 1" in out
  assert (there / "b" / "evaluation-1.json").exists()


def test_rows_and_a_model_that_are_gone(places):
  """LoRA on a model of transformers; rows that only rewards judge."""
  here, there = places
  with_tokenizer(checkpoint(here / "model", vocab_size=300))
  byte_tokenizer().save_pretrained(here / "model")
  rows = "".join(json.dumps(dict(question=f"{n}+1?")) + "\n" for n in range(40))
  (here / "rows.jsonl").write_text(rows)
  (here / "test.jsonl").write_text(rows.replace("+1?", "+2?"))
  train_in(
      here,
      model__path="model",
      sft__steps=0,
      lora__rank=2,
      task__name="files",
      data__train="rows.jsonl",
      data__evaluate="test.jsonl",
      data__kind="none",
      reward__functions="my_code:short*0.5,length*-0.1",
  )
  shutil.copytree(here / "runs" / "a", there / "b")
  out = command(there, "--stage=export", "--workdir=b", code=2)
  assert "model.path = 'model': there is no such directory" in out
  place = f"--config.model.path={here / 'model'}"
  command(there, "--stage=export", "--workdir=b", place)
  command(here, "--stage=export", "--workdir=runs/a")
  moved = bits(there / "b" / "export" / "policy")
  assert moved == bits(here / "runs" / "a" / "export" / "policy")
  (here / "test.jsonl").unlink()
  out = command(there, "--stage=evaluate", "--workdir=b", place)
  assert "my_code:short (there is no module my_code in" in out
  assert "evaluation are length*-0.1 alone" in out
  assert "data: the rows that the run prepared, b/data" in out
  found = json.loads((there / "b" / "evaluation-newest.json").read_text())
  out = command(here, "--stage=evaluate", "--workdir=runs/a")
  assert "left out" not in out
  path = here / "runs" / "a" / "evaluation-newest.json"
  name = "val-core/test/reward/mean@1"
  assert found[name] != json.loads(path.read_text())[name]


def test_what_a_notebook_trained(places, monkeypatch):
  """Objects of a session, in a directory relative to the notebook."""
  here, there = places
  monkeypatch.chdir(here)
  byte_tokenizer().save_pretrained(here / "tokenizer")
  result = train(
      tiny_config(tokenizer="tokenizer"),
      rows=ROWS,
      reward=lambda response, row: -len(response.text) / 10,
      workdir="runs/a",
      show=False,
  )
  want = tiny_session.digest(result.params)
  shutil.rmtree(here / "tokenizer")
  shutil.move(here / "runs" / "a", there / "b")
  shutil.rmtree(here)
  command(there, "--stage=export", "--workdir=b")
  exported = bits(there / "b" / "export" / "policy")
  assert "model.embed_tokens.weight" in exported and want
  out = command(there, "--stage=evaluate", "--workdir=b")
  assert "data: the rows that the run prepared, b/data" in out
  found = json.loads((there / "b" / "evaluation-newest.json").read_text())
  logged = [x for x in result.history if x["stage"] == "evaluate"] or [
      json.loads(line)
      for line in (there / "b" / "metrics.jsonl").read_text().splitlines()
  ]
  name = "val-core/evaluate_rows/acc/greedy"
  assert found[name] == [x[name] for x in logged if name in x][-1]
  fields = config_lib.load(there / "b" / "config.json")
  assert fields["reward.functions"].startswith(
      "rl_reason.tasks.passed_objects:"
  )
  serve(there)


def serve(where):
  """The server answers a request for the run `b` of a directory."""
  process = subprocess.Popen(
      [sys.executable, "-m", "rl_reason.main", "--stage=serve", "--workdir=b"]
      + ["--config.serve.port=0"],
      cwd=where,
      env=child_env(),
      stdout=subprocess.PIPE,
      text=True,
  )
  try:
    lines = []
    for line in process.stdout:
      lines.append(line)
      if "listening at " in line:
        break
    url = lines[-1].split("listening at ")[1].split(";")[0]
    body = json.dumps(dict(prompt="1+1?", max_tokens=4)).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
      assert "text" in json.load(answer)["choices"][0]
  finally:
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait() == 143 or process.returncode == 0
