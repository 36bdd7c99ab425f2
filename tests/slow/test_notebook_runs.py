"""The quickstart runs from top to bottom."""

import os
import shutil

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


def test_it_runs(tmp_path, monkeypatch):
  """In smoke mode, with live curves, the report and a reward of its own."""
  nbclient = pytest.importorskip("nbclient")
  nbformat = pytest.importorskip("nbformat")
  pytest.importorskip("ipykernel")
  for name in ("rl_reason", "configs", "notebooks"):
    shutil.copytree(ROOT / name, tmp_path / name)
  monkeypatch.setenv("XLA_FLAGS", "")  # one device, as a user has it
  # The copy's package, also where another one is installed.
  path = os.environ.get("PYTHONPATH", "")
  monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
  where = tmp_path / "notebooks"
  nb = nbformat.read(where / "quickstart.ipynb", as_version=4)
  for cell in nb.cells:
    cell.source = cell.source.replace("SMOKE = False", "SMOKE = True")
  nbclient.NotebookClient(
      nb, timeout=600, resources={"metadata": {"path": where}}
  ).execute()

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
