"""Prompts of code: source that a program continues, or repeats and completes.

A prompt may end with a signature, `def f(x):`, without a body.
"""

import ast
from collections.abc import Iterator


def _compiles(source: str) -> bool:
  try:
    compile(source, "prompt", "exec")
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return False
  return True


def _starts(prompt: str) -> Iterator[str]:
  """The prompt, and the prompt with a colon added to its signature."""
  yield prompt
  yield prompt.rstrip() + ":"


def module(prompt: str) -> str:
  """The prompt as a module; a signature without a body gets an empty body.

  Raises:
    ValueError: the prompt is no Python.
  """
  if _compiles(prompt):
    return prompt
  line = prompt.rstrip().rpartition("\n")[2]
  indent = line[: len(line) - len(line.lstrip())] + "    "
  for start in _starts(prompt):
    whole = f"{start.rstrip()}\n{indent}...\n"
    if _compiles(whole):
      return whole
  raise ValueError("the prompt of the reference answer is no Python")


def continued(prompt: str, program: str) -> str:
  """The prompt followed by a program, which compile together if possible."""
  sources = [
      start + between + program
      for start in _starts(prompt)
      for between in ("", "\n")
  ]
  return next(filter(_compiles, sources), sources[0])


def unwritten(prompt: str) -> set[str]:
  """Functions of a prompt that are signatures, and classes of these alone."""
  return unwritten_in(ast.parse(module(prompt)))


def unwritten_in(tree: ast.Module) -> set[str]:
  """Functions of a module that are signatures, and classes of these alone."""
  return {x.name for x in tree.body if isinstance(x, _NAMED) and _empty(x)}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_FUNCTIONS, ast.ClassDef)


def _empty(node: ast.AST) -> bool:
  """Whether a function or class has no statement that does anything."""
  if isinstance(node, ast.ClassDef):
    methods = [x for x in node.body if isinstance(x, _FUNCTIONS)]
    return bool(methods) and all(map(_empty, node.body))
  if isinstance(node, _FUNCTIONS):
    return all(map(_empty, node.body))
  if isinstance(node, ast.Raise) and node.exc:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
  return isinstance(node, ast.Pass) or (
      isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
  )
