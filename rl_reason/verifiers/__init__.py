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

import importlib

# Kind of a row -> the module that verifies it.
KINDS = {
    "math": "rl_reason.verifiers.math",
    "choice": "rl_reason.verifiers.choice",
    "code": "rl_reason.verifiers.code",
}


def ask(module: str, function: str, *texts: str) -> bool:
  """What a function of a verifier says; for `workers.Pool`."""
  return bool(getattr(importlib.import_module(module), function)(*texts))
