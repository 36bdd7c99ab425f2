"""Every command of docs/first_run.md, in its order and its own directory."""

import json

import checkpoints
import pytest
import tiny_data
from conftest import ROOT

from bench.training import first_run

pytestmark = pytest.mark.slow

MEASURED = json.loads((ROOT / "results" / "first_run.json").read_text())


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
  """The directory, and what each command printed.

  The commands of larger machines take a small checkpoint and their smoke run.
  """
  place = tmp_path_factory.mktemp("walk")
  first_run.write_files(place)
  model = checkpoints.checkpoint(
      place / "DIR", "qwen2", vocab_size=300, max_position_embeddings=512
  )
  tiny_data.byte_tokenizer().save_pretrained(model)
  printed = {}
  for words in first_run.commands(first_run.DOCUMENT.read_text()):
    large = [x for x in words if x.endswith((":gpu", ":tpu"))]
    if large and "--stage=size" not in words:
      name = words.index(large[0])
      words = [*words[:name], f"{large[0]}:smoke", *words[name + 1 :]]
      words += ["--config.model.path=DIR", f"--workdir=runs/{len(printed)}"]
      # A random model solves nothing: it learns from the lengths.
      words += ["--config.model.dtype=float32"]
      words += ["--config.reward.functions=my_reward:steps*0.5,length*-0.3"]
    printed[" ".join(words)], _ = first_run.call(words, place)
  return place, printed


def test_all_commands_are_run(walked):
  assert len(walked[1]) >= 13


def test_accuracy_is_as_measured(walked):
  """Before RL and at its end, seed 0; and ten steps more keep it."""
  place, _ = walked
  lines = (place / "runs/my_run/metrics.jsonl").read_text().splitlines()
  name = first_run.CORE + first_run.ACCURACY
  scores = [json.loads(x).get(name) for x in lines]
  before, after, *more = [x for x in scores if x is not None]
  [seed] = [x for x in MEASURED["runs"] if x["seed"] == 0]
  assert before == pytest.approx(seed["before"][first_run.ACCURACY], abs=0.05)
  assert after == pytest.approx(seed["after"][first_run.ACCURACY], abs=0.05)
  assert after > before + 0.3 and min(more) > before + 0.3


def test_what_is_inspected_is_there(walked):
  place, printed = walked
  run = place / "runs" / "my_run"
  for name in ("samples.jsonl", "report.html", "data/quarantine.jsonl"):
    assert (run / name).stat().st_size
  assert (run / "export" / "policy" / "model.safetensors").exists()
  text = (run / "responses-newest.html").read_text()
  assert "The ball is under cup" in text
  prepared = next(x for k, x in printed.items() if "--stage=prepare" in k)
  assert "the first prompt, as the model reads it: 'The ball is" in prepared
