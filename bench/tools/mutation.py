"""Mutation testing of rl_reason/algorithms, with the operators of cosmic-ray.

  pip install -e '.[test,dev]' && python bench/tools/mutation.py MODULE ...

Each mutant changes one operator, number or condition of one module; it is
killed if one of the module's tests fails. All runs in one process, where jax
is imported and warm: a process for each mutant would take seconds to start.
Writes results/mutation.md; the reasons of survivors in it are kept.
"""

import ast
import collections
import importlib
import importlib.metadata
import pathlib
import platform
import re
import signal
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ROOM = ROOT / "rl_reason" / "algorithms"
REPORT = ROOT / "results" / "mutation.md"
SECONDS = 240  # CPU time of all tests of a mutant; longer counts as killed

# Module -> files of its tests; a module comes after those that it imports.
TESTS = {
    "reductions": ["reductions"],
    "kl": ["losses"],
    "rewards": ["rewards"],
    "schedules": ["schedules"],
    "values": ["values"],
    "surrogates": ["surrogates"],
    "surrogate_variants": ["surrogates", "peer_numbers"],
    "advantages": ["advantages"],
    "advantage_variants": ["advantage_variants", "advantages"],
    "variants": ["variants"],
    "credit": ["credit"],
    "objective": ["objective"],
    "turns": ["turn_credit"],
}
BINARY = """Add_Sub Sub_Add Mul_Div Mul_Add Div_Mul Pow_Mul BitAnd_BitOr
  BitOr_BitAnd""".split()
COMPARISONS = (
    """Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt LtE_Gt Gt_GtE Gt_Lt GtE_Gt
  GtE_Lt Is_IsNot IsNot_Is""".split()
)
OPERATORS = [
    *(f"ReplaceBinaryOperator_{x}" for x in BINARY),
    *(f"ReplaceComparisonOperator_{x}" for x in COMPARISONS),
    "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceUnaryOperator_Delete_Not",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "NumberReplacer",
]
# Elsewhere operations run one by one, which is faster than compiling a mutant;
# a scan compiles at each call that is not under jit.
UNDER_JIT = ("advantages", "advantage_variants")

TEMPLATE = """# Mutation testing of the algorithms

{killed} of {total} mutants are killed ({share}).

Do the tests of the algorithms find a fault? A mutant changes one operator,
number or condition of a function of rl_reason/algorithms; it is killed if a
test of its module fails.

| module | mutants | killed |
|---|---|---|
{counts}

## Survivors

| mutant | why it survives |
|---|---|
{survivors}

Made by `python bench/tools/mutation.py MODULE`, which keeps the rows of others.
Last: {modules}, in {minutes} CPU-minutes, with
{versions}.
"""


def mutants(module: str):
  """Yields (function, line before -> after, source) of each mutant."""
  from cosmic_ray import plugins
  from cosmic_ray.ast import ast_nodes, get_ast
  from cosmic_ray.mutating import mutate_code

  source = (ROOM / f"{module}.py").read_text()
  lines, functions, hidden = source.splitlines(), {}, set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.FunctionDef):
      for line in range(node.lineno, node.end_lineno + 1):
        functions.setdefault(line, node.name)
    notes = [getattr(node, x, None) for x in ("annotation", "returns")]
    for note in filter(None, notes):  # no code
      hidden |= {
          (note.lineno, x) for x in range(note.col_offset, note.end_col_offset)
      }
  for name in OPERATORS:
    operator = plugins.get_operator(f"core/{name}")()
    found = [
        start
        for node in ast_nodes(get_ast(source))
        for start, _ in operator.mutation_positions(node)
    ]
    for n, start in enumerate(found):
      line = start[0]
      separator = lines[line - 1][start[1] : start[1] + 2] == "*,"
      if separator or start in hidden or line not in functions:
        continue
      changed = mutate_code(source, operator, n)
      pairs = zip(lines, changed.splitlines(), strict=True)
      text = next(f"{a.strip()} -> {b.strip()}" for a, b in pairs if a != b)
      yield functions[line], text, changed


