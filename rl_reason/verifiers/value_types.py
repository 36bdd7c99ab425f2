"""Values of answers: the trees that `parser` builds and `equality` compares.

A value is one of
  - an expression: a Fraction, or a plain tuple ("name", x), ("+", a, b, ...),
    ("*", a, b), ("/", a, b), ("^", a, b), or (function, a, ...);
  - words, a str: 'east', '1011_2' for digits in a base, '10:05' for a time;
  - a Quantity, a Seq, a Relation or a Family.
"""

import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from rl_reason.verifiers.lexer import Unreadable

EMPTY = ("name", "emptyset")
INFINITY = ("name", "infinity")
REALS = ("name", "mathbb R")
DEGREE = ("/", ("name", "pi"), Fraction(180))


class Quantity(NamedTuple):
  """A value with a unit: `'%'`, `'degree'`, `'cm^2'`, or any noun."""

  value: Any
  unit: str


class Seq(NamedTuple):
  """Values together.

  Attributes:
    brackets: '()', '[)', '{}' ... for brackets; '' for a bare list; 'or' for
      values joined by "or"; 'cup', 'cap' and 'minus' for unions (also "or" of
      inequalities), intersections (also "and") and differences of sets; 'set'
      for the condition of a set-builder; 'ratio'; 'clock' for 10:30; 'matrix'
      for rows, and 'row' for a row.
    items: the values.
  """

  brackets: str
  items: tuple


class Relation(NamedTuple):
  """`sides[0] ops[0] sides[1] ops[1] ...`; ops of = != < > <= >= in approx."""

  ops: tuple
  sides: tuple


class Rounded(NamedTuple):
  """The value after an approximation sign, and half a unit of its last digit.

  `half` is None for a value that is more than digits: 1.2 * 10^5.
  """

  value: Any
  half: Fraction | None


class Family(NamedTuple):
  """Values for each number of a domain: `2k pi` for k in Z."""

  variable: str
  domain: Any
  items: tuple


def is_expression(value: Any) -> bool:
  """Whether a value is a number or a formula, not a set, words, ..."""
  return isinstance(value, Fraction) or type(value) is tuple


def is_name(value: Any) -> bool:
  """Whether a value is a variable, a constant or the name of a function."""
  return type(value) is tuple and value[0] == "name"


def op(name, *arguments) -> tuple:
  """An operation on expressions; angles count as their number of degrees."""
  values = [
      x.value if isinstance(x, Quantity) and x.unit == "degree" else x
      for x in arguments
  ]
  vectors = [x for x in values if is_vector(x)]
  if (
      name in ("*", "/")
      and len(vectors) == 1
      and is_vector(values[-1]) <= (name == "*")
  ):
    return _scaled(name, *values)
  if not all(map(is_expression, values)):
    raise Unreadable("arithmetic of other than numbers")
  return (name, *values)


def is_vector(value: Any) -> bool:
  """Whether a value is a tuple, a row, a column or another matrix."""
  if not isinstance(value, Seq):
    return False
  return value.brackets in ("()", "matrix") or (
      value.brackets == "[]" and len(value.items) > 2
  )


def _scaled(name, a, b):
  """A vector times a number, or divided by it."""
  seq = a if is_vector(a) else b

  def scale(item):
    if isinstance(item, Seq):
      return Seq(item.brackets, tuple(map(scale, item.items)))
    return op(name, item, b) if seq is a else op(name, a, item)

  return scale(seq)


def negative(value) -> Any:
  """The expression times -1."""
  return op("*", Fraction(-1), value)


def minus(a, b) -> tuple:
  """The difference of two expressions."""
  return ("+", a, negative(b))


def same_any_order(a, b, same: Callable[[Any, Any], bool]) -> bool:
  """Whether two lists are equal in any order; `same` has to be transitive."""
  left = list(b)
  for item in a:
    index = next((i for i, x in enumerate(left) if same(item, x)), None)
    if index is None:
      return False
    del left[index]
  return not left


def opaque(label: str, *parts) -> tuple:
  """A name for an expression that is not evaluated; equal for equal parts.

  The name has a digest of the parts, since nested parts would grow
  exponentially.
  """
  digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
  return ("name", f"{label} ({digest})")


def marked(value, mark: str) -> tuple:
  """A value with a prime, a star, ..., as a name."""
  if is_name(value) and "(" not in value[1]:
    return ("name", f"{value[1]} {mark}")
  return opaque(mark, value)
