"""Folders form a tree of dependencies; the command line touches no device.

The law has no exceptions: a folder may import another one only if that one
never imports it, directly or through others. Modules beside `main.py` form one
folder.
"""

import ast
import graphlib
import re
import subprocess
import sys

import pytest
from import_graph import ROOT, folders, graph, imports


def test_no_folders_import_each_other():
  graphlib.TopologicalSorter(folders(graph())).prepare()


def test_no_modules_import_each_other():
  graphlib.TopologicalSorter(graph()).prepare()


def test_a_circle_is_seen():
  edges = graph()
  edges["models.critic"] |= {"rollout.sampler"}
  with pytest.raises(graphlib.CycleError):
    graphlib.TopologicalSorter(folders(edges)).prepare()


def test_a_file_name_means_one_thing():
  found = [name.rpartition(".")[2] for name in graph() if "." in name]
  assert not {name for name in found if found.count(name) > 1}


def test_algorithms_know_arrays_only():
  for path in (ROOT / "rl_reason" / "algorithms").glob("*.py"):
    for name in imports(path):
      known = (
          "chex collections dataclasses flax functools jax optax typing"
          " rl_reason"
      )
      assert name.partition(".")[0] in known.split(), f"{path}: {name}"
      if name.startswith("rl_reason"):
        own = "rl_reason.algorithms", "rl_reason.base.structs"
        assert name.startswith(own), path


def test_verifiers_import_nothing_else_of_the_package():
  for name, wanted in graph().items():
    if name.startswith("verifiers"):
      assert all(other.startswith("verifiers") for other in wanted), name


def test_the_command_line_is_checked_before_the_accelerator_is_touched():
  code = """
import sys
from rl_reason import main
main._prepare(["main", "--config=configs/dapo.py:smoke", "--workdir=none"])
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized(), "transformers" in sys.modules)
"""
  argv = [sys.executable, "-c", code, "--config=configs/dapo.py:smoke"]
  done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout == "False False\n", done.stderr


def test_names_of_functions_in_text_are_there():
  """Stages, their checks and workers are named as 'module:function'."""
  found = set()
  for path in (ROOT / "rl_reason").rglob("*.py"):
    found |= set(re.findall(r'"(rl_reason(?:\.\w+)+:\w+)"', path.read_text()))
  assert len(found) > 10
  for name in found:
    module, _, function = name.partition(":")
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    defined = [getattr(x, "name", "") for x in ast.parse(file.read_text()).body]
    assert function in defined, name
