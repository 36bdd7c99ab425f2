"""Whether two expressions are equal: exactly, or by evaluation.

Rational numbers are compared as fractions. Other numbers are evaluated at 256
and 512 bits: a difference of zero shrinks with the precision, any other
difference does not. Formulas are compared at fixed pseudo-random points. An
expression that would take long to evaluate is `Hard`.
"""

import functools
import math
import random
from collections.abc import Callable
from fractions import Fraction

MAX_BITS = 50_000  # size of an exact power
MAX_EXPONENT = 1e6  # exponent of a power in floating point, in bits
MAX_COMBINATORIAL = 3000  # argument of a factorial, first one of a binomial
_CONSTANTS = frozenset(["infinity", "pi", "e", "i", "emptyset"])


class Hard(Exception):
  """An expression that is too large to evaluate, or undefined."""


def names(node) -> frozenset[str]:
  """The variables of an expression."""
  if isinstance(node, Fraction):
    return frozenset()
  if node[0] == "name":
    return frozenset(node[1:]) - _CONSTANTS
  return frozenset().union(*map(names, node[1:]))


def exact(node) -> Fraction | None:
  """The value of a rational expression; None if it is not known to be rational.

  Raises:
    Hard: division by zero, or a number of too many digits.
  """
  if isinstance(node, Fraction) or node[0] not in _EXACT:
    return node if isinstance(node, Fraction) else None
  values = []
  for child in node[1:]:
    value = exact(child)
    if value is None:
      return None
    values.append(value)
  return _EXACT[node[0]](*values)


def _divide(a, b):
  if not b:
    raise Hard("division by zero")
  return a / b


def _power(base, exponent):
  if exponent.denominator != 1:
    return None
  if not base and exponent < 0:
    raise Hard("division by zero")
  bits = max(base.numerator.bit_length(), base.denominator.bit_length())
  if bits <= 1:  # -1, 0, 1
    return base ** (abs(exponent.numerator) % 2 + 2 * bool(exponent))
  if abs(exponent) * bits > MAX_BITS:
    return None
  return base**exponent.numerator


def _naturals(function):
  """A function of small natural numbers as a function of fractions."""

  def apply(*values):
    if any(x.denominator != 1 or x < 0 for x in values):
      raise Hard("a combinatorial function of other than natural numbers")
    if values[0] > MAX_COMBINATORIAL:
      raise Hard("a combinatorial function of large numbers")
    return Fraction(function(*(x.numerator for x in values)))

  return apply


def _integers(function):
  """A function of integers as a function of fractions."""

  def apply(*values):
    if any(x.denominator != 1 for x in values):
      raise Hard("a divisor or multiple of other than integers")
    return Fraction(function(*(x.numerator for x in values)))

  return apply


_EXACT: dict[str, Callable[..., Fraction | None]] = {
    "+": lambda *terms: sum(terms, Fraction(0)),
    "*": lambda a, b: a * b,
    "/": _divide,
    "^": _power,
    "factorial": _naturals(math.factorial),
    "factorial2": _naturals(lambda n: math.prod(range(n, 0, -2))),
    "binom": _naturals(math.comb),
    "abs": abs,
    "floor": lambda x: Fraction(math.floor(x)),
    "ceil": lambda x: Fraction(math.ceil(x)),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
}
# Functions that are slow for large arguments -> the largest argument.
_LIMITS = {
    **dict.fromkeys(["sin", "cos", "tan", "cot", "sec", "csc"], 1e15),
    **dict.fromkeys(["sinh", "cosh", "tanh", "exp"], MAX_EXPONENT),
    **dict.fromkeys(["factorial", "factorial2", "binom"], MAX_COMBINATORIAL),
    **dict.fromkeys(["floor", "ceil"], 1e30),
}
_MPMATH = {"factorial2": "fac2", "binom": "binomial", "abs": "fabs"}


@functools.cache
def _contexts():
  """mpmath at three precisions; imported on first use."""
  import mpmath

  low, high, other = (mpmath.MPContext() for _ in range(3))
  low.prec, high.prec, other.prec = 256, 512, 272
  return low, high, other


def _require(value, limit):
  if abs(value) > limit:
    raise Hard("a number out of range")


def _evaluate(node, mp, at):
  """The value of an expression at a point, a number of mpmath."""
  if isinstance(node, Fraction):
    return mp.mpf(node.numerator) / node.denominator
  if node[0] == "name":
    if node[1] in at:
      return _evaluate(at[node[1]], mp, at)
    if node[1] == "emptyset":
      raise Hard("a set is no number")
    constants = dict(pi=mp.pi, e=mp.e, i=mp.mpc(0, 1), infinity=mp.inf)
    return +constants[node[1]]
  values = [_evaluate(child, mp, at) for child in node[1:]]
  match node[0]:
    case "+":
      return mp.fsum(values)
    case "*":
      return values[0] * values[1]
    case "/":
      return values[0] / values[1]
    case "^":
      base, exponent = values
      if base and mp.isfinite(base) and mp.isfinite(exponent):
        _require(exponent, 1e12)
        _require(exponent * mp.log(abs(base), 2), MAX_EXPONENT)
      return mp.power(base, exponent)
    case "max" | "min":
      if not all(mp.isfinite(x) and mp.im(x) == 0 for x in values):
        raise Hard("the largest of other than real numbers")
      return (max if node[0] == "max" else min)(map(mp.re, values))
    case "gcd" | "lcm":
      raise Hard("a divisor or multiple of other than integers")
    case name:
      for value in values if name in _LIMITS else ():
        if mp.isfinite(value):
          _require(value, _LIMITS[name])
      return getattr(mp, _MPMATH.get(name, name))(*values)


