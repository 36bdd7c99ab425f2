"""Imports point one way, and the command line is checked without jax."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A room imports from earlier lines only; a module with a line of its own is a
# door of its room to later rooms. The modules of a room are free to import each
# other, but not in a circle.
LAYERS = [line.split() for line in """
    structs verifiers functions configs
    dependencies serve.filters
    config monitoring algorithms scale
    report models
    tasks rollout
    environments
    data
    environments.episodes environments.observations
    combinations checkpointing.run_directory
    models.rules rounds.rules unread
    checks hf evaluation.statistics evaluation.reward_runner
    monitoring.rl_metrics monitoring.samples checkpointing engines
    session evaluation
    evaluation.interim
    training reward_models
    data.prepare evaluation.command hf.export size serve generate
    rounds
    ablate
    run
    api
    main
    """.strip().splitlines()]
# Rooms of one line that import each other, module by module.
TOGETHER = [{"training", "reward_models"}]


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
    # `from rl_reason.structs import Array` asks for structs.Array; what is
    # imported from a room is its module, not the room.
    wanted |= {
        x.rpartition(".")[0]
        for x in wanted
        if x not in names or x.rpartition(".")[0] in ("tasks", "verifiers")
    }
    out[name] = (wanted & set(names)) - {name}
  return out


def layer(name: str) -> int:
  for known in (name, name.partition(".")[0]):
    for index, names in enumerate(LAYERS):
      if known in names:
        return index
  raise AssertionError(f"rl_reason/{name} has no layer in {__file__}")


@pytest.mark.parametrize(("name", "wanted"), sorted(graph().items()))
def test_imports_point_down(name, wanted):
  room = name.partition(".")[0]
  for other in wanted:
    rooms = {room, other.partition(".")[0]}
    if len(rooms) > 1 and not any(rooms <= both for both in TOGETHER):
      assert layer(other) < layer(name), f"{name} imports {other}"


def test_no_module_imports_itself_in_a_circle():
  graphlib.TopologicalSorter(graph()).prepare()


def test_a_back_edge_and_a_circle_are_seen():
  edges = graph()
  edges["algorithms.credit"] = {"models.decoder"}
  with pytest.raises(AssertionError, match="credit imports models.decoder"):
    test_imports_point_down("algorithms.credit", edges["algorithms.credit"])
  edges["structs"] |= {"training.rl"}
  with pytest.raises(graphlib.CycleError):
    graphlib.TopologicalSorter(edges).prepare()


def test_algorithms_know_arrays_only():
  for path in (ROOT / "rl_reason" / "algorithms").glob("*.py"):
    for name in imports(path):
      room = ".".join(name.split(".")[:2])
      known = (
          "chex collections dataclasses flax functools jax optax typing"
          " rl_reason"
      )
      assert name.partition(".")[0] in known.split(), f"{path}: {name}"
      if room.startswith("rl_reason"):
        assert room in ("rl_reason.algorithms", "rl_reason.structs"), path


def test_verifiers_import_nothing_else_of_the_package():
  for name, wanted in graph().items():
    if name.startswith("verifiers"):
      assert all(other.startswith("verifiers") for other in wanted), name


def test_the_command_line_is_checked_without_jax():
  code = """
import sys
from rl_reason import config, main
main._prepare(["main", "--config=configs/dapo.py:smoke", "--workdir=none"])
print(sorted({"jax", "flax", "transformers"} & set(sys.modules)))
"""
  argv = [sys.executable, "-c", code, "--config=configs/dapo.py:smoke"]
  done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout == "[]\n", done.stderr
