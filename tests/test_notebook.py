"""The quickstart stores no output, and its code names what exists."""

import ast
import importlib
import json
import re

from conftest import ROOT

NOTEBOOK = "notebooks/quickstart.ipynb"
CELLS = json.loads((ROOT / NOTEBOOK).read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_no_output_is_stored_and_it_trains_the_default():
  for cell in CODE:
    assert cell["outputs"] == [] and cell["execution_count"] is None
  assert any("SMOKE = False\n" in cell["source"] for cell in CODE)
  assert "/blob/main/notebooks/quickstart.ipynb)" in "".join(CELLS[0]["source"])


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