class Runner:
  """A pytest plugin: collects once, then runs the tests of each mutant."""

  def __init__(self, modules: list[str]):
    self.modules, self.fatal = modules, 0
    self.results = collections.defaultdict(list)

  def load(self, changed: str = "", source: str = "") -> None:
    """Defines all functions of the room anew, one module changed."""
    for name in TESTS:
      path = ROOM / f"{name}.py"
      text = source if name == changed else path.read_text()
      full = f"rl_reason.algorithms.{name}"
      module = importlib.import_module(full)
      exec(compile(text, path, "exec"), vars(module))
    for name, module in list(sys.modules.items()):
      if name in ("by_hand", "advantage_inputs") or name.startswith("test_"):
        for x in vars(module).values():  # programs of the last mutant
          if getattr(x, "__name__", "") in ("_program", "program"):
            x.cache_clear()

  def survives(self, items) -> bool:
    """Whether all tests pass; the mutant is loaded."""
    from _pytest.runner import runtestprotocol

    for item in items:
      item._initrequest()
      reports = runtestprotocol(item, log=False)
      if any(report.failed for report in reports):
        return False
    return True

  def pytest_runtestloop(self, session) -> bool:
    """Replaces the loop of pytest."""
    import by_hand

    assert not session.testsfailed, "tests cannot be collected"
    for module in self.modules:
      files = [f"test_{x}.py" for x in TESTS[module]]
      items = [x for x in session.items if x.path.name in files]
      by_hand.under_jit = module in UNDER_JIT
      self.load()
      began = time.monotonic()
      assert self.survives(items), f"the tests of {module} fail unchanged"
      print(f"{module}: {time.monotonic() - began:.0f} s unchanged", flush=True)
      for function, text, source in mutants(module):

        def order(item, function=function):
          name = item.name
          return function not in name, "by_hand" not in name

        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
          self.load(module, source)
          alive = self.survives(sorted(items, key=order))
        except BaseException as e:  # of the module itself, or too slow
          if isinstance(e, KeyboardInterrupt):
            raise
          alive = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.results[module].append((alive, function, text))
        if alive:
          print(f"  survives: {function}: {text}", flush=True)
      killed = sum(not alive for alive, *_ in self.results[module])
      print(f"  {killed} of {len(self.results[module])} killed", flush=True)
    return True


def report(results, minutes: float) -> str:
  """The results as markdown, with the reasons of the last report.

  Modules that were not run keep the rows of the last report.
  """
  old = REPORT.read_text() if REPORT.exists() else ""
  reasons = dict(re.findall(r"^\| (`.*`) \| (.*) \|$", old, re.MULTILINE))
  before = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|$", old, re.MULTILINE)
  count = {module: (int(all_), int(k)) for module, all_, k in before}
  survivors = [
      f"| {key} | {reason} |"
      for key, reason in reasons.items()
      if key[1:].partition(".")[0] not in results
  ]
  for module, rows in results.items():
    killed = sum(not alive for alive, *_ in rows)
    count[module] = len(rows), killed
    for alive, function, text in rows:
      text = text.replace("|", "\\|")
      key = f"`{module}.{function}: {text}`"
      if alive:
        survivors.append(f"| {key} | {reasons.get(key, '')} |")
  total, killed = map(sum, zip(*count.values(), strict=True))
  packages = ("cosmic-ray", "jax", "numpy", "hypothesis", "pytest")
  versions = (f"{x} {importlib.metadata.version(x)}" for x in packages)
  return TEMPLATE.format(
      killed=killed,
      total=total,
      share=f"{killed / total:.1%}",
      counts="\n".join(f"| {x} | {n} | {k} |" for x, (n, k) in count.items()),
      survivors="\n".join(survivors),
      modules=", ".join(results),
      minutes=f"{minutes:.0f}",
      versions=", ".join([*versions, f"Python {platform.python_version()}"]),
  )


def main() -> None:
  """Runs all modules, or those that are named."""
  sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
  import conftest  # noqa: F401  # devices and platform, before jax
  import jax
  from hypothesis import Phase, settings

  # A failure is enough; there is no need for the smallest example.
  settings.register_profile("once", phases=[Phase.explicit, Phase.generate])
  settings.load_profile("once")
  import by_hand

  compiled = by_hand.quick_jit
  by_hand.under_jit = True
  by_hand.quick_jit = lambda f: compiled(f) if by_hand.under_jit else f
  jax.config.update("jax_traceback_filtering", "off")

  def too_slow(*_):
    raise TimeoutError

  signal.signal(signal.SIGPROF, too_slow)
  modules = sys.argv[1:] or list(TESTS)
  files = {x for module in modules for x in TESTS[module]}
  runner = Runner(modules)
  argv = ["-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
  argv += [str(ROOT / "tests" / f"test_{x}.py") for x in sorted(files)]
  status = pytest.main(argv, plugins=[runner])
  if status:
    sys.exit(int(status))
  REPORT.write_text(report(runner.results, time.process_time() / 60))


if __name__ == "__main__":
  main()
