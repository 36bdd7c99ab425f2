"""Whether two expressions are equal: exactly, or by evaluation.

Rational numbers are compared as fractions. Others are evaluated at 256 and at
512 bits: a difference that is truly zero shrinks with the precision, any other
stays. Formulas are compared at points drawn once and for all. No expression
that would take long is evaluated: it is `Hard`.
"""

import functools
import math
import random
from collections.abc import Callable
from fractions import Fraction

MAX_BITS = 50_000  # of an exact power
MAX_EXPONENT = 1e6  # of a power in floating point, in bits
_INEXACT = frozenset(["infinity", "pi", "e", "i", "emptyset"])


class Hard(Exception):
  """Too large, or undefined."""


def names(node) -> frozenset[str]:
  """The variables of an expression."""
  if isinstance(node, Fraction):
    return frozenset()
  if node[0] == "name":
    return frozenset(node[1:]) - _INEXACT
  return frozenset().union(*(names(child) for child in node[1:]))


def exact(node) -> Fraction | None:
  """The value of a rational expression; None if it is not plainly rational.

  Raises:
    Hard: division by zero, or a number of too many digits.
  """
  if isinstance(node, Fraction):
    return node
  if node[0] not in _EXACT:
    return None
  values = []
  for child in node[1:]:
    value = exact(child)
    if value is None:
      return None
    values.append(value)
  return _EXACT[node[0]](*values)


def _bits(value: Fraction) -> int:
  return max(value.numerator.bit_length(), value.denominator.bit_length())


def _divide(a, b):
  if not b:
    raise Hard("division by zero")
  return a / b


def _power(base, exponent):
  if exponent.denominator != 1:
    return None
  if not base and exponent < 0:
    raise Hard("division by zero")
  if _bits(base) > 1 and abs(exponent) * _bits(base) > MAX_BITS:
    return None
  if _bits(base) <= 1:  # -1, 0, 1
    return base ** (abs(exponent.numerator) % 2 + 2 * bool(exponent))
  return base**exponent.numerator


def _factorial(n):
  if n.denominator != 1 or not 0 <= n <= 3000:
    raise Hard("a factorial of what is no small natural number")
  return Fraction(math.factorial(n.numerator))


def _factorial2(n):
  if n.denominator != 1 or not 0 <= n <= 3000:
    raise Hard("a factorial of what is no small natural number")
  return Fraction(math.prod(range(n.numerator, 0, -2)))


def _binomial(n, k):
  if {n.denominator, k.denominator} != {1} or not 0 <= n <= 3000 or k < 0:
    raise Hard("a binomial of what are no small natural numbers")
  return Fraction(math.comb(n.numerator, k.numerator))


_EXACT: dict[str, Callable[..., Fraction | None]] = {
    "+": lambda *terms: sum(terms, Fraction(0)),
    "*": lambda a, b: a * b,
    "/": _divide,
    "^": _power,
    "factorial": _factorial,
    "factorial2": _factorial2,
    "binom": _binomial,
    "abs": abs,
    "floor": lambda x: Fraction(math.floor(x)),
    "ceil": lambda x: Fraction(math.ceil(x)),
}


@functools.cache
def _contexts():
  """mpmath at three precisions; imported when first needed."""
  import mpmath

  low, high, other = (mpmath.MPContext() for _ in range(3))
  low.prec, high.prec, other.prec = 256, 512, 272
  return low, high, other


def _small(value, limit):
  if abs(value) > limit:
    raise Hard("a number out of range")
  return value


def _evaluate(node, mp, at):
  """The value of an expression at a point, a number of mpmath."""
  if isinstance(node, Fraction):
    return mp.mpf(node.numerator) / node.denominator
  if node[0] == "name":
    if node[1] in at:
      return mp.mpf(at[node[1]].numerator) / at[node[1]].denominator
    if node[1] == "emptyset":
      raise Hard("a set is no number")
    constants = dict(pi=mp.pi, e=mp.e, i=mp.mpc(0, 1), infinity=mp.inf)
    return +constants[node[1]]
  values = [_evaluate(child, mp, at) for child in node[1:]]
  if node[0] == "^":
    base, exponent = values
    if base and mp.isfinite(base) and mp.isfinite(exponent):
      _small(exponent, 1e12)
      _small(exponent * mp.log(abs(base), 2), MAX_EXPONENT)
    return mp.power(base, exponent)
  if node[0] in _LIMITS:
    for value in values:
      if mp.isfinite(value):
        _small(value, _LIMITS[node[0]])
  if node[0] == "+":
    return mp.fsum(values)
  if node[0] in ("*", "/"):
    return values[0] * values[1] if node[0] == "*" else values[0] / values[1]
  if node[0] == "abs":
    return abs(values[0])
  name = dict(factorial2="fac2", binom="binomial").get(node[0], node[0])
  return getattr(mp, name)(*values)


