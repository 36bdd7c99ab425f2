"""Verifiers: whether the final answer of a response is correct.

A verifier is a module, or a function `module:function`, that compares a
response with the reference answer of its row. Verifiers never evaluate text
that a model wrote, except `code`, which runs programs in a sandbox. A module
defines:

  verify(text, reference) -> bool   whether the final answer is correct
  answer(text) -> str | None        the final answer, verbatim; None if none
  usable(reference) -> bool         whether a reference answer can be verified
  lenient(text, reference) -> str   why a rejected response may still be right,
                                    '' if it is wrong; optional

`math`, `ordered` and `choice` verify texts, `code` verifies programs, and
`workers` runs verifiers in processes that may crash or hang. This package
imports no other part of rl_reason.
"""

import functools
import importlib
import traceback
import types
from typing import Any

# Kind of a row -> the module that verifies it.
KINDS = {
    "math": "rl_reason.verifiers.math",
    "ordered": "rl_reason.verifiers.ordered",
    "choice": "rl_reason.verifiers.choice",
    "code": "rl_reason.verifiers.code",
}
NONE = "none"  # the kind of rows without a verifier
OWN: set[str] = set()  # the user's functions that the config of this run names


def path(kind: str) -> str:
  """The import path of a kind: `package.module` or `module:function`."""
  return KINDS.get(kind, kind)


def last_line(text: str) -> str:
  """The last line of a text, without surrounding whitespace."""
  return text.rstrip().rpartition("\n")[2].strip()


@functools.cache
def find(path: str) -> Any:
  """The verifier at a path; a user's function gets `last_line` as `answer`."""
  module, mark, function = path.partition(":")
  found = importlib.import_module(module)
  if not mark:
    return found
  return types.SimpleNamespace(
      verify=getattr(found, function), answer=last_line
  )


def reading(path: str, text: str, reference: str) -> list[str]:
  """The result of `lenient` in a list, empty if there is no such function."""
  read = getattr(find(path), "lenient", None)
  return [read(text, reference)] if read else []


def ask(path: str, function: str, *texts: str) -> bool:
  """Calls a function of a verifier; runs in a worker of `workers.Pool`."""
  return bool(getattr(find(path), function)(*texts))


def verdict(
    path: str,
    text: str,
    reference: str,
    tolerance: float,
    lenient: bool = False,
) -> Any:
  """Whether a response is correct, or a traceback; runs in a worker.

  With `lenient` it returns the result of `reading` instead.
  """
  if lenient:
    return reading(path, text, reference)
  keywords = {"tolerance": tolerance} if tolerance else {}
  try:
    return bool(find(path).verify(text, reference, **keywords))
  except MemoryError:  # the worker is replaced
    raise
  except Exception:
    return traceback.format_exc()[-2000:]
