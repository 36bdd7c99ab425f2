"""Imports point one way, and the command line is checked without jax."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CORE = (
    "advantages",
    "corrections",
    "credit",
    "losses",
    "objective",
    "rewards",
    "schedules",
    "surrogates",
    "values",
    "weights",
)

# A module imports from earlier lines only; a package's own modules are free to
# import each other, but not in a circle.
LAYERS = [line.split() for line in """
    structs display schedules alarms charts verifiers prompts
    datasets
    tasks
    scorers
    groups losses config sharding metrics packing dynamic_sampling linear
    checks advantages corrections surrogates values weights rewards
    tokenizer attention checkpoint report
    model
    data rollout credit critic objective hf lora
    rollout_weights
    step evaluate ablate
    stages
    main
    """.strip().splitlines()]


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
    # `from rl_reason.structs import Array` asks for structs.Array.
    wanted |= {x.rpartition(".")[0] for x in wanted}
    out[name] = (wanted & set(names)) - {name}  # a package has its modules
  return out


def layer(name: str) -> int:
  top = name.partition(".")[0]
  for index, names in enumerate(LAYERS):
    if top in names:
      return index
  raise AssertionError(f"rl_reason/{top} has no layer in {__file__}")


@pytest.mark.parametrize(("name", "wanted"), sorted(graph().items()))
def test_imports_point_down(name, wanted):
  package = name.partition(".")[0]
  for other in wanted:
    if other.partition(".")[0] != package:
      assert layer(other) < layer(name), f"{name} imports {other}"


def test_no_module_imports_itself_in_a_circle():
  graphlib.TopologicalSorter(graph()).prepare()


def test_a_back_edge_and_a_circle_are_seen():
  edges = graph()
  edges["losses"] = {"model"}
  with pytest.raises(AssertionError, match="losses imports model"):
    test_imports_point_down("losses", edges["losses"])
  edges["stages"] |= {"stages.rl"}
  with pytest.raises(graphlib.CycleError):
    graphlib.TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("name", CORE)
def test_the_core_knows_arrays_only(name):
  edges, seen, todo = graph(), set(), [name]
  while todo:
    now = todo.pop()
    seen.add(now)
    todo += edges[now] - seen
    path = ROOT / "rl_reason" / f"{now}.py"
    roots = {x.partition(".")[0] for x in imports(path)}
    arrays = {"chex", "flax", "jax", "optax", "rl_reason"}
    assert roots <= arrays | {"collections", "dataclasses", "typing"}
  assert seen <= {"structs", "groups", *CORE}


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
