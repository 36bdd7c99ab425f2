"""Runs cases with an adapter.

  python -m conformance.adapters MODULE[:ATTRIBUTE]

Cases arrive on stdin as JSON, results leave on stdout. It needs NumPy and what
the adapter imports, so that it runs in the environment of the library.
"""

import importlib
import json
import os
import sys
import traceback

import numpy as np

NUMBERS = ("token_ids", "texts", "micro_batches")  # stay lists


def find(name: str):
  """Returns the adapter that MODULE[:ATTRIBUTE] names."""
  module, _, attribute = name.partition(":")
  found = importlib.import_module(module)
  return getattr(found, attribute) if attribute else found


def arguments(inputs: dict) -> dict:
  """Lists as arrays: float32, int32 or bool."""

  def value(name, x):
    if not isinstance(x, list) or name in NUMBERS:
      return x
    array = np.array(x)
    if array.dtype.kind == "b":
      return array
    return array.astype(np.int32 if array.dtype.kind == "i" else np.float32)

  return {name: value(name, x) for name, x in inputs.items()}


def plain(x):
  """Results as JSON: nested lists of numbers."""
  if hasattr(x, "detach"):
    x = x.detach()
  return np.asarray(x).tolist()


def run(adapter, case: dict) -> dict:
  """Runs a case; returns its results, or why there are none."""
  operation = case["operation"]
  function = getattr(adapter, operation, None)
  if function is None:
    absent = getattr(adapter, "ABSENT", {})
    return dict(absent=absent.get(operation, "the library has no function"))
  try:
    out = function(**arguments(case["inputs"]))
    if not isinstance(out, dict):
      raise TypeError(f"{operation} returns no dict of results")
    values = {name: plain(x) for name, x in out.items()}
  except NotImplementedError as e:
    return dict(absent=str(e))
  except Exception:  # the library's own error is a result
    return dict(error=traceback.format_exc(limit=-2))
  about = (function.__doc__ or "").strip().split("\n\n")[0]
  calls = " ".join(about.split()).removesuffix(".")
  return dict(values=values, calls=calls)


def main() -> None:
  """Answers the cases of stdin."""
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # what libraries print must not mix with the answer
  adapter = find(sys.argv[1])
  cases = json.load(sys.stdin)
  answer = dict(
      versions=adapter.versions(),
      results={case["name"]: run(adapter, case) for case in cases},
  )
  json.dump(answer, out)


if __name__ == "__main__":
  main()
