"""Functions and classes of tests, as pytest and unittest run them.

Neither the program nor the sandbox has pytest: `pytest` is here a module with
the parts that tests of data sets use: raises, approx, fail, fixture and mark,
whose parametrize has an effect.
"""

import ast
import contextlib
import itertools
import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

# Names under which tests import the program.
SOLUTIONS = frozenset(
    "solution your_solution your_module main candidate program".split()
)


def imported(tests: ast.AST) -> set[str]:
  """Names that tests import from the program, or use of its module."""
  found = set()
  for node in ast.walk(tests):
    if isinstance(node, ast.ImportFrom) and node.module in SOLUTIONS:
      found |= {x.name for x in node.names}
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      found |= {node.attr} if node.value.id in SOLUTIONS else set()
  return found - {"*"}


def functions(tests: ast.Module) -> list[ast.FunctionDef]:
  """Functions test_... that the tests themselves do not call."""
  called = {
      x.func.id
      for x in ast.walk(tests)
      if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)
  }
  return [
      x
      for x in tests.body
      if isinstance(x, ast.FunctionDef)
      and x.name.startswith("test")
      and x.name not in called
  ]


class _Approx:
  """A number, or numbers in a list or a dictionary, up to an error."""

  __array_ufunc__ = None  # numpy asks this object

  def __init__(self, expected, rel=None, abs=None, nan_ok=False):
    self._expected, self._nan = expected, nan_ok
    self._rel = (0 if abs is not None else 1e-6) if rel is None else rel
    self._abs = 1e-12 if abs is None else abs

  def __eq__(self, found):
    return self._near(found, self._expected)

  __hash__ = None  # type: ignore[assignment]

  def _near(self, found, expected) -> bool:
    if hasattr(expected, "tolist"):
      expected = expected.tolist()
    if hasattr(found, "tolist"):
      found = found.tolist()
    if isinstance(expected, dict):
      return found.keys() == expected.keys() and all(
          self._near(found[x], expected[x]) for x in expected
      )
    if isinstance(expected, list | tuple):
      return len(found) == len(expected) and all(
          map(self._near, found, expected)
      )
    if found == expected:
      return True
    try:
      if math.isnan(expected):
        return self._nan and math.isnan(found)
      return math.isclose(found, expected, rel_tol=self._rel, abs_tol=self._abs)
    except TypeError:
      return False


class _Raised(types.SimpleNamespace):
  """What `pytest.raises` gives: the exception as `value`, its `type`."""


@contextlib.contextmanager
def _raising(kinds, match) -> Iterator[_Raised]:
  raised = _Raised(value=None, type=None)
  try:
    yield raised
  except kinds as e:
    raised.value, raised.type = e, type(e)
    if match is not None and not re.search(match, str(e)):
      raise AssertionError(f"{match!r} is not in {str(e)!r}") from None
  else:
    raise AssertionError(f"{kinds} was not raised")


def _raises(kinds, *call, match=None, **keywords):
  if not call:
    return _raising(kinds, match)
  with _raising(kinds, match) as raised:
    call[0](*call[1:], **keywords)
  return raised


def _fail(reason: str = "", pytrace: bool = True):
  raise AssertionError(reason)


def _fixture(function=None, **_):
  if function is None:
    return _fixture
  function.is_fixture = True
  return function


class _Mark:
  """Marks of test functions, of which parametrize alone has an effect."""

  def __getattr__(self, name):
    def mark(*args, **_):
      function = args[0] if args and callable(args[0]) else None
      return function or (lambda x: x)

    return mark

  def parametrize(self, names, values, **_):
    """Runs the test with each of several values."""
    if isinstance(names, str):
      names = [x.strip() for x in names.split(",")]
    rows = [x if len(names) > 1 else (x,) for x in map(_values, values)]
    cases = [dict(zip(names, row, strict=True)) for row in rows]

    def mark(function):
      function.cases = [*getattr(function, "cases", []), cases]
      return function

    return mark


class _Param(tuple):
  """The values of `pytest.param`."""


def _values(value):
  if not isinstance(value, _Param):
    return value
  return tuple(value) if len(value) > 1 else value[0]


def _module(name: str, **contents: Any) -> types.ModuleType:
  module = types.ModuleType(name)
  vars(module).update(contents)
  return module


def install(stub: Callable[[str], Any]) -> None:
  """Makes pytest and the program importable.

  Args:
    stub: the function of the program with a name.
  """

  def attribute(name):
    if name.startswith("__"):
      raise AttributeError(name)
    return stub(name)

  for name in SOLUTIONS:
    sys.modules[name] = _module(name, __getattr__=attribute, __all__=[])
  sys.modules["pytest"] = _module(
      "pytest",
      raises=_raises,
      approx=_Approx,
      fail=_fail,
      fixture=_fixture,
      mark=_Mark(),
      param=lambda *values, **_: _Param(values),
  )


def _arguments(function, case: dict, space: dict) -> dict:
  """The arguments of a test: values of its case, and of fixtures."""
  out: dict = {}
  code = function.__code__
  own = isinstance(function, types.MethodType)
  for name in code.co_varnames[own : code.co_argcount]:
    fixture: Any = space.get(name)
    if name in case:
      out[name] = case[name]
    elif getattr(fixture, "is_fixture", False):
      value = fixture(**_arguments(fixture, case, space))
      yields = isinstance(value, types.GeneratorType)
      out[name] = next(value) if yields else value
  return out


def _call(function, space: dict) -> None:
  """Calls a test with all combinations of its parameters."""
  for cases in itertools.product(*getattr(function, "cases", [])):
    case = {k: v for each in cases for k, v in each.items()}
    function(**_arguments(function, case, space))


def run(tests: ast.Module, space: dict) -> None:
  """Runs the test functions and classes among tests that were executed.

  Raises:
    Exception: that of a test that fails.
  """
  for node in functions(tests):
    _call(space[node.name], space)
  unittest = sys.modules.get("unittest")  # the tests import it
  for name in [x.name for x in tests.body if isinstance(x, ast.ClassDef)]:
    kind = space[name]
    if not isinstance(kind, type):
      continue
    if unittest and issubclass(kind, unittest.TestCase):
      unittest.defaultTestLoader.loadTestsFromTestCase(kind).debug()
    elif name.startswith("Test"):
      for method in [x for x in dir(kind) if x.startswith("test")]:
        instance = kind()
        if hasattr(instance, "setup_method"):
          instance.setup_method()
        _call(getattr(instance, method), space)
