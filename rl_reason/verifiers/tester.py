"""The tests' process in the sandbox: asserts that call the candidate.

This process executes no code of the candidate. The candidate's functions are
stubs: a call sends the arguments, and its value is rebuilt from plain data, so
that `==` is Python's own. The candidate cannot change arguments in this
process, from which tests may compute the expected value.
"""

import ast
import builtins
import functools
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable

from rl_reason.verifiers import code_prompts, unit_tests, wire

FAILURES = ("error", "memory", "refused")  # reasons that a candidate can give


class Truth:
  """A value that is not plain data: it has a truth value and equals nothing."""

  def __init__(self, truth: bool):
    self._truth = truth is True

  def __bool__(self):
    return self._truth


class Method(wire.Kept):
  """A method of an object of the candidate."""

  def __init__(self, call: Callable, number: int):
    super().__init__(number)
    self._call = call

  def __call__(self, *args, **kwargs):
    """Calls the method in the candidate's process."""
    return self._call([self.number, "__call__"], *args, **kwargs)


class Object(Method):
  """An object of a class of the candidate; equals only itself.

  Its methods are functions of the candidate, like any other: each value is
  plain data.
  """

  def __getattr__(self, name):
    if name.startswith("_"):
      raise AttributeError(name)
    return self._call([self.number, "getattr"], name)


def _special(name: str) -> Callable:
  return lambda self, *args: self._call([self.number, name], *args)


for _name in wire.SPECIAL:
  if _name.startswith("_"):
    setattr(Object, _name, _special(_name))


def free(tests: str, space: Iterable[str]) -> tuple[set[str], set[str]]:
  """Undefined names of tests: the candidate's functions, and modules.

  A function may be passed as an argument and not called: `sorted(x, key=f)`. If
  all undefined names are built-in functions, the called ones are the
  candidate's: a problem of MBPP defines `sum`.
  """
  called, used, bound = set(), set(), set(space)
  tree = ast.parse(tests)
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      called.add(node.func.id)
    if isinstance(node, ast.Name):
      (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    elif isinstance(node, ast.arg):
      bound.add(node.arg)
    elif isinstance(node, ast.alias):
      bound.add((node.asname or node.name).partition(".")[0])
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
      bound.add(node.name)
  modules = (used & sys.stdlib_module_names) - called - bound
  functions = (used | called) - bound - modules
  functions -= set(dir(builtins))
  if not functions and not unit_tests.imported(tree):
    functions = called - bound
  return functions, modules


def _exception(names: list, args, text: str, space: dict) -> Exception:
  """The candidate's exception, as the nearest class that the tests know.

  `names` are the names of the exception's class and its bases. The prompt may
  define some of these classes.
  """
  for name in map(str, names):
    kind = space.get(name, getattr(builtins, name, None))
    if isinstance(kind, type) and issubclass(kind, Exception):
      try:
        return kind(*args)
      except Exception:  # its constructor takes other arguments
        break
  return Exception(text)


def _kept(name) -> str:
  """What a call may give that stays with the candidate: 'object', 'method', ''.

  Only a class gives objects: a function could otherwise answer a test through
  the methods of its value.
  """
  if isinstance(name, str):
    return "object" if name.isidentifier() and name[0].isupper() else ""
  return "method" if isinstance(name, list) and name[1] == "getattr" else ""


class _Ended(BaseException):
  """Raised when the verdict is final."""


class _Tests:
  """Runs the tests and calls the candidate; `verdict` is None until final."""

  def __init__(self, read: int, write: int):
    self.read, self.write = read, write
    self.verdict: list[str] | None = None
    self.calls = 0
    self.space: dict = {"__name__": "tests"}
    self.stops = False  # whether the tests expect StopIteration of a function

  def end(self, reason: str, detail: str):
    """Sets the final verdict, which a test that catches `_Ended` keeps."""
    self.verdict = self.verdict or [reason, detail]
    raise _Ended

  def items(self, number):
    """Iterates over an iterator of the candidate, one request an item."""
    while True:
      try:
        item = self.call(number)
      except StopIteration:
        return
      yield item

  def call(self, name, /, *args, **kwargs):
    """Calls a function of the candidate and returns its value."""
    if self.verdict:
      raise _Ended
    self.calls += 1
    number = os.urandom(16).hex()
    request = dict(number=number, name=name, keep=_kept(name))
    request |= dict(args=wire.encode(args), kwargs=wire.encode(kwargs))
    try:
      wire.send(self.write, request)
      answer = wire.receive(self.read)
      if answer.pop("number") != number:
        raise ValueError("written before its question, or after an answer")
      ((kind, content),) = answer.items()
      if kind == "value":
        return wire.decode(content)
      if kind == "truth":
        return Truth(content)
      if kind == "iterator":
        return self.items(content)
      if kind == request["keep"] == "object":
        return Object(self.call, int(content))
      if kind == request["keep"] == "method":
        return Method(self.call, int(content))
      if kind == "raised":
        names, values, text = content
        error = _exception(names, wire.decode(values), str(text), self.space)
        # It would end map, filter and iter, and all(map(f, x)) would be true.
        of_function = isinstance(name, str) and not self.stops
        if of_function and isinstance(error, StopIteration):
          error = RuntimeError(f"{name} raised {text}")
      else:
        reason, detail = map(str, content)
    except (EOFError, OSError):
      self.end("crash", "the candidate's process is gone")
    except MemoryError:
      self.end("memory", "an answer that does not fit")
    except Exception as e:
      self.end("refused", f"no answer to this call: {e}")
    if kind == "raised":
      raise error
    if kind == "failed" and reason in FAILURES:
      self.end(reason, detail)
    self.end("refused", "no answer to this call")

  def run(self, prompt: str, tests: str, names: list[str]) -> list[str]:
    """Returns reason and detail of the verdict."""
    space = self.space
    self.stops = "StopIteration" in tests
    try:
      exec(compile(code_prompts.module(prompt), "prompt", "exec"), space)
      for name in () if names else code_prompts.unwritten(prompt):
        del space[name]  # the program writes it
      functions, modules = free(tests, space)
      for name in names or functions:
        function = name.rpartition(".")[2]
        space[function] = functools.partial(self.call, name)
      # MBPP's asserts name modules that only its solutions import.
      for name in modules:
        space[name] = importlib.import_module(name)
      unit_tests.install(lambda name: functools.partial(self.call, name))
      exec(compile(tests, "tests", "exec"), space)
      unit_tests.run(ast.parse(tests), space)
    except _Ended:
      pass
    except Exception as e:
      reason = {AssertionError: "incorrect", MemoryError: "memory"}.get(type(e))
      lines = [
          tests.splitlines()[number - 1].strip()
          for frame, number in traceback.walk_tb(e.__traceback__)
          if frame.f_code.co_filename == "tests"
      ]
      detail = f"{type(e).__name__}: {e}: {''.join(lines[-1:])}"[:500]
      return self.verdict or [reason or "error", detail]
    if not self.calls:
      return ["error", "the tests do not call the candidate"]
    return self.verdict or ["correct", ""]


def tests(job: dict) -> None:
  """Runs tests and writes the verdict to the standard output, as JSON."""
  out = os.dup(1)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  run = _Tests(job["read"], job["write"]).run
  verdict = run(job["prompt"], job["tests"], job["names"])
  os.write(out, json.dumps(verdict).encode())
  os._exit(0)
