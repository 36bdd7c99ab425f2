"""How much of the code knows a feature: the numbers of docs/design.md.

  python -m bench.tools.spine                # seconds; reads the source alone
  python -m bench.tools.spine --run          # and the modules that a run loads
  python -m bench.tools.spine --tests        # and seconds of the default tests
  python -m bench.tools.spine --tree=DIR     # of another checkout
  python -m bench.tools.spine --branches     # each branch with what needs it

These numbers help a reviewer. No test asks for them, and none is a reason to
carve a module. Definitions:

- branches: `if`, `elif`, conditional expressions, cases of `match` and
  conditions of comprehensions in the algorithmic files, which spine.toml lists
  (the files of docs/tour.md from the loop to the gradient, and loss_terms.py).
  spine.toml has patterns that say what needs a branch: a named algorithm (GRPO,
  DAPO, Dr.GRPO, RLOO, PPO, VAPO) or every run, or else a feature. Unknown ones
  count as features.
- lines of the reading path that name a feature: lines of the numbered files of
  docs/tour.md, with comments and docstrings, that match the words of a feature.
- files that name a feature: files of rl_reason/ outside of the feature's own
  folder of rl_reason/features/ whose text matches its words.
- functions that take the whole config: functions of rl_reason/ with a
  parameter `c`, or `config` that is no dict of fields.
- the trip of the config: calls that pass `c`, or `config`, on, in `rl.train`
  and in the functions that it passes the config to, and so on; a call that two
  functions make counts twice. Names are resolved by the imports of each file.
- the reading path with what binds: the numbered files, and those files of the
  trip with a function that returns or makes a function of arrays (`partial`,
  `lambda` or an inner function).
- modules that a run loads: of rl_reason, in the process of
  `configs/dapo.py:smoke`, at its end.
- seconds of the default tests: of `pytest -n auto`, on this machine.
"""

import argparse
import ast
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator

from bench import results

RULES = tomllib.loads(
    pathlib.Path(__file__).with_suffix(".toml").read_text("utf-8")
)
LOADED = """
import atexit, json, sys
def tell():
  found = [x for x in sys.modules if x.partition(".")[0] == "rl_reason"]
  print("LOADED", len(found), file=sys.stderr)
atexit.register(tell)
from rl_reason import main
sys.argv[0] = "rl_reason"
main.main()
"""
CONFIG = "ml_collections.ConfigDict"
Functions = dict[str, dict[str, ast.FunctionDef]]


def tour(tree: pathlib.Path) -> list[pathlib.Path]:
  """The numbered files of docs/tour.md."""
  text = (tree / "docs" / "tour.md").read_text()
  names = re.findall(r"(?m)^\d+\. [\[`*]*([\w/]+\.py)", text)
  return [tree / name for name in dict.fromkeys(names)]


# --- branches ----------------------------------------------------------------


def branches(path: pathlib.Path) -> Iterator[str]:
  """'file function: condition' of each branch of a file."""

  def walk(node: ast.AST, place: str) -> Iterator[str]:
    for x in ast.iter_child_nodes(node):
      inner = place
      match x:
        case ast.FunctionDef() | ast.ClassDef():
          inner = f"{place}.{x.name}".removeprefix(".")
        case ast.If() | ast.IfExp():
          yield f"{path.name} {place}: {ast.unparse(x.test)}"
        case ast.match_case():
          yield f"{path.name} {place}: {ast.unparse(x.pattern)}"
        case ast.comprehension():
          for test in x.ifs:
            yield f"{path.name} {place}: {ast.unparse(test)}"
      yield from walk(x, inner)

  yield from walk(ast.parse(path.read_text()), "")


def needed_by(branch: str) -> tuple[bool, str]:
  """Whether a named algorithm or every run needs a branch; and who does."""
  for rule in RULES["branch"]:
    if re.search(rule["pattern"], branch):
      return "core" in rule, rule.get("core") or rule["feature"]
  return False, "unknown"


# --- the config --------------------------------------------------------------


def holder(function: ast.FunctionDef) -> str:
  """The name of the parameter that is the whole config; '' without one."""
  args = function.args
  for x in (*args.posonlyargs, *args.args, *args.kwonlyargs):
    said = ast.unparse(x.annotation) if x.annotation else ""
    if x.arg == "c" or (x.arg == "config" and said in ("", CONFIG)):
      return x.arg
  return ""


def functions(tree: pathlib.Path) -> tuple[Functions, dict[str, dict]]:
  """Functions by module, methods as 'Class.name'; and imports by module."""
  found, imports = {}, {}
  for path in sorted((tree / "rl_reason").rglob("*.py")):
    parts = path.relative_to(tree).with_suffix("").parts
    module = ".".join(x for x in parts if x != "__init__")
    parsed = ast.parse(path.read_text())
    found[module] = {}
    for x in parsed.body:
      if isinstance(x, ast.FunctionDef):
        found[module][x.name] = x
      elif isinstance(x, ast.ClassDef):
        for y in x.body:
          if isinstance(y, ast.FunctionDef):
            name = x.name if y.name == "__init__" else f"{x.name}.{y.name}"
            found[module][name] = y
    imports[module] = {
        y.asname or y.name: f"{x.module}.{y.name}"
        for x in ast.walk(parsed)
        if isinstance(x, ast.ImportFrom)
        for y in x.names
    }
  return found, imports


def passed(function: ast.FunctionDef) -> list[str]:
  """The names that a function calls with the whole config."""
  name = holder(function)
  out = []
  for x in ast.walk(function):
    if isinstance(x, ast.Call):
      values = [*x.args, *(y.value for y in x.keywords)]
      if any(isinstance(y, ast.Name) and y.id == name for y in values):
        called = x.func
        # partial(f, c, ...) passes the config to f.
        if ast.unparse(called).endswith("partial") and x.args:
          called = x.args[0]
        out.append(ast.unparse(called))
  return out


