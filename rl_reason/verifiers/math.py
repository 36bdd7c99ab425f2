r"""Mathematical answers: whether a response's final answer is the reference.

`parser` parses answers with a grammar of its own. Rational numbers are compared
exactly, other numbers and formulas by evaluation at high precision (`numeric`).
Text outside of the grammar goes to math-verify's LaTeX parser if a whitelist
admits it (`fallback`), never to `sympify` or `parse_expr`, which execute their
input. That parser may take seconds: verify batches with `workers`.

Conventions where reasonable people differ:

- Nothing is rounded: 0.333 is not 1/3, 3.14 is not pi, 2.50 is 2.5. An exact
  value may be followed by a correct approximation: 1/3, about 0.333.
- A unit may be left out, and may be added where the reference has none.
  Different physical units are different (10 cm is not 10 m). Nouns are ignored.
- 50% is 1/2. Since questions ask "what percent", 50% is also 50: a bare number
  equals a reference with a percent sign, and `x%` equals the reference x if
  x > 1.
- Degrees are a unit: 45 degrees is 45, not pi/4. In a trigonometric function
  45 degrees is pi/4.
- A number in a base equals only the same digits in the same base.
- `x = 5` is 5. A bare list is a set with multiplicity, and equals a tuple with
  the same values in the same order. Tuples, intervals and sets keep their
  brackets. The values of `x = 2, y = 3` may be given in this order, without
  names.
- A condition on one variable is the set of its solutions. "and" is an
  intersection and "or" a union. A comma is "and", or "or" if the intersection
  is empty.
- 3:4 is 3/4, and 10:30 is a time. 5th is 5. "no solution" is the empty set, not
  0.
- `2k pi` with k in Z is a set. Without a domain it is a formula in k: the
  variable may have another name, the formula has to be the same.
- `log` without a base is natural, `i` is imaginary, and `1\frac12` is 3/2.
"""

import functools
import re
import unicodedata
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import (
    equality,
    fallback,
    final_answer,
    lenient_match as readings,
    lexer,
    numeric,
    parser,
)
from rl_reason.verifiers.value_types import Quantity, Seq, is_expression

answer = final_answer.final
lenient = readings.reading

MAX_WORDS = 6  # of a reference answer of words, without articles
_UNDECIDED = (lexer.Unreadable, numeric.Hard, RecursionError)
_read_reference = functools.lru_cache(maxsize=4096)(parser.read)
_reference = functools.lru_cache(maxsize=4096)(final_answer.reference)


def verify(text: str, reference: str, *, tolerance: float = 0.0) -> bool:
  """Whether the final answer of a response is the reference answer.

  Args:
    text: a response; any text.
    reference: the correct answer, plain or LaTeX.
    tolerance: absolute error that a rational number may have. A few reference
      answers of OlympiadBench give one.
  """
  found = answer(text)
  if found is None:
    return False
  if equal(found, reference):
    return True
  return bool(tolerance) and _near(found, reference, tolerance)


def _near(found: str, reference: str, tolerance: float) -> bool:
  """Whether two rational numbers differ by `tolerance` at most."""
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


def _is_space(char: str) -> bool:
  """Whether a character is a space, if perhaps a no-break or invisible one."""
  invisible = char in "\n\t\u200b\u2060\ufeff"
  return invisible or unicodedata.category(char) == "Zs"


def equal(found: str, reference: str) -> bool:
  """Whether two answers are the same; False if one cannot be parsed."""
  reference = _reference(reference)
  fast = _plain(found), _plain(reference)
  if fast[0] is not None and fast[1] is not None:
    return fast[0] == fast[1]
  if not found.strip() or not reference.strip():
    return False
  if found.strip() == reference.strip():
    return all(c.isprintable() or _is_space(c) for c in found)
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

  A sentence of words does not count: no short answer equals it.
  """
  reference = _reference(reference)
  if _plain(reference) is not None:
    return True
  try:
    value = parser.read(reference)
    items = value.items if isinstance(value, Seq) else (value,)
    words = [len(x.split()) for x in items if isinstance(x, str)]
    if max(words, default=0) > MAX_WORDS:
      return False
    return equality.same(value, value)
  except _UNDECIDED:
    return fallback.equal(reference, reference)


def read(text: str) -> Any:
  """The value of an answer or a reference answer.

  Raises:
    Unreadable: the grammar does not cover the text.
  """
  return _read_reference(_reference(text))


def is_bare_list(reference: str) -> bool:
  """Whether a reference answer is a list whose order does not matter here."""
  try:
    value = read(reference)
  except _UNDECIDED:
    return False
  return isinstance(value, Seq) and value.brackets == ""


def _fold(text: str) -> str:
  r"""Text without spaces and formatting, as in \text{\frac{1}{2}}."""
  try:
    text = lexer.clean(text)
  except lexer.Unreadable:
    return ""
  text = re.sub(r"\\(?:text|mathrm|mbox)(?![a-z])|[{}]", " ", text)
  return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", " ".join(text.split()))
