"""The quickstart runs from top to bottom."""

import os
import shutil

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
NOTEBOOK = "notebooks/quickstart.ipynb"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
  """A copy of what the notebook needs: its run stays out of the checkout."""
  root = tmp_path_factory.mktemp("copy")
  for name in ("rl_reason", "configs", "notebooks"):
    shutil.copytree(ROOT / name, root / name)
  return root


@pytest.mark.parametrize("where", ["notebooks", "."])
def test_it_runs(copy, where, monkeypatch):
  """Trains from notebooks/; then finds its run complete from the root."""
  nbclient = pytest.importorskip("nbclient")
  nbformat = pytest.importorskip("nbformat")
  pytest.importorskip("ipykernel")
  pytest.importorskip("matplotlib")
  monkeypatch.setenv("XLA_FLAGS", "")  # one device, as a user has it
  # The copy's package, also where another one is installed.
  path = os.environ.get("PYTHONPATH", "")
  monkeypatch.setenv("PYTHONPATH", f"{copy}{os.pathsep}{path}")
  nb = nbformat.read(copy / NOTEBOOK, as_version=4)
  nbclient.NotebookClient(
      nb, timeout=300, resources={"metadata": {"path": copy / where}}
  ).execute()

  outputs = [out for cell in nb.cells for out in cell.get("outputs", [])]
  text = "".join(out.get("text", "") for out in outputs)
  pages = [out["data"].get("text/html", "") for out in outputs if "data" in out]
  assert "held-out accuracy at step 3" in text or where == "."
  assert "leave_one_out  [ 2. -1. -1.  0.  0.  0.  0.]" in text
  assert any("image/png" in out.get("data", {}) for out in outputs)
  assert any("<th>before<th>after" in page for page in pages)
  assert any("hsl(" in page and "entropy" in page for page in pages)
  assert (copy / "runs" / "quickstart-smoke" / "metrics.jsonl").exists()
