"""The notebooks run from top to bottom."""

import os
import shutil

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


def executed(name, replaced, tmp_path, monkeypatch):
  """The notebook after a run beside a copy of the package, and its folder.

  Args:
    name: of the file, without .ipynb.
    replaced: texts of the code -> what stands there instead.
  """
  nbclient = pytest.importorskip("nbclient")
  nbformat = pytest.importorskip("nbformat")
  pytest.importorskip("ipykernel")
  for folder in ("rl_reason", "configs", "notebooks"):
    shutil.copytree(ROOT / folder, tmp_path / folder)
  monkeypatch.setenv("XLA_FLAGS", "")  # one device, as a user has it
  # The copy's package, also where another one is installed.
  path = os.environ.get("PYTHONPATH", "")
  monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
  where = tmp_path / "notebooks"
  nb = nbformat.read(where / f"{name}.ipynb", as_version=4)
  for before, after in replaced.items():
    assert any(before in cell.source for cell in nb.cells), before
    for cell in nb.cells:
      cell.source = cell.source.replace(before, after)
  nbclient.NotebookClient(
      nb, timeout=600, resources={"metadata": {"path": where}}
  ).execute()
  return nb, where


def test_it_runs(tmp_path, monkeypatch):
  """In smoke mode, with live curves, the report and a reward of its own."""
  smoke = {"SMOKE = False": "SMOKE = True"}
  nb, where = executed("quickstart", smoke, tmp_path, monkeypatch)

  outputs = [x for cell in nb.cells for x in cell.get("outputs", [])]
  printed = "".join(x.text for x in outputs if x.output_type == "stream")
  assert len(printed.splitlines()) <= 30
  assert "held-out accuracy (mean@4" in printed and "short, too" in printed
  pictures = [
      x.data["image/svg+xml"]
      for x in outputs
      if "image/svg+xml" in x.get("data", {})
  ]
  live, more = pictures  # the first one was drawn until the run was done
  assert live.count("<polyline points=") >= 3 and "rl, step" not in live
  assert more.count("<polyline points=") >= 2
  assert "quickstart-smoke-short/export/policy" in printed
  policy = where / "runs" / "quickstart-smoke-short" / "export" / "policy"
  assert (policy / "model.safetensors").exists()
  runs = {x.name for x in (where / "runs").iterdir()}
  assert runs == {"quickstart-smoke", "quickstart-smoke-short"}
  metrics = (
      where / "runs" / "quickstart-smoke-short" / "metrics.jsonl"
  ).read_text()
  assert "reward/" in metrics and '"stage": "sft"' not in metrics


def test_a_task_of_ones_own(tmp_path, monkeypatch):
  """With few steps: both runs, the table of steps, and the questions."""
  few = {
      "c.sft.lr = 600,": "c.sft.lr = 20,",
      "c.optimizer.lr = 40,": "c.optimizer.lr = 2,",
      "c.evaluate.prompts, c.evaluate.interim_prompts = 200, 100": (
          "c.evaluate.prompts, c.evaluate.interim_prompts = 20, 10"
      ),
  }
  nb, where = executed("own_task", few, tmp_path, monkeypatch)
  outputs = [x for cell in nb.cells for x in cell.get("outputs", [])]
  printed = "".join(x.text for x in outputs if x.output_type == "stream")
  assert "after 2 steps" in printed and "traps, the policy solves" in printed
  assert "fewest alone: held-out" in printed and "alerts: " in printed
  assert printed.count("CPU seconds") == 2
  metrics = (where / "runs" / "coins-strict" / "metrics.jsonl").read_text()
  assert '"stage": "sft"' not in metrics  # sft.reuse
