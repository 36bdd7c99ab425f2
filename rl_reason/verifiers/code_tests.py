"""Tests of a program, in the forms in which data sets publish them.

  {"tests", "names", "prompt", "stop"}  asserts that call functions, as Python
  Python, or a list of asserts          with asserts, functions test_..., or
                                        classes of unittest, as KodCode has it;
                                        the program may be imported as solution
  {"test", "entry_point"}, {"functional", "fn_name"}
                                        a function check(candidate), as
                                        HumanEval and LeetCodeDataset have it
  {"test_list"}, {"assert_case"}        asserts, as MBPP and verl have them
  {"cases"}                             pairs of standard input and output
  {"inputs", "outputs"}                 the same in two lists, as APPS, TACO,
                                        verl and DeepCoder have it
  {"fn_name", "inputs", "outputs"}      arguments and values of a function, or
                                        of a method of the class Solution
  [{"input", "output", ...}]            the same as a list, as LiveCodeBench and
                                        PrimeIntellect have it, with "fn_name"
                                        or "testtype"
  {"test_cases"}, {"tests"}, {"public_test_cases", "private_test_cases"},
  {"verification_info"}, {"input_output"}, {"ground_truth"}
                                        one of these forms within an object

Each may be a JSON text of what it says, as may its parts.
"""

import ast
import base64
import functools
import io
import json
import math
import pickle
import re
import sys
import zlib
from typing import Any, NamedTuple

from rl_reason.verifiers import code_prompts, unit_tests

FORMS = (
    "asserts or functions test_... in Python; {tests, names, prompt}; {cases};"
    " {inputs, outputs} with or without fn_name; a list of {input, output};"
    " {test, entry_point}; {test_list}; {test_cases}; {verification_info};"
    " {input_output}"
)
PACKAGES = {"numpy", "pytest", *unit_tests.SOLUTIONS}
# LeetCode has these names in scope; the function itself is the program's.
_SCOPE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator
import random, re, string, sys
from typing import *
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from builtins import *
globals().pop({name!r}, None)
"""
# Values of a call are compared as data of JSON, which has neither tuples nor
# keys that are numbers; APPS puts the value into a list.
_EQUAL = """
import json, math
def _equal(found, expected):
  if isinstance(found, tuple):
    found = list(found)
  if isinstance(found, float) and isinstance(expected, float):
    return found == expected or math.isclose(
        found, expected, rel_tol=1e-6, abs_tol=1e-6)
  if isinstance(found, list) and isinstance(expected, list):
    return len(found) == len(expected) and all(map(_equal, found, expected))
  if isinstance(found, dict) and isinstance(expected, dict):
    found = {str(k): v for k, v in found.items()}
    return found.keys() == expected.keys() and all(
        _equal(found[k], expected[k]) for k in found)
  return found == expected
def _one(found, expected):
  return _equal(found, expected) or (
      isinstance(expected, list) and len(expected) == 1
      and _equal(found, expected[0]))
