r"""Mathematical answers: whether a response's final answer is the reference.

An answer is parsed by a grammar of our own (`latex`) and compared exactly or,
if irrational or with variables, by evaluation at high precision (`numeric`).
Text outside of the grammar goes to math-verify's LaTeX parser, after a
whitelist; never to `sympify` or `parse_expr`, which execute their input. A hard
answer may take seconds there: verify many in `workers`.

Conventions, where reasonable people differ:

- Nothing is rounded: 0.333 is not 1/3, 3.14 is not pi, 2.50 is 2.5. An exact
  value may be followed by its digits, if they are right: 1/3, about 0.333.
- A unit may be left out, or added where the reference has none; two different
  physical units are different (10 cm is not 10 m); nouns do not count.
- 50% is 1/2. For questions of "what percent" it is 50 as well: a bare number
  answers a reference with a percent sign, and where the reference has none `x%`
  is x for x > 1.
- Degrees are a unit: 45 degrees is 45, not pi/4; but its sine is that of pi/4.
- A number in a base equals the same digits in the same base only.
- `x = 5` is 5. A bare list is a set with multiplicity; it may stand for a tuple
  of the same order. Tuples, intervals and sets keep their brackets. `x = 2,
  y = 3` may be answered by the values in this order.
- A condition on one variable is the set that it leaves. "and" is an
  intersection, "or" a union; a comma is "and", or where nothing is left, "or".
- 3:4 is 3/4, 10:30 a time. 5th is 5. "no solution" is the empty set, and not 0.
- `2k pi` with k in Z is a set; without a domain a formula in a given k, which
  may have another name, but no other description.
- `log` without a base is natural; `i` is imaginary; `1\frac12` is 3/2.
"""

import functools
import re
from fractions import Fraction

from rl_reason.verifiers import (
    equality,
    fallback,
    final_answer,
    lenient_match as readings,
    lexer,
    numeric,
    parser,
)
from rl_reason.verifiers.value_types import Quantity, is_expression

answer = final_answer.final
lenient = readings.reading

_UNDECIDED = (lexer.Unreadable, numeric.Hard, RecursionError)
_read_reference = functools.lru_cache(maxsize=4096)(parser.read)
_reference = functools.lru_cache(maxsize=4096)(final_answer.reference)


def verify(text: str, reference: str, *, tolerance: float = 0.0) -> bool:
  """Whether the final answer of a response is the reference answer.

  Args:
    text: a response; anything at all.
    reference: the correct answer, plain or LaTeX.
    tolerance: absolute error that a rational number may have, as a few
      reference answers of OlympiadBench say; 0 for none.
  """
  found = answer(text)
  if found is None:
    return False
  if equal(found, reference):
    return True
  return bool(tolerance) and _near(found, reference, tolerance)


def _near(found: str, reference: str, tolerance: float) -> bool:
  """Whether two rational numbers, units aside, differ by the tolerance."""
  try:
    values = [parser.read(found), _read_reference(_reference(reference))]
    values = [x.value if isinstance(x, Quantity) else x for x in values]
    a, b = (numeric.exact(x) if is_expression(x) else None for x in values)
  except _UNDECIDED:
    return False
  if a is None or b is None:
    return False
  return abs(a - b) <= Fraction(str(tolerance))


def _plain(text: str) -> Fraction | None:
  """The value of a decimal number, perhaps between dollars; else None."""
  return lexer.decimal(text.strip().strip("$").strip())


def equal(found: str, reference: str) -> bool:
  """Whether two answers are the same; False if one cannot be parsed."""
  reference = _reference(reference)
  fast = _plain(found), _plain(reference)
  if fast[0] is not None and fast[1] is not None:
    return fast[0] == fast[1]
  if not found.strip() or not reference.strip():
    return False
  if found.strip() == reference.strip():
    return all(c.isprintable() or c in "\n\t" for c in found)
  try:
    values = parser.read(found), _read_reference(reference)
  except _UNDECIDED:
    same = _fold(found) == _fold(reference) != ""
    return same or fallback.equal(found, reference)
  try:
    return equality.same(*values)
  except (numeric.Hard, RecursionError):
    return False


def usable(reference: str) -> bool:
  """Whether a reference answer can be parsed and equals itself.

  One that only its own text would match is not usable.
  """
  reference = _reference(reference)
  if _plain(reference) is not None:
    return True
  try:
    value = parser.read(reference)
    return equality.same(value, value)
  except _UNDECIDED:
    return fallback.equal(reference, reference)


def _fold(text: str) -> str:
  r"""Text without spaces and formatting, as in \text{\frac{1}{2}}."""
  try:
    text = lexer.clean(text)
  except lexer.Unreadable:
    return ""
  text = re.sub(r"\\(?:text|mathrm|mbox)(?![a-z])|[{}]", " ", text)
  return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", " ".join(text.split()))
