"""The quickstart has real outputs, and its code names what exists."""

import ast
import importlib
import json
import re

import pytest
from conftest import ROOT

from rl_reason.base import errors
from rl_reason.report import notebook

NOTEBOOK = "notebooks/quickstart.ipynb"
TEXT = (ROOT / NOTEBOOK).read_text()
CELLS = json.loads(TEXT)["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
OUTPUTS = [output for cell in CODE for output in cell["outputs"]]


def printed() -> str:
  return "".join("".join(x["text"]) for x in OUTPUTS if "text" in x)


def test_its_outputs_are_those_of_its_code():
  smoke = any("SMOKE = True\n" in cell["source"] for cell in CODE)
  steps = 3 if smoke else 24
  counts = [cell["execution_count"] for cell in CODE]
  assert counts == [*range(1, len(CODE) + 1)], "executed once, in order"
  assert not [x for x in OUTPUTS if x["output_type"] == "error"]
  assert "held-out accuracy (mean@4, 95% intervals): " in printed()
  assert f"after {steps} steps" in printed() and "written to " in printed()
  pictures = [
      "".join(x.get("data", {}).get("image/svg+xml", "")) for x in OUTPUTS
  ]
  assert sum(x.count("<polyline ") for x in pictures) >= 5
  assert len(TEXT) < 200_000


def test_it_names_no_path_of_a_machine_and_no_address():
  paths = re.findall(
      r"(?<![\w/:.<])/(?:home|root|tmp|opt|usr|work)/[\w/]*", TEXT
  )
  assert not paths
  addresses = set(re.findall(r"https?://[^\s\"\\]+", TEXT))
  assert addresses <= {
      "https://github.com/OWNER/rl_reason",
      "http://www.w3.org/2000/svg",
  }
  assert TEXT.count('REPOSITORY = \\"') == 1


def test_the_code_compiles_and_names_existing_functions():
  tree = ast.parse("\n\n".join("".join(cell["source"]) for cell in CODE))
  modules = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module.startswith("rl_reason"):
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        modules[alias.name] = importlib.import_module(name)
  assert modules
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      if node.value.id in modules:
        assert hasattr(modules[node.value.id], node.attr)


def test_files_that_it_names_exist():
  text = "".join("".join(cell["source"]) for cell in CELLS)
  text = re.sub(r"https:\S+", "", text)
  for path in re.findall(r"(?:configs|launch|docs|rl_reason)/[\w/.]+\w", text):
    assert (ROOT / path).exists(), path


# --- what it shows -----------------------------------------------------------


def logged(workdir, name, lines):
  (workdir / name).write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_curves_are_those_of_the_log(tmp_path):
  lines = [
      {"stage": "rl", "step": n, "train/accuracy": n / 4} for n in range(1, 5)
  ]
  logged(tmp_path, "metrics.jsonl", lines)
  svg = notebook.curves(
      tmp_path, "Accuracy", "Entropy", status="a < b"
  )._repr_svg_()
  assert svg.count("<polyline ") == 1 and "no numbers yet" in svg
  assert "a &lt; b" in svg and ">training</text>" in svg
  [points] = re.findall(r'points="([^"]*)"', svg)
  xs, ys = zip(*(map(float, x.split(",")) for x in points.split()), strict=True)
  # From a quarter to all of both axes: 302 wide, 132 high, y downwards.
  assert xs == pytest.approx([46 + 302 * n / 4 for n in range(1, 5)], abs=0.06)
  assert ys == pytest.approx([176 - 132 * n / 4 for n in range(1, 5)], abs=0.06)
  assert "no numbers yet" in notebook.curves(tmp_path / "absent").svg
  with pytest.raises(errors.ConfigError, match="did you mean Accuracy"):
    notebook.curves(tmp_path, "Acuracy")


def test_responses_are_the_newest_group_with_signal(tmp_path):
  row = dict(
      stage="rl", group=0, discarded=False, reward=1, tokens=["<b>", "x"]
  )
  rows = [
      row | dict(step=1, prompt="old", advantage=[1, 1]),
      row | dict(step=2, prompt="1+1=", advantage=[1.0, -0.5]),
      row | dict(step=3, prompt="none", advantage=[0, 0], discarded=True),
  ]
  logged(tmp_path, "samples.jsonl", rows)
  text = notebook.responses(tmp_path)._repr_html_()
  assert "Step 2, prompt <code>1+1=</code>" in text and "+1.00" in text
  assert 'rgb(30 130 230 / 50%)">&lt;b&gt;<' in text
  assert 'rgb(230 100 30 / 25%)">x<' in text
  assert "no group" in notebook.responses(tmp_path / "absent").text
  # Without details, and with numbers that were not finite.
  bare = dict(stage="rl", step=4, group=0, discarded=False, prompt="2=")
  rows = [
      bare | dict(reward=None, response="<i>"),
      bare
      | dict(reward=-1, response="ab", tokens=["a", "b"])
      | dict(advantage=[None, 3.0]),
  ]
  logged(tmp_path, "samples.jsonl", rows)
  text = notebook.responses(tmp_path).text
  assert "<td>none</td>" in text and '/ 0%)">&lt;i&gt;<' in text
  assert "<td>-1.00</td>" in text and '/ 0%)">a<' in text
  assert 'rgb(30 130 230 / 50%)">b<' in text
