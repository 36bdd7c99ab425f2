"""Verifiers: whether the final answer of a response is correct.

A verifier is a module, or a function `module:function`, that gets a response
and the reference answer of its row. It never evaluates what a model wrote;
`code` runs it, in a sandbox. The functions of a module:

  verify(text, reference) -> bool   whether the final answer is correct
  answer(text) -> str | None        the final answer, verbatim; None if none
  usable(reference) -> bool         whether a reference answer can be verified
  lenient(text, reference) -> str   why a rejected response may be right all the
                                    same, '' if not; only math has it

`math` and `choice` verify texts, `code` programs; `workers` runs verifiers in
processes that may crash or hang. The package imports nothing else of rl_reason.
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
NONE = "none"  # the kind of rows that only rewards judge: nothing verifies them
OWN: set[str] = set()  # kinds of this process' config: functions of the user


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


def reading(path: str, text: str, reference: str) -> list[str]:
  """Why a rejected response may be right, in a list; runs in a worker."""
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

  Where it is asked leniently, what `reading` returns.
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
