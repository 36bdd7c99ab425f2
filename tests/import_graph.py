"""Which module of the package imports which, read from the source."""

import ast
import functools
import pathlib

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


def heights(modules: dict[str, set[str]]) -> dict[str, int]:
  """Module -> its height: 1 without imports, else above all that it imports."""

  @functools.cache
  def height(name: str) -> int:
    return 1 + max(map(height, modules.get(name, ())), default=0)

  return {name: height(name) for name in modules}
