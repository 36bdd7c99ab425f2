"""The tests' side of the sandbox: asserts that call a candidate elsewhere.

Runs in a process of its own, which executes no line of the candidate. The
candidate's functions are stubs: a call sends the arguments, and the reply is
rebuilt from plain data, so `==` is Python's own. An argument changed by the
candidate stays unchanged in this process: tests that compute the expected value
from it cannot be misled.
"""

import ast
import builtins
import functools
import importlib
import json
import os
import sys
import traceback

from rl_reason.verifiers import code_prompts, wire

FAILURES = ("error", "memory", "refused")  # reasons that a candidate may give


class Truth:
  """A value that is no plain data: true or false, and equal to nothing else."""

  def __init__(self, truth: bool):
    self._truth = truth is True

  def __bool__(self):
    return self._truth


def _free(tests: str, space: dict) -> tuple[set[str], set[str]]:
  """Undefined names of tests: the candidate's functions, and modules.

  A function may be passed on and never called: `sorted(x, key=f)`. If all
  undefined names are Python's own, then the called ones are meant: a problem of
  MBPP is about a `sum`.
  """
  called, used, bound = set(), set(), set(space)
  for node in ast.walk(ast.parse(tests)):
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
  return functions - set(dir(builtins)) or called - bound, modules


def _exception(names: list, args, text: str, space: dict) -> Exception:
  """The nearest exception that the tests know; their prompt may define some.

  `names` are those of the class of the candidate's exception and its bases.
  """
  for name in map(str, names):
    kind = space.get(name, getattr(builtins, name, None))
    if isinstance(kind, type) and issubclass(kind, Exception):
      try:
        return kind(*args)
      except Exception:  # its constructor takes other arguments
        break
  return Exception(text)


class _Ended(BaseException):
  """The verdict is known already."""


class _Tests:
  """The tests' end of the wire; `verdict` is set once it is final."""

  def __init__(self, read: int, write: int):
    self.read, self.write = read, write
    self.verdict: list[str] | None = None
    self.calls = 0
    self.space: dict = {"__name__": "tests"}

  def end(self, reason: str, detail: str):
    """Fixes the verdict, even if a test catches the exception."""
    self.verdict = self.verdict or [reason, detail]
    raise _Ended

  def items(self, number):
    """An iterator of the candidate, which is asked for each item."""
    while True:
      try:
        item = self.call(number)
      except StopIteration:
        return
      yield item

  def call(self, name, /, *args, **kwargs):
    """Returns what the candidate's function returns; raises what it raises."""
    if self.verdict:
      raise _Ended
    self.calls += 1
    number = os.urandom(16).hex()
    request = dict(number=number, name=name)
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
      if kind == "raised":
        names, values, text = content
        error = _exception(names, wire.decode(values), str(text), self.space)
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
    try:
      exec(compile(code_prompts.module(prompt), "prompt", "exec"), space)
      for name in () if names else code_prompts.unwritten(prompt):
        del space[name]  # the program writes it
      functions, modules = _free(tests, space)
      for name in names or functions:
        space[name] = functools.partial(self.call, name)
      # MBPP's asserts name modules that only its solutions import.
      for name in modules:
        space[name] = importlib.import_module(name)
      exec(compile(tests, "tests", "exec"), space)
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
