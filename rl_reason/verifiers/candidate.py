"""The candidate's side of the sandbox: runs a program, or calls of it.

This process may be taken over by the program it runs. Nothing here is secret
and no verdict is made here: what is done to this process can change what its
functions return, which is the program's own business.
"""

import builtins
import functools
import sys
import types
from collections.abc import Iterator

from rl_reason.verifiers import wire

# How a script's process says why it ended; it can say what it likes.
EXITS = {0: "", 101: "memory"}  # any other: 'error'


def _module(name: str) -> types.ModuleType:
  """An empty module that is imported already: dataclasses look it up."""
  # As `site` would, which is not loaded.
  vars(builtins).update(exit=sys.exit, quit=sys.exit)
  module = types.ModuleType(name)
  vars(module).update(__file__="program.py", __builtins__=builtins)
  sys.modules[name] = module
  return module


def _load(module: types.ModuleType, prompt: str, program: str) -> None:
  """Runs the prompt and then the program, as one module.

  A program that does not compile alone may be the rest of the prompt, as base
  models write it.
  """
  try:
    code = compile(program, "program", "exec")
  except SyntaxError:
    if not prompt:
      raise
    prompt, code = "", compile(prompt + program, "program", "exec")
  exec(compile(prompt, "prompt", "exec"), module.__dict__)
  exec(code, module.__dict__)


def _failure(error: BaseException) -> list[str]:
  """Reason and detail of an error that no test may catch."""
  reason = "memory" if isinstance(error, MemoryError) else "error"
  try:
    return [reason, f"{type(error).__name__}: {error}"[:500]]
  except Exception:
    return [reason, type(error).__name__]


def _raised(error: Exception) -> list:
  """An error that tests may expect: its classes, what made it, its text."""
  text = _failure(error)[1]
  try:
    args = wire.encode(error.args)
  except (TypeError, ValueError):
    args = wire.encode((text,))
  return [[kind.__name__ for kind in type(error).__mro__], args, text]


def _answer(module: types.ModuleType, kept: list, request: dict) -> dict:
  """What a call came to.

  Args:
    module: the program.
    kept: iterators that calls returned: they stay here, and go on when asked
      for the next item, as some have no end.
    request: as the tests' side sends it. The name may be a place in `kept`.
  """
  name = request["name"]
  try:
    args = wire.decode(request["args"])
    kwargs = wire.decode(request["kwargs"])
    if isinstance(name, int):
      function = functools.partial(next, kept[name])
    else:
      function = getattr(module, name)
    value = function(*args, **kwargs)
  except MemoryError as e:
    return {"failed": _failure(e)}
  except Exception as e:
    return {"raised": _raised(e)}
  except BaseException as e:  # sys.exit() is no answer
    return {"failed": _failure(e)}
  if isinstance(value, Iterator):
    kept.append(value)
    return {"iterator": len(kept) - 1}
  try:
    return {"value": wire.encode(value)}
  except TypeError:
    # MBPP asserts that a re.Match is true. That much of any object may cross.
    return {"truth": bool(value)}
  except Exception as e:
    return {"failed": ["refused", _failure(e)[1]]}


def calls(job: dict) -> None:
  """Loads a program and answers calls of its functions until nobody asks.

  Each request carries a number drawn at random, which the answer must repeat:
  one written before its question, or after another answer, fits nothing.
  """
  module, kept, failed = _module("solution"), [], None
  try:
    _load(module, job["prompt"], job["program"])
  except BaseException as e:
    failed = _failure(e)
  while True:
    request = wire.receive(job["read"])
    answer = {"failed": failed} if failed else _answer(module, kept, request)
    try:
      wire.send(job["write"], answer | {"number": request["number"]})
    except ValueError as e:
      failed = ["refused", str(e)]
      wire.send(job["write"], {"failed": failed, "number": request["number"]})


def script(job: dict) -> None:
  """Runs a program as a script on the standard input and output."""
  try:
    _load(_module("__main__"), "", job["program"])
  except SystemExit:
    raise
  except MemoryError:
    sys.exit(101)
  except BaseException as e:
    sys.exit(_failure(e)[1])
