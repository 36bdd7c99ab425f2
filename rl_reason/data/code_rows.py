"""Rows of code sets that are not known by name, by the columns that they use.

`verifiers.code_tests` has the forms of tests, and the columns that hold them.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from rl_reason.data.known_sets import Field, Unclear, column, text
from rl_reason.verifiers import code_blocks, code_tests, unit_tests

_QUESTION = (
    *("question", "problem", "question_content", "problem_description"),
    *("description", "query", "text", "prompt", "messages", "instruction"),
)
_SOLUTION = (
    *("solution", "canonical_solution", "gold_standard_solution", "code"),
    "solutions",
)
# Fields of the row that say how its tests are meant.
_CONTEXT = [x for x in code_tests.CONTEXT if x not in ("names", "stop")]


def columns(mapping: Mapping[str, tuple], usual: Mapping[str, tuple]) -> dict:
  """The mapping, with the columns of code sets for those that are `usual`."""
  of_code = dict(question=_QUESTION, answer=code_tests.COLUMNS)
  changed = {k: v for k, v in of_code.items() if mapping[k] == usual[k]}
  return {**mapping, **changed}


def _tests(
    row: dict, names: tuple
) -> code_tests.Calls | code_tests.Streams | None:
  """The tests of a row; None if its columns are empty.

  Raises:
    Unclear: the tests are of no form that is read.
  """
  if names == code_tests.COLUMNS:
    value: Any = {x: row[x] for x in names if row.get(x)}
  else:
    value = column(*names)(row)
  if not value:
    return None
  context = {x: row[x] for x in _CONTEXT if row.get(x)}
  try:
    return code_tests.fields(value, context)
  except code_tests.Unreadable as e:
    raise Unclear(e.why, f"tests are read as {code_tests.FORMS}") from None
  except ValueError as e:
    raise Unclear(str(e)) from None


def answer(names: tuple) -> Field:
  """Reads the tests in the columns `names` as a reference answer."""

  def read(row):
    problem = _tests(row, names)
    return problem.reference() if problem else ""

  return read


def question(asked: Field, names: tuple) -> Field:
  """Reads a question, and adds what the program has to define.

  A signature in another column is added if the question does not name the
  function that the tests in the columns `names` call.
  """

  def read(row):
    found, problem = asked(row), _tests(row, names)
    if not isinstance(found, str) or not isinstance(problem, code_tests.Calls):
      return found
    called = {x.rpartition(".")[2] for x in problem.names}
    called |= unit_tests.imported(ast.parse(problem.tests))
    lacking = [x for x in sorted(called) if not re.search(rf"\b{x}\b", found)]
    if not lacking:
      return found
    info = row.get("test_info")
    declared = [
        str(x.get("function_declaration") or "")
        for x in (info if isinstance(info, list) else [])
        if isinstance(x, dict)
    ]
    start = str(row.get("starter_code") or "") or "\n".join(declared)
    return f"{found}\n\nDefine:\n\n{start.strip() or ', '.join(lacking)}"

  return read


def _is_program(source: str) -> bool:
  """Whether a source is Python, rather than another language."""
  block = code_blocks.Block(source, True)
  return block.parses and block.rank == 2


def solution(row: dict) -> str:
  """The program of a row that is to pass its tests; '' without one."""
  for name in _SOLUTION:
    found = code_tests.from_json(row.get(name))
    for each in found if isinstance(found, list) else [found]:
      program = code_blocks.program(each) if isinstance(each, str) else None
      if program and _is_program(program):
        return text(program)
  return ""
