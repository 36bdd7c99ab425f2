"""docs/first_run.md: its files, its numbers, and its config on each machine."""

import json
import runpy
import subprocess
import sys

import pytest
from conftest import ROOT

from bench.training import first_run
from rl_reason.checks import config_checks, machine_checks
from rl_reason.data import datasets
from rl_reason.lab import memory_formula, model_shapes, size as size_stage

TEXT = (ROOT / "docs" / "first_run.md").read_text()
FLAT = " ".join(TEXT.split())
GIB = 1 << 30


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A directory with the files that the page prints, and its rows."""
  directory = tmp_path_factory.mktemp("first_run")
  first_run.write_files(directory)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(directory)
    runpy.run_path("my_rows.py", run_name="__main__")
  return directory


def test_the_rows_are_as_printed(place):
  """Their number, their columns, and steps that lead to the answer."""
  lines = (place / "rows.jsonl").read_text().splitlines()
  held_out = (place / "test.jsonl").read_text().splitlines()
  assert f"{len(lines):,} rows to rows.jsonl and {len(held_out)} to" in FLAT
  rows = [json.loads(line) for line in lines]
  assert all(x["response"].endswith(f"Answer: {x['answer']}") for x in rows)
  shown = sum(": " in x["response"].removeprefix("Answer: ") for x in rows)
  assert 0.3 < shown / len(rows) < 0.37
  assert not set(lines) & set(held_out)
  [source, _], *_ = datasets.parse_all(str(place / "rows.jsonl"), "train", {})
  first = next(datasets.examples(source, datasets.columns(""), "math"))
  assert (first.question, first.answer) == (
      rows[0]["question"],
      rows[0]["answer"],
  )


def test_the_reward_prints_what_the_page_says(place):
  done = subprocess.run(
      [sys.executable, "my_reward.py"],
      cwd=place,
      capture_output=True,
      text=True,
      check=True,
  )
  scores = [line.split()[0] for line in done.stdout.splitlines()]
  assert scores == ["1.0", "0.5", "0.0"]
  assert "prints 1.0, 0.5 and 0.0." in TEXT


def test_steps_of_the_rows_are_right(place, monkeypatch):
  """Each response with steps scores 1: rows and reward agree."""
  monkeypatch.chdir(place)
  found = runpy.run_path("my_reward.py")
  for line in (place / "rows.jsonl").open():
    row = json.loads(line)
    response = found["Fake"](text=row["response"])
    score = found["steps"](response, found["Fake"](columns=row))
    assert score == float(": " in row["response"].removeprefix("Answer: "))


def test_the_numbers_of_the_page_are_measured():
  """Its tables, its screens and its accuracies: results/first_run.json."""
  result = json.loads((ROOT / "results" / "first_run.json").read_text())
  for line in first_run.cells(result):
    assert line in TEXT, line
  for text in first_run.claims(result):
    assert text in FLAT, text
  for line in result["screen"]:
    assert f"\n    {line}\n" in TEXT, line
  page = (ROOT / "results" / "first_run.md").read_text()
  assert page == "\n".join(first_run.page(result)) + "\n"


@pytest.mark.parametrize(
    "variant, devices, memory", [("gpu", 1, 24), ("tpu", 8, 16)]
)
def test_a_larger_model_fits(place, monkeypatch, variant, devices, memory):
  """The GiB of the table, as --stage=size computes them."""
  monkeypatch.chdir(place)
  monkeypatch.setattr(sys, "path", list(sys.path))
  c, notes = config_checks.checked(f"my_run.py:{variant}", {})
  sys.modules.pop("my_reward", None)
  machine_checks.devices(c, devices)
  cfg = model_shapes.shape(c)
  mesh = size_stage._mesh(c, devices)
  size = memory_formula.estimate(c, cfg, None, mesh)
  peaks = [size.update_peak / GIB, size.rollout_peak / GIB]
  assert f" {peaks[0]:.1f}, {peaks[1]:.1f} |" in TEXT
  assert not notes and size.peak < 0.9 * memory * GIB
  assert f"--devices={devices} --memory={memory}\n" in TEXT
