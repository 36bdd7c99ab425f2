"""Folders form a tree of dependencies; the command line touches no device.

The law has no exceptions: a folder may import another one only if that one
never imports it, directly or through others. Modules beside `main.py` form one
folder.
"""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def imports(path: pathlib.Path) -> set[str]:
  """Full names that a file imports, wherever in the file; none is relative."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return found


def graph() -> dict[str, set[str]]:
  """Module of rl_reason -> the modules of rl_reason that it imports."""
  names = {}
  for path in (ROOT / "rl_reason").rglob("*.py"):
    parts = path.relative_to(ROOT / "rl_reason").with_suffix("").parts
    names[".".join(p for p in parts if p != "__init__")] = path
  names.pop("")  # __version__
  out = {}
  for name, path in names.items():
    wanted = {x.removeprefix("rl_reason.") for x in imports(path)}
    # `from rl_reason.base.structs import Array` asks for structs.Array; what is
    # imported from a room is its module, not the room.
    wanted |= {
        x.rpartition(".")[0]
        for x in wanted
        if x not in names or x.rpartition(".")[0] in ("tasks", "verifiers")
    }
    out[name] = (wanted & set(names)) - {name}
  return out


def folder(name: str) -> str:
  """The folder of a module; '' is that of `main.py`."""
  path = ROOT / "rl_reason" / name.replace(".", "/")
  return name if path.is_dir() else name.rpartition(".")[0]


def folders(modules: dict[str, set[str]]) -> dict[str, set[str]]:
  """Folder -> the folders that its modules import."""
  out: dict[str, set[str]] = {}
  for name, wanted in modules.items():
    others = out.setdefault(folder(name), set())
    others |= {folder(other) for other in wanted} - {folder(name)}
  return out


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
