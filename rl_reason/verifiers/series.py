r"""Sums and products that are written with dots: `1+2+\cdots+100`.

A closed formula gives the value, so the number of terms costs nothing. The
first terms have to determine the rule, and the last term has to follow it.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import numeric
from rl_reason.verifiers.lexer import Unreadable
from rl_reason.verifiers.value_types import is_expression

MAX_GEOMETRIC = 4_000  # terms of a geometric series
MAX_TERMS = 200  # terms of a series of formulas, such as 1^2+2^2+...+10^2
MAX_BITS = 2_000  # size of each of its terms
MAX_EXACT = 10_000  # nodes of all terms of a rational sum between bounds
MAX_NODES = 1_000  # nodes of all terms of another sum between bounds


def _minus(a, b):
  if isinstance(a, Fraction) and isinstance(b, Fraction):
    return a - b
  return ("+", a, ("*", Fraction(-1), b))


def total(first: list, last):
  """Returns the sum of a series: the terms before its dots, and the last term.

  Raises:
    Unreadable: the terms follow no known rule, or more than one.
  """
  if None in map(_exact, (*first[:2], last)):
    return _arithmetic(first, last)
  values = [x for x in map(_exact, (*first, last)) if x is not None]
  if len(values) > len(first):
    rules = [f(values[:-1], values[-1]) for f in (_linear, _geometric)]
    known = [x for x in rules if x is not None]
    # 1 + 2 + ... + 64 has steps of 1, though 64 is a power of 2 as well.
    if rules[0] is not None and values[1] - values[0] == 1:
      known = known[:1]
    if len(known) == 1:
      return known[0]
    if known:
      raise Unreadable("a sum of two readings")
  total_ = Fraction(0)
  for term in map(_exact, _formulas(first, last)):
    if term is None or term.denominator.bit_length() > MAX_BITS:
      raise Unreadable("a sum of such terms")
    total_ += term
  return total_


def product(first: list, last):
  """Returns the product of consecutive numbers; for arguments see `total`."""
  values, end = [x for x in map(_exact, first) if x is not None], _exact(last)
  steps = {b - a for a, b in itertools.pairwise(values)}
  if len(values) < len(first) or steps not in ({1}, {-1}):
    raise Unreadable("a product with dots")
  if end is None:
    if values[:2] == [1, 2]:
      return ("factorial", last)
    raise Unreadable("a product with dots")
  low, high = sorted([values[0], end])
  count = (end - values[0]) * (values[1] - values[0])
  if low.denominator != 1 or count.denominator != 1 or count < len(first):
    raise Unreadable("a product with dots")
  if max(-low, high) > numeric.MAX_COMBINATORIAL:
    raise Unreadable("a product of large numbers")
  return Fraction(math.prod(range(int(low), int(high) + 1)))


def filled(before: list, after: list, most: int) -> list:
  """Returns a list of numbers in equal steps, with numbers in place of dots.

  It has at most `most` numbers.

  Raises:
    Unreadable: the values are not in equal steps.
  """
  if not after or not all(map(is_expression, (*before, after[0]))):
    raise Unreadable("dots here")
  values = [x for x in map(_exact, before) if x is not None]
  end = _exact(after[0])
  steps = {b - a for a, b in itertools.pairwise(values)} or {Fraction(1)}
  step = steps.pop()
  if end is None or len(values) < len(before) or steps or not step:
    raise Unreadable("dots here")
  count = (end - values[-1]) / step
  if count.denominator != 1 or not 0 < count <= most:
    raise Unreadable("dots here")
  between = [values[-1] + n * step for n in range(1, int(count))]
  return [*before, *between, *after]


def repeated(sign: str, name: str, low, high, term):
  """Returns the sum or product of a term over a short range of integers."""
  start, end = _exact(low), _exact(high)
  if start is None or end is None or {start % 1, end % 1} != {0}:
    raise Unreadable("a sum with other bounds than integers")
  first, last = int(start), int(end)
  if last < first or not is_expression(term):
    raise Unreadable("an empty sum")
  size = (last - first + 1) * _size(term)
  if size > MAX_EXACT:
    raise Unreadable("a sum of many or long terms")
  terms = [
      numeric.substitute(term, {name: Fraction(n)})
      for n in range(first, last + 1)
  ]
  total_: Any = terms[0]
  for term in terms[1:]:
    total_ = (sign, total_, term)
    value = _exact(total_)
    total_ = total_ if value is None else value
    if value is None and size > MAX_NODES:
      raise Unreadable("a sum of many or long terms")
  return total_


def _size(node) -> int:
  """The number of nodes of an expression."""
  leaf = isinstance(node, Fraction) or node[0] == "name"
  return 1 if leaf else 1 + sum(map(_size, node[1:]))


def _exact(node) -> Fraction | None:
  """The value of an expression that is rational and not large; else None."""
  try:
    value = numeric.exact(node)
  except numeric.Hard as e:
    raise Unreadable(str(e)) from None
  large = value is not None and value.numerator.bit_length() > MAX_BITS
  return None if large else value


def _arithmetic(first, last):
  """The sum of an arithmetic series whose terms may be formulas."""
  step = _minus(first[1], first[0])
  steps = [_minus(b, a) for a, b in itertools.pairwise(first[1:])]
  try:
    constants = (Fraction(1), Fraction(-1), Fraction(2), Fraction(-2))
    if not isinstance(step, Fraction):
      found = (x for x in constants if numeric.equal(step, x))
      step = next(found, None)
    else:
      step = step or None
    if step is None or not all(numeric.equal(x, step) for x in steps):
      raise Unreadable("a sum without a rule")
  except numeric.Hard as e:
    raise Unreadable(str(e)) from None
  count = ("+", ("/", _minus(last, first[0]), step), Fraction(1))
  return ("*", count, ("/", ("+", first[0], last), Fraction(2)))


def _linear(first, last) -> Fraction | None:
  """The sum of an arithmetic series of numbers; None of other series."""
  step = first[1] - first[0]
  if not step or any(b - a != step for a, b in itertools.pairwise(first)):
    return None
  count = (last - first[0]) / step + 1
  if count.denominator != 1 or count <= len(first):
    return None
  return count * (first[0] + last) / 2


def _geometric(first, last) -> Fraction | None:
  """The sum of a geometric series of numbers; None of other series."""
  if not first[0] or first[1] in (first[0], -first[0], 0):
    return None
  ratio = first[1] / first[0]
  if any(b != a * ratio for a, b in itertools.pairwise(first)):
    return None
  term, grows = first[-1], abs(ratio) > 1
  for _ in range(MAX_GEOMETRIC):
    term *= ratio
    if term == last:
      return (last * ratio - first[0]) / (ratio - 1)
    if (abs(term) > abs(last)) == grows:
      return None
  return None


def _formulas(first, last) -> list:
  """All terms, where the numbers in the terms grow in equal steps."""
  for count in range(len(first) + 1, MAX_TERMS + 1):
    if first[0] == last or _between(first, last, 0, count) is None:
      continue
    terms = [_between(first, last, index, count) for index in range(count)]
    if terms[: len(first)] == list(first):
      return terms
    break
  raise Unreadable("a sum without a rule")


def _between(first, last, index: int, count: int):
  """The term at an index, by interpolating its numbers; None if impossible."""
  a, b = first[0], last
  if isinstance(a, Fraction) and isinstance(b, Fraction):
    step = first[1] - a if isinstance(first[1], Fraction) else None
    if step is None or b - a != step * (count - 1):
      return None
    return a + index * step
  if type(a) is not tuple or type(b) is not tuple or a[0] != b[0]:
    return None
  if a[0] == "name":
    return a if a == b else None
  if any(type(x) is not tuple or len(x) != len(a) for x in (*first, b)):
    return None
  parts = []
  for place in range(1, len(a)):
    part = _between([x[place] for x in first], b[place], index, count)
    if part is None:
      return None
    parts.append(part)
  return (a[0], *parts)
