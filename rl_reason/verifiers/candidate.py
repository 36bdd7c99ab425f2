"""The candidate's side of the sandbox: runs a program, or calls of it.

This process may be taken over by the program it runs. Nothing here is secret
and no verdict is made here: what is done to this process can change what its
functions return, which is the program's own business.
"""

import builtins
import sys
import types

from rl_reason.verifiers import wire

# How a script's process says why it ended; it can say what it likes.
EXITS = {0: "", 101: "memory"}  # any other: 'error'


def _module(name: str) -> types.ModuleType:
  """An empty module that is imported already: dataclasses look it up."""
  # As `site` would, which is not loaded.
  vars(builtins).update(exit=sys.exit, quit=sys.exit)
  module = types.ModuleType(name)
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


def _answer(module: types.ModuleType, request: dict) -> dict:
  """What a call came to."""
  try:
    args = wire.decode(request["args"])
    kwargs = wire.decode(request["kwargs"])
    value = getattr(module, request["name"])(*args, **kwargs)
  except MemoryError as e:
    return {"failed": _failure(e)}
  except Exception as e:
    return {"raised": [type(e).__name__, _failure(e)[1]]}
  except BaseException as e:  # sys.exit() is no answer
    return {"failed": _failure(e)}
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
  module, failed = _module("solution"), None
  try:
    _load(module, job["prompt"], job["program"])
  except BaseException as e:
    failed = _failure(e)
  while True:
    request = wire.receive(job["read"])
    answer = {"failed": failed} if failed else _answer(module, request)
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
