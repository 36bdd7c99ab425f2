"""Why an answer that is not the reference may be right all the same.

A person should look at such a response: the reference may be rounded, the unit
not asked for, or the order free. No reward ever reads this, and nothing is
evaluated here that the verifier would not evaluate.
"""

import itertools
import re
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import final_answer, lexer, numeric, parser
from rl_reason.verifiers.value_types import (
    Family,
    Quantity,
    Relation,
    Rounded,
    Seq,
    is_expression,
    minus,
    same_any_order,
)

CLOSE = Fraction(1, 100)  # relative difference of a number that may be rounded
MAX_PARTS = 16
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def reading(text: str, reference: str) -> str:
  """Says how a rejected response equals its reference, read leniently.

  Args:
    text: the response.
    reference: the correct answer, plain or LaTeX.

  Returns:
    the reading in a few words; '' if there is none.
  """
  reference = final_answer.reference(reference)
  found = final_answer.final(text)
  why = found and _compare(found, reference)
  if why:
    return why
  numbers = _NUMBER.findall(text[-2000:])
  if numbers and _compare(numbers[-1].rstrip(",."), reference) in (
      SAME,
      SPELLED,
  ):
    return "the last number of the response"
  return ""


SAME = "the same but for units or brackets"
SPELLED = "the same but for case, spaces and punctuation"


def _compare(found: str, reference: str) -> str:
  """How two answers are equal; '' if they are not."""
  folded = [re.sub(r"[\W_]+", "", x).casefold() for x in (found, reference)]
  signs = [x.count("-") for x in (found, reference)]
  if folded[0] and folded[0] == folded[1] and signs[0] == signs[1]:
    return SPELLED
  try:
    values = [_parts(parser.read(x)) for x in (found, reference)]
    return _compare_parts(*values)
  except (lexer.Unreadable, numeric.Hard, RecursionError):
    return ""


def _parts(value: Any) -> list:
  """The numbers and formulas that a value is made of, without their units."""
  if isinstance(value, Quantity | Rounded):
    return _parts(value.value)
  if isinstance(value, Seq | Family):
    return [part for item in value.items for part in _parts(item)]
  if isinstance(value, Relation):
    if value.ops[0] in ("=", "approx", "in"):  # the last side is the result
      return _parts(value.sides[-1])
    return [part for side in value.sides for part in _parts(side)]
  return [value]


def _compare_parts(a: list, b: list) -> str:
  """How two lists of numbers and formulas are equal."""
  if not 0 < len(a) == len(b) <= MAX_PARTS:
    return ""
  if not all(map(is_expression, (*a, *b))):
    return ""
  if all(map(numeric.equal, a, b)):
    return SAME
  if same_any_order(a, b, numeric.equal):
    return "another order"
  if all(itertools.starmap(_close, zip(a, b, strict=True))):
    return "equal up to rounding"
  return ""


def _close(a, b) -> bool:
  """Whether two numbers differ by a hundredth of themselves at most."""
  if numeric.names(a) or numeric.names(b):
    return numeric.equal(a, b)
  error = ("abs", minus(a, b))
  allowed = ("*", -CLOSE, ("abs", b))
  return numeric.sign(("+", error, allowed)) <= 0
