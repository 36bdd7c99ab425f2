"""Verifiers: whether the final answer of a response is right.

Each has the same contract, and none ever evaluates what a model wrote; `code`
runs it, in a sandbox:

  answer(text) -> str | None     the final answer, as written; None if none
  equal(given, gold) -> bool     whether two answers are the same
  verify(text, gold) -> bool     whether the response's final answer is right
  usable(gold) -> bool           whether a gold can be checked at all

`math` and `choice` judge texts, `code` programs; `workers` runs them in
processes that may crash or hang.
"""

import functools
import importlib
import traceback
import types
from typing import Any

# Kind of a row -> the module that verifies it.
KINDS = {
    "math": "rl_reason.verifiers.math",
    "choice": "rl_reason.verifiers.choice",
    "code": "rl_reason.verifiers.code",
}


def path(kind: str) -> str:
  """The import path of a kind: `package.module`, or `module:function`."""
  return KINDS.get(kind, kind)


def last_line(text: str) -> str:
  """The last line of a text, without surrounding whitespace."""
  return text.rstrip().rpartition("\n")[2].strip()


@functools.cache
def find(path: str) -> Any:
  """The verifier of a path; a user's function gets a default `answer`."""
  module, mark, function = path.partition(":")
  found = importlib.import_module(module)
  if not mark:
    return found
  return types.SimpleNamespace(
      verify=getattr(found, function), answer=last_line
  )


def ask(path: str, function: str, *texts: str) -> bool:
  """Calls a function of a verifier; runs in a worker of `workers.Pool`."""
  return bool(getattr(find(path), function)(*texts))


def verdict(path: str, text: str, reference: str, tolerance: float) -> Any:
  """Whether a response is correct, or a traceback; runs in a worker."""
  keywords = {"tolerance": tolerance} if tolerance else {}
  try:
    return bool(find(path).verify(text, reference, **keywords))
  except MemoryError:  # the worker is replaced
    raise
  except Exception:
    return traceback.format_exc()[-2000:]
