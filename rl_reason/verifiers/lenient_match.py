"""Lenient comparison: why a rejected answer may still be right.

The reference may be rounded, the unit may not be asked for, or the order may be
free. Responses that match leniently are listed for people to look at. No reward
depends on this module, and it evaluates only what the verifier evaluates.
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

CLOSE = Fraction(
    1, 100
)  # relative difference of a number and its rounded value
MAX_PARTS = 16
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def reading(text: str, reference: str) -> str:
  """How a rejected response matches its reference leniently, in a few words.

  '' if the response does not match.
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
  """How two answers match; '' if they do not."""
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
  """The numbers and formulas in a value, without units."""
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
  """How two lists of numbers and formulas match."""
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
  """Whether two numbers differ by at most one percent of the second."""
  if numeric.names(a) or numeric.names(b):
    return numeric.equal(a, b)
  error = ("abs", minus(a, b))
  allowed = ("*", -CLOSE, ("abs", b))
  return numeric.sign(("+", error, allowed)) <= 0