def _values(nodes, at) -> list:
  """Values of expressions at a point, at the lowest precision.

  Raises:
    Hard: an expression is undefined there.
  """
  try:
    return [_evaluate(node, _contexts()[0], at) for node in nodes]
  except (ArithmeticError, ValueError, TypeError):
    raise Hard("undefined") from None


def _zero(function) -> bool | None:
  """Whether `function(mp)` is exactly zero; None if it is undefined."""
  low, high, other = _contexts()
  try:
    rough, fine = function(low) or function(other), function(high)
    if not (low.isfinite(rough) and high.isfinite(fine)):
      return None
    # The rough values may be 0 by accident, and the fine one a rounding error.
    size = abs(rough) or high.mpf(2) ** -256
    return abs(fine) <= size * high.mpf(2) ** -128
  except (ArithmeticError, ValueError, TypeError, Hard):
    return None


# Ranges of the points: near 0, above 1, large for floors, below 0.
_RANGES = [(0.1, 0.9), (1.1, 3.0), (1.1, 3.0), (5.0, 60.0), (5.0, 60.0)]
_RANGES.append((-3.0, -0.2))


@functools.cache
def _coordinate(index: int, name: str) -> Fraction:
  """The value of a variable at a point, always the same."""
  rng = random.Random(f"{index} {name}")
  return Fraction(round(rng.uniform(*_RANGES[index]) * 10**6), 10**6)


def equal(a, b) -> bool:
  """Whether two expressions are the same number or the same function.

  Functions are compared where both are defined and real, for positive and
  negative arguments; functions that are nowhere real are compared as complex
  functions.

  Raises:
    Hard: the expressions cannot be evaluated.
  """
  if a == b and not isinstance(a, Fraction) and a[0] == "name":
    return True  # infinity and the empty set have no value
  exact_a, exact_b = exact(a), exact(b)
  if exact_a is not None and exact_b is not None:
    return exact_a == exact_b

  def difference(mp, at):
    return _evaluate(a, mp, at) - _evaluate(b, mp, at)

  variables = names(a) | names(b)
  if variables:
    return _vanishes(difference, a, variables)
  ends = _values([a, b], {})
  if not all(map(_contexts()[0].isfinite, ends)):
    return ends[0] == ends[1]
  return bool(_zero(lambda mp: difference(mp, {})))


def sign(node) -> int:
  """The sign of a real number: -1, 0 or 1.

  Raises:
    Hard: the number is not real, or cannot be evaluated.
  """
  value = exact(node)
  if value is not None:
    return (value > 0) - (value < 0)
  if names(node):
    raise Hard("a formula has no sign")
  if _zero(lambda mp: _evaluate(node, mp, {})):
    return 0
  (found,) = _values([node], {})
  low = _contexts()[0]
  if not low.isfinite(found) or abs(low.im(found)) > abs(found) * 2.0**-128:
    raise Hard("not a real number")
  return 1 if low.re(found) > 0 else -1


def nearest(node) -> int:
  """The integer nearest to a real number.

  Raises:
    Hard: the number cannot be evaluated, or is too large.
  """
  (found,) = _values([node], {})
  low = _contexts()[0]
  if not low.isfinite(found) or abs(found) > 1e9:
    raise Hard("a number out of range")
  return int(low.nint(low.re(found)))


def substitute(node, names_to: dict):
  """The expression with names replaced by expressions."""
  if isinstance(node, Fraction):
    return node
  if node[0] == "name":
    return names_to.get(node[1], node)
  return (node[0], *(substitute(child, names_to) for child in node[1:]))


def _vanishes(difference, node, variables) -> bool:
  """Whether a difference is zero at all points where it can be evaluated.

  `difference` is a function of an mpmath context and a point. Points where the
  expression `node` is real take precedence.
  """
  low = _contexts()[0]
  zeros = {True: [], False: []}
  for index in range(len(_RANGES)):
    at = {name: _coordinate(index, name) for name in variables}
    zero = _zero(lambda mp, at=at: difference(mp, at))
    if zero is None:
      continue
    ends = [_evaluate(node, low, at), difference(low, at)]
    real = all(abs(low.im(x)) <= abs(x) * 2.0**-128 for x in ends)
    zeros[real or zero].append(zero)
  compared = zeros[True] if len(zeros[True]) > 1 else zeros[False]
  if len(compared) < 2:
    raise Hard("undefined where it was tried")
  return all(compared)


def proportional(a, b, *, positive: bool = False) -> bool:
  """Whether a = c b for a constant c other than 0, or c > 0 if `positive`.

  Equations and inequalities are the same if the differences of their sides are
  proportional.
  """
  variables = names(a) | names(b)
  if not variables:
    return False
  at = {name: _coordinate(2, name) for name in variables}
  first = _values([a, b], at)
  if not all(first) or not all(map(_contexts()[0].isfinite, first)):
    return False
  if positive and not (first[0] / first[1]).real > 0:
    return False

  def cross(mp, here):
    a0, b0 = _evaluate(a, mp, at), _evaluate(b, mp, at)
    return _evaluate(a, mp, here) * b0 - _evaluate(b, mp, here) * a0

  return _vanishes(cross, a, variables)
