"""The candidate's process in the sandbox: runs a program or its functions.

The program may take over this process. The process holds no secret and decides
no verdict: an attack can only change the return values of the program's own
functions.
"""

import builtins
import functools
import sys
import textwrap
import types
from collections.abc import Callable, Iterator

from rl_reason.verifiers import code_prompts, wire

# Exit status of a script -> why it ended; a program can fake it.
EXITS = {0: "", 101: "memory"}  # any other: 'error'


def _module(name: str) -> types.ModuleType:
  """An empty module that is imported already: dataclasses look it up."""
  # As the module `site` does, which is not loaded.
  vars(builtins).update(exit=sys.exit, quit=sys.exit)
  module = types.ModuleType(name)
  vars(module).update(__file__="program.py", __builtins__=builtins)
  sys.modules[name] = module
  return module


def _readings(prompt: str, program: str) -> Iterator[tuple[str, str]]:
  """Pairs of a prompt to run first, and of a program."""
  yield prompt, program
  if prompt:
    yield "", code_prompts.continued(prompt, program)
  yield prompt, textwrap.dedent(program)  # a block in a list has a margin


def _load(module: types.ModuleType, prompt: str, program: str) -> None:
  """Runs the prompt and then the program, as one module.

  A program that does not compile on its own may continue the prompt, as
  programs of base models do.
  """
  code, error = None, None
  for before, source in _readings(prompt, program):
    try:
      code = compile(source, "program", "exec")
    except SyntaxError as e:
      error = error or e
    else:
      prompt = before
      break
  if code is None:
    raise error or SyntaxError
  exec(compile(code_prompts.module(prompt), "prompt", "exec"), module.__dict__)
  exec(code, module.__dict__)


def _failure(error: BaseException) -> list[str]:
  """Reason and detail of an error that tests cannot catch."""
  reason = "memory" if isinstance(error, MemoryError) else "error"
  try:
    return [reason, f"{type(error).__name__}: {error}"[:500]]
  except Exception:
    return [reason, type(error).__name__]


def _raised(error: Exception) -> list:
  """An error that tests can catch: names of its classes, arguments, text."""
  text = _failure(error)[1]
  try:
    args = wire.encode(error.args)
  except (TypeError, ValueError):
    args = wire.encode((text,))
  return [[kind.__name__ for kind in type(error).__mro__], args, text]


def _function(module: types.ModuleType, name) -> Callable:
  """The function of a request, by its name or by an object of `wire.KEPT`."""
  if isinstance(name, int):
    return functools.partial(next, wire.KEPT[name])
  if isinstance(name, list):
    number, attribute = name
    return functools.partial(wire.SPECIAL[attribute], wire.KEPT[number])
  owner, mark, method = name.rpartition("().")
  if mark and hasattr(module, owner):  # class Solution, as LeetCode has it
    return getattr(getattr(module, owner)(), method)
  return getattr(module, method)


def _keep(value) -> int:
  wire.KEPT.append(value)
  return len(wire.KEPT) - 1


def _answer(module: types.ModuleType, request: dict) -> dict:
  """The outcome of a call that the tests request.

  Iterators stay in this process, since they may be infinite, and so do objects
  of classes, of which `wire` sends no copy.
  """
  try:
    args, kwargs = wire.decode(request["args"]), wire.decode(request["kwargs"])
    value = _function(module, request["name"])(*args, **kwargs)
    if isinstance(value, Iterator):
      return {"iterator": _keep(value)}
  except Exception as e:
    memory = isinstance(e, MemoryError)
    return {"failed": _failure(e)} if memory else {"raised": _raised(e)}
  except BaseException as e:  # sys.exit() is no answer
    return {"failed": _failure(e)}
  try:
    return {"value": wire.encode(value)}
  except TypeError:
    if request["keep"] == "object" or (request["keep"] and callable(value)):
      return {request["keep"]: _keep(value)}
    # MBPP asserts that a re.Match is true: the truth of any object is sent.
    return {"truth": bool(value)}
  except Exception as e:
    return {"failed": ["refused", _failure(e)[1]]}


def calls(job: dict) -> None:
  """Loads a program and answers calls of its functions until it is killed.

  Each request has a random number, which its answer repeats. An answer that was
  written before its request, or a second answer, does not match.
  """
  module, failed = _module("solution"), None
  try:
    _load(module, job["prompt"], job["program"])
  except BaseException as e:
    failed = _failure(e)
  while True:
    request = wire.receive(job["read"])
    number = {"number": request["number"]}
    answer = {"failed": failed} if failed else _answer(module, request)
    try:
      wire.send(job["write"], answer | number)
    except ValueError as e:
      failed = ["refused", str(e)]
      wire.send(job["write"], {"failed": failed} | number)


def script(job: dict) -> None:
  """Runs a program as a script on the standard input and output."""
  try:
    _load(_module("__main__"), job.get("prompt", ""), job["program"])
  except SystemExit:
    raise
  except MemoryError:
    sys.exit(101)
  except BaseException as e:
    sys.exit(_failure(e)[1])