def trip(tree: pathlib.Path) -> list[tuple[str, str]]:
  """(module, function) of each call that gets the config below `rl.train`."""
  known, imports = functions(tree)
  todo, seen, out = [("rl_reason.stages.rl", "train")], set(), []
  while todo:
    place = todo.pop()
    if place in seen:
      continue
    seen.add(place)
    module, name = place
    for called in passed(known[module][name]):
      first, _, rest = called.partition(".")
      target = imports[module].get(first, "")
      if target in known:
        there = target, rest
      elif target:
        outer, _, last = target.rpartition(".")
        there = outer, f"{last}.{rest}".removesuffix(".")
      else:
        there = module, called
      if there[1] in known.get(there[0], {}):
        out.append(there)
        if holder(known[there[0]][there[1]]):
          todo.append(there)
      elif first in ("str", "dict", "len", "print"):
        continue
      else:
        out.append((module, called))
  return out


def binds(tree: pathlib.Path) -> set[pathlib.Path]:
  """The files of the trip with a function that makes a function."""
  known, _ = functions(tree)
  out = set()
  for module, name in trip(tree):
    function = known.get(module, {}).get(name)
    if function is None:
      continue
    inner = ast.FunctionDef, ast.Lambda
    makes = any(
        (isinstance(x, inner) and x is not function)
        or (isinstance(x, ast.Call) and "partial" in ast.unparse(x.func))
        for x in ast.walk(function)
    )
    if makes and holder(function):
      path = tree / (module.replace(".", "/") + ".py")
      out.add(path if path.exists() else path.with_suffix("") / "__init__.py")
  return out


# --- words and lines ---------------------------------------------------------


def lines(*paths: pathlib.Path) -> int:
  """Lines of Python below some paths."""
  found = set()
  for path in paths:
    found |= {path} if path.is_file() else set(path.rglob("*.py"))
  return sum(len(x.read_text().splitlines()) for x in found)


def naming(tree: pathlib.Path) -> dict[str, int]:
  """Files of rl_reason/ that name each feature, but its own folder."""
  out = {}
  texts = {
      path: path.read_text() for path in (tree / "rl_reason").rglob("*.py")
  }
  for feature, words in RULES["feature"].items():
    own = tree / "rl_reason" / "features" / feature
    out[feature] = sum(
        bool(re.search(words, text))
        for path, text in texts.items()
        if own not in path.parents
    )
  return out


def loaded(tree: pathlib.Path) -> int:
  """Modules of the package in a process that ran configs/dapo.py:smoke."""
  with tempfile.TemporaryDirectory() as scratch:
    flags = [f"--workdir={scratch}/run", "--config=configs/dapo.py:smoke"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *flags],
        cwd=tree,
        capture_output=True,
        text=True,
    )
  found = re.search(r"LOADED (\d+)", done.stderr)
  if not found:
    raise SystemExit(done.stderr[-2000:])
  return int(found[1])


def seconds_of_tests(tree: pathlib.Path) -> int:
  """Seconds of the default tests."""
  start = time.perf_counter()
  subprocess.run(
      [sys.executable, "-m", "pytest", "-q", "-n", "auto"], cwd=tree, check=True
  )
  return round(time.perf_counter() - start)


def measure(tree: pathlib.Path, run: bool, tests: bool) -> dict:
  """All numbers of a checkout."""
  package = tree / "rl_reason"
  files = [package / name for name in RULES["files"]]
  of = collections.Counter(
      needed_by(x) for path in files if path.exists() for x in branches(path)
  )
  path, words = tour(tree), "|".join(RULES["feature"].values())
  known, _ = functions(tree)
  way = trip(tree)
  beside = [package / x for x in ("features", "lab", "serve", "verifiers")]
  more = set(path) | binds(tree)
  return dict(
      branches=of.total(),
      of_features=sum(n for (core, _), n in of.items() if not core),
      by_feature={who: n for (core, who), n in of.most_common() if not core},
      path_files=len(path),
      path_lines=lines(*path),
      path_lines_of_features=sum(
          bool(re.search(words, line))
          for x in path
          for line in x.read_text().splitlines()
      ),
      with_what_binds=[len(more), lines(*more)],
      take_config=sum(
          bool(holder(x)) for module in known.values() for x in module.values()
      ),
      trip=[len(way), len({module for module, _ in way})],
      files_that_name=naming(tree),
      modules=sum(1 for _ in package.rglob("*.py")),
      loaded=loaded(tree) if run else None,
      seconds_of_tests=seconds_of_tests(tree) if tests else None,
      lines=dict(
          core=lines(package) - lines(*(x for x in beside if x.exists())),
          **{
              x.name: lines(x) if x.exists() else 0
              for x in (
                  *beside,
                  *(
                      tree / y
                      for y in ("bench", "conformance", "studies", "tests")
                  ),
              )
          },
      ),
  )


def main() -> None:
  """Prints the numbers as JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--tree", type=pathlib.Path, default=results.ROOT)
  parser.add_argument("--run", action="store_true", help="run configs/dapo.py")
  parser.add_argument("--tests", action="store_true", help="run the tests")
  parser.add_argument(
      "--branches", action="store_true", help="each branch, and who needs it"
  )
  flags = parser.parse_args()
  if flags.branches:
    for name in RULES["files"]:
      path = flags.tree / "rl_reason" / name
      for branch in branches(path) if path.exists() else ():
        core, who = needed_by(branch)
        print(f"{'core' if core else 'feature'} | {who} | {branch}")
    return
  print(json.dumps(measure(flags.tree, flags.run, flags.tests), indent=1))


if __name__ == "__main__":
  main()