_LIMITS = {
    **dict.fromkeys(["sin", "cos", "tan", "cot", "sec", "csc"], 1e15),
    **dict.fromkeys(["sinh", "cosh", "tanh", "exp"], MAX_EXPONENT),
    **dict.fromkeys(["factorial", "factorial2", "binom"], 3000),
    **dict.fromkeys(["floor", "ceil"], 1e30),
}


def _zero(function) -> bool | None:
  """Whether `function(mp)` is a true zero; None where it is undefined."""
  low, high, other = _contexts()
  try:
    rough, fine = function(low) or function(other), function(high)
    if not (low.isfinite(rough) and high.isfinite(fine)):
      return None
    # By accident rough ones may be 0, and the fine one a rounding error.
    size = abs(rough) or high.mpf(2) ** -256
    return abs(fine) <= size * high.mpf(2) ** -128
  except (ArithmeticError, ValueError, TypeError, Hard):
    return None


# Where formulas are tried: near 0, above 1, far out for floors, below 0.
_RANGES = [(0.1, 0.9), (1.1, 3.0), (1.1, 3.0), (5.0, 60.0), (5.0, 60.0)]
_RANGES.append((-3.0, -0.2))


@functools.cache
def _point(index: int, name: str) -> Fraction:
  """A variable's value at a point; it depends on nothing else."""
  rng = random.Random(f"{index} {name}")
  return Fraction(round(rng.uniform(*_RANGES[index]) * 10**6), 10**6)


def equal(a, b) -> bool:
  """Whether two expressions are the same number or the same function.

  A function is judged where both are defined and real, for arguments of either
  sign; if they are nowhere real, as complex functions.

  Raises:
    Hard: they cannot be evaluated.
  """
  if a == b and not isinstance(a, Fraction) and a[0] == "name":
    return True  # infinity and the empty set have no value
  exact_a, exact_b = exact(a), exact(b)
  if exact_a is not None and exact_b is not None:
    return exact_a == exact_b
  variables = names(a) | names(b)
  if not variables:
    return _equal_numbers(a, b)
  return _vanishes(
      lambda mp, at: _evaluate(a, mp, at) - _evaluate(b, mp, at),
      lambda mp, at: _evaluate(a, mp, at),
      variables,
  )


def _equal_numbers(a, b) -> bool:
  low = _contexts()[0]
  try:
    ends = [_evaluate(x, low, {}) for x in (a, b)]
  except (ArithmeticError, ValueError, TypeError):
    raise Hard("undefined") from None
  if not all(map(low.isfinite, ends)):
    return ends[0] == ends[1]
  same = _zero(lambda mp: _evaluate(a, mp, {}) - _evaluate(b, mp, {}))
  return bool(same)


def _vanishes(difference, value, variables) -> bool:
  """Whether a function is zero at every point where it can be judged."""
  low = _contexts()[0]
  verdicts = {True: [], False: []}
  for index in range(len(_RANGES)):
    at = {name: _point(index, name) for name in variables}
    zero = _zero(lambda mp, at=at: difference(mp, at))
    if zero is None:
      continue
    with_imaginary = [value(low, at), difference(low, at)]
    real = all(abs(low.im(x)) <= abs(x) * 2.0**-128 for x in with_imaginary)
    verdicts[real or zero].append(zero)
  judged = verdicts[True] if len(verdicts[True]) > 1 else verdicts[False]
  if len(judged) < 2:
    raise Hard("undefined where it was tried")
  return all(judged)


def proportional(a, b, *, positive: bool = False) -> bool:
  """Whether a = c b for a constant c other than 0; `positive`: for c > 0.

  This is how equations and inequalities are compared: by left less right side.
  """
  variables = names(a) | names(b)
  if not variables:
    return False
  low = _contexts()[0]
  at = {name: _point(2, name) for name in variables}
  try:
    first = [_evaluate(x, low, at) for x in (a, b)]
  except (ArithmeticError, ValueError, TypeError):
    raise Hard("undefined") from None
  if not all(first) or not all(map(low.isfinite, first)):
    return False
  if positive and not (first[0] / first[1]).real > 0:
    return False

  def cross(mp, here):
    a0, b0 = _evaluate(a, mp, at), _evaluate(b, mp, at)
    return _evaluate(a, mp, here) * b0 - _evaluate(b, mp, here) * a0

  return _vanishes(cross, lambda mp, here: _evaluate(a, mp, here), variables)