"""


class Calls(NamedTuple):
  """Tests that call the program's functions.

  Attributes:
    tests: source of asserts, which the program never sees.
    names: functions that the tests call; `Solution().f` is the method f of the
      class Solution, or else the function f; empty for all undefined names.
    prompt: source that the program continues or repeats, perhaps only a
      signature; the tests can use its other functions as well.
    stop: stop texts of the published evaluation, see `code.completion`.
  """

  tests: str
  names: tuple[str, ...] = ()
  prompt: str = ""
  stop: tuple[str, ...] = ()

  def reference(self) -> str:
    """The reference answer with these tests."""
    return json.dumps(self._asdict())


class Streams(NamedTuple):
  """Tests of a program that reads standard input and writes standard output.

  Attributes:
    cases: pairs of input and expected output, compared token by token.
    tolerance: relative or absolute error of all numbers; None: only of tokens
      that are floats on both sides, `code.FLOAT_TOLERANCE`. Integers are then
      exact.
  """

  cases: tuple[tuple[str, str], ...]
  tolerance: float | None = None

  def reference(self) -> str:
    """The reference answer with these tests."""
    return json.dumps(self._asdict())


class Unreadable(ValueError):
  """Tests of a form that is not read; the message is the reason."""

  def __init__(self, why: str):
    self.why = why
    super().__init__(
        f"the reference answer holds no tests of a program: {why}; the forms"
        f" are {FORMS}"
    )


# --- Python ------------------------------------------------------------------


def _judges(node: ast.AST) -> bool:
  """Whether a node of tests may fail them."""
  if isinstance(node, ast.Assert | ast.Raise):
    return True
  name = getattr(node, "id", getattr(node, "attr", ""))
  return isinstance(name, str) and name.startswith(("assert", "raises", "fail"))


def _check(tests: str) -> None:
  """Checks that programs can pass and fail tests.

  Raises:
    Unreadable: they cannot.
    ValueError: the tests are no Python.
  """
  try:
    tree = ast.parse(tests)
  except (SyntaxError, RecursionError, ValueError) as e:
    raise ValueError(f"the tests of the reference answer: {e}") from None
  if not any(map(_judges, ast.walk(tree))):
    raise Unreadable("the tests assert nothing, so that any program passes")
  for node in ast.walk(tree):
    names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
      names = [node.module or ""]
    for name in (x.partition(".")[0] for x in names):
      if name not in PACKAGES and name not in sys.stdlib_module_names:
        raise Unreadable(
            f"the tests import {name}, and the sandbox has only the standard"
            " library and numpy"
        )
  fixtures = {x.name for x in ast.walk(tree) if _decorated(x, "fixture")}
  for each in unit_tests.functions(tree):
    given = " ".join(
        str(ast.unparse(x.args[0]))
        for x in each.decorator_list
        if isinstance(x, ast.Call) and x.args
    )
    for name in (x.arg for x in each.args.args):
      if name not in fixtures and not re.search(rf"\b{name}\b", given):
        raise Unreadable(
            f"{each.name} has the fixture {name} of pytest, which is not here"
        )


def _decorated(node: ast.AST, name: str) -> bool:
  """Whether a node is a function with a decorator of this name."""
  return isinstance(node, ast.FunctionDef) and any(
      name in ast.unparse(x) for x in node.decorator_list
  )


# --- values ------------------------------------------------------------------


def from_json(value: Any) -> Any:
  """The value of a JSON text of a list or an object; else the value itself."""
  while isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
    try:
      value = json.loads(value)
    except ValueError:
      try:  # str() of an object, as pandas writes it into CSV
        found = ast.literal_eval(value.strip())
      except (ValueError, SyntaxError, RecursionError, MemoryError):
        break
      return found if isinstance(found, dict | list) else value
  return value


class _Texts(pickle.Unpickler):
  """Reads texts only: no class of the file is looked up."""

  def find_class(self, module, name):
    raise pickle.UnpicklingError(f"{module}.{name}")


def _packed(value: Any) -> Any:
  """Private tests of LiveCodeBench: a text, pickled, compressed, in base64."""
  if not isinstance(value, str) or value.lstrip()[:1] in ("", "{", "["):
    return value
  try:
    data = zlib.decompressobj().decompress(base64.b64decode(value), 1 << 28)
    return _Texts(io.BytesIO(data)).load()
  except Exception:
    raise Unreadable("the private tests cannot be unpacked") from None


def _stream(value: Any) -> str:
  """A standard input or output, which may be a list of lines."""
  if isinstance(value, list):
    return "\n".join(map(_stream, value))
  if value is None or isinstance(value, dict | bool):
    raise Unreadable(f"the input or output of a program is {value!r}")
  return str(value)


def _value(text: Any) -> Any:
  """The value of a JSON text; another text is a value itself."""
  try:
    return json.loads(text) if isinstance(text, str) else text
  except ValueError:
    return text


def _arguments(given: Any) -> str:
  """The arguments of a call, as source.

  They are a list, an object of arguments by name, lines of JSON, Python as in
  'nums = [1, 2], k = 3', or a value alone.
  """
  if isinstance(given, str):
    try:
      given = [json.loads(x) for x in given.split("\n") if x.strip()]
    except ValueError:
      return _literals(given)
  if isinstance(given, dict) and all(map(str.isidentifier, given)):
    return f"**{_loaded(given)}"
  return f"*{_loaded(given if isinstance(given, list) else [given])}"


def _loaded(value: Any) -> str:
  """Source of a value of JSON."""
  return f"json.loads({json.dumps(value)!r})"


def _literals(given: str) -> str:
  """Arguments that are written in Python, as source.

  Raises:
    Unreadable: they are no literals.
  """
  try:
    call = ast.parse(f"f({given.strip()})", mode="eval").body
    assert isinstance(call, ast.Call)
    for value in (*call.args, *(x.value for x in call.keywords)):
      ast.literal_eval(value)
    return ast.unparse(call)[2:-1]
  except (ValueError, SyntaxError, RecursionError, AssertionError):
    raise Unreadable(
        f"the input {given[:40]!r} of a call is neither a list of arguments nor"
        " a JSON value in each line, nor arguments in Python"
    ) from None


# --- forms -------------------------------------------------------------------

_NAMES = ("fn_name", "func_name", "function_name", "entry_point")
_WITHIN = (
    *("verification_info", "input_output", "reward_model", "ground_truth"),
    *("test_cases", "official_tests", "unit_tests", "public_tests", "answer"),
)
_PYTHON = ("tests", "test", "functional", "test_code", "test_list")
# Columns of a row that hold tests, or say how they are meant.
COLUMNS = (
    *(*_PYTHON, "assert_case", *_WITHIN, "cases", "inputs", "outputs"),
    *("public_test_cases", "private_test_cases"),
)
CONTEXT = (
    *(*_NAMES, "metadata", "names", "prompt", "stop", "tolerance"),
    *("test_imports", "test_setup_code", "starter_code"),
)


def _is_python(prompt: str) -> bool:
  """Whether a prompt is a program that the response continues."""
  if not re.search(r"^(def|class|import|from)\b", prompt, re.MULTILINE):
    return False
  try:
    return bool(code_prompts.module(prompt))
  except ValueError:
    return False


def _python(source: str, fields: dict, name: str) -> Calls:
  """Tests in Python; a function `check` among them is called with the name."""
  _check(source)
  tree = ast.parse(source)
  defined = {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
  names = tuple(map(str, fields.get("names") or ()))
  called = re.search(r"^check\(", source, re.MULTILINE)
  if not names and "check" in defined and not called:
    if not name:
      raise Unreadable("check(candidate) needs the field entry_point")
    source += f"\ncheck({name.rpartition('.')[2]})\n"
    names = (name,)
  prompt = str(fields.get("prompt") or "")
  if "names" not in fields and not _is_python(prompt):
    prompt = ""  # it is the question
  if not prompt and "Solution" in (names[0] if names else source):
    prompt = _SCOPE.format(name=name.rpartition(".")[2])
  stop = tuple(map(str, fields.get("stop") or ()))
  return Calls(source, names, prompt, stop)


def _pairs(
    inputs: Any, outputs: Any, name: str, fields: dict
) -> Calls | Streams:
  """Inputs and outputs, of the function with the name if there is one."""
  inputs, outputs = from_json(inputs), from_json(outputs)
  if not isinstance(inputs, list) or not isinstance(outputs, list):
    raise Unreadable("inputs and outputs are no lists")
  if not inputs or len(inputs) != len(outputs):
    raise Unreadable(f"{len(inputs)} inputs and {len(outputs)} outputs")
  if not name:
    texts = (map(_stream, x) for x in (inputs, outputs))
    return Streams(tuple(zip(*texts, strict=True)), fields.get("tolerance"))
  method = name.rpartition(".")[2]
  if not method.isidentifier():
    raise Unreadable(f"{name!r} is no name of a function")
  lines = [_EQUAL]
  for given, wanted in zip(inputs, outputs, strict=True):
    # Where the input is text, so is the output.
    wanted = _value(wanted) if isinstance(given, str) else wanted
    args, value = _arguments(given), _loaded(wanted)
    lines.append(f"assert _one({method}({args}), {value})")
  prompt = _SCOPE.format(name=method)
  return Calls("\n".join(lines), (f"Solution().{method}",), prompt)


def _list(items: list, name: str, fields: dict) -> Calls | Streams:
  """A list of asserts, of pairs, or of objects with an input and an output."""
  items = [_renamed(from_json(x)) for x in items]
  if len(items) == 1 and isinstance(items[0], dict) and "input" not in items[0]:
    return _object(fields | items[0], name)
  if items and all(isinstance(x, str) for x in items):
    setup = _setup(fields)
    return _python("\n".join([*setup, *items]), fields, name)
  if items and all(isinstance(x, list) and len(x) == 2 for x in items):
    return _pairs([x[0] for x in items], [x[1] for x in items], "", fields)
  if not items or not all(
      isinstance(x, dict) and {"input", "output"} <= x.keys() for x in items
  ):
    raise Unreadable("a list is neither of asserts nor of {input, output}")
  found = set(filter(None, map(_name, items))) or {name}
  kinds = {str(x.get("testtype") or x.get("type") or "") for x in items}
  if len(found) > 1 or len(kinds) > 1:
    raise Unreadable("tests of several functions or types are in one list")
  [name], [kind] = found, kinds
  if "std" in kind:
    name = ""
  elif kind and not name:
    starts = re.findall(r"def\s+(\w+)", str(fields.get("starter_code") or ""))
    if not starts:
      raise Unreadable(f"tests of the type {kind!r} need the field fn_name")
    name = starts[-1]
  return _pairs(
      [x["input"] for x in items], [x["output"] for x in items], name, fields
  )


_INPUTS = "stdin", "args", "inputs"
_OUTPUTS = "stdout", "expected_output", "expected", "outputs"


def _renamed(item: Any) -> Any:
  """A test with the keys `input` and `output`, which others name otherwise."""
  if not isinstance(item, dict):
    return item
  item = dict(item)
  for name, others in ("input", _INPUTS), ("output", _OUTPUTS):
    if len(found := [x for x in others if x in item]) == 1:
      if not (found[0] in ("inputs", "outputs") and _is_list(item[found[0]])):
        item.setdefault(name, item.pop(found[0]))
  return item


def _is_list(value: Any) -> bool:
  return isinstance(from_json(value), list)


def _setup(fields: dict) -> list[str]:
  """Lines before the asserts of MBPP."""
  imports = fields.get("test_imports") or []
  return [*imports, *filter(None, [str(fields.get("test_setup_code") or "")])]


def _name(fields: dict) -> str:
  """The function that tests call; '' if the fields do not say it."""
  metadata = from_json(fields.get("metadata"))
  metadata = metadata if isinstance(metadata, dict) else {}
  found = [x.get(key) for x in (fields, metadata) for key in _NAMES]
  return next((str(x) for x in found if x), "")


def _object(fields: dict, name: str) -> Calls | Streams:
  language = str(fields.get("language") or "python").lower()
  if not language.startswith("py"):
    raise Unreadable(f"the language is {language}")
  name = _name(fields) or name
  for key in ("inputs", "input"):
    if isinstance(given := from_json(fields.get(key)), list):
      return _pairs(given, fields.get(f"out{key[2:]}"), name, fields)
  if fields.get("cases"):
    return _list(fields["cases"], "", fields)
  if fields.get("public_test_cases") or fields.get("private_test_cases"):
    tests: list[Any] = []
    for key in ("public_test_cases", "private_test_cases"):
      tests += from_json(_packed(fields.get(key))) or []
    return _list(tests, name, fields)
  for key in (*_PYTHON, "assert_case", *_WITHIN):
    if fields.get(key):
      return read(fields[key], fields, name)
  raise Unreadable(f"an object has only {', '.join(fields) or 'no fields'}")


def read(value: Any, fields: dict, name: str = "") -> Calls | Streams:
  """Reads tests of any form.

  Args:
    value: the tests.
    fields: the object that holds them, of which CONTEXT is read.
    name: the function that they call, if it is known.

  Raises:
    Unreadable: they are of no form that is read.
    ValueError: they are no Python.
  """
  value = from_json(value)
  if isinstance(value, dict):
    context = {k: v for k, v in fields.items() if k in CONTEXT}
    return _object(context | value, name)
  if isinstance(value, list):
    return _list(value, name, fields)
  if not isinstance(value, str) or not value.strip():
    raise Unreadable(f"it is {value!r}")
  value = re.sub(r"\A\s*```\w*\n(.*)\n\s*```\s*\Z", r"\1", value, flags=re.S)
  return _python("\n".join([*_setup(fields), value]), fields, name)


def fields(value: Any, context: dict) -> Calls | Streams:
  """Reads and checks tests; see `read`.

  Raises:
    ValueError: they are of no form that is read, the tests or the prompt are no
      Python, or the tolerance is no number from 0 on.
  """
  try:
    problem = read(value, context)
  except (TypeError, KeyError, AttributeError) as e:
    raise Unreadable(f"a field of another type ({e})") from None
  if isinstance(problem, Streams):
    return problem._replace(tolerance=_tolerance(problem.tolerance))
  # Otherwise every program would silently be wrong.
  code_prompts.module(problem.prompt)
  return problem


@functools.lru_cache(64)
def parse(reference: str) -> Calls | Streams:
  """The tests of a reference answer; raises as `fields`."""
  return fields(reference, {})


def _tolerance(value: Any) -> float | None:
  """A tolerance from JSON."""
  if value is None:
    return None
  try:
    tolerance = float(value)
  except (TypeError, ValueError, OverflowError):
    tolerance = math.nan
  if not 0 <= tolerance < math.inf:
    raise ValueError(
        "the tolerance of the reference answer is no number from 0 on"
    )
  return tolerance
