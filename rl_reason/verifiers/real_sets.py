r"""Sets of real numbers: unions of intervals and points, and inequalities.

A set is represented by its sorted boundary points, and by whether each point
and each gap between points belongs to the set. Unions, intersections and
differences combine these truth values piece by piece. Points are compared as
numbers.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from rl_reason.verifiers import numeric
from rl_reason.verifiers.value_types import (
    EMPTY,
    INFINITY,
    REALS,
    Relation,
    Seq,
    is_expression,
    minus,
    negative,
)

MAX_POINTS = 32
_TESTS: dict[str, Callable[[int], bool]] = {
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "=": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class RealSet(NamedTuple):
  """A set of real numbers.

  Attributes:
    points: the boundary, n expressions in ascending order.
    members: whether each of the 2 n + 1 pieces (gap, point, gap, ..., gap)
      belongs to the set.
  """

  points: tuple
  members: tuple[bool, ...]


def same(a: RealSet, b: RealSet) -> bool:
  """Whether two sets are equal."""
  return (
      a.members == b.members
      and len(a.points) == len(b.points)
      and all(map(numeric.equal, a.points, b.points))
  )


def is_finite(a: RealSet) -> bool:
  """Whether a set has no interval."""
  return not any(a.members[::2])


def variables(value: Any) -> frozenset[str]:
  """The free variables of conditions; a set-builder binds its variable."""
  if isinstance(value, Relation):
    only = value.sides[:1] if value.ops == ("in",) else value.sides
    sides = filter(is_expression, only)
    return frozenset().union(*map(numeric.names, sides))
  if isinstance(value, Seq) and value.brackets in ("", "cup", "cap"):
    return frozenset().union(*map(variables, value.items))
  return frozenset()


def read(value: Any) -> RealSet | None:
  """Returns a value as a set of real numbers; None if it is no such set.

  Raises:
    Hard: a boundary point cannot be compared.
  """
  if value == REALS:
    return RealSet((), (True,))
  if value == EMPTY:
    return RealSet((), (False,))
  if isinstance(value, Relation):
    return _solution(value)
  if not isinstance(value, Seq) or len(value.items) > MAX_POINTS:
    return None
  if value.brackets in ("()", "(]", "[)", "[]"):
    return _interval(value)
  if value.brackets == "{}":
    points = [_compare(x, "=") for x in value.items if is_number(x)]
    whole = len(points) == len(value.items)
    return _fold(points, any) if whole else None
  if value.brackets == "set":
    return read(value.items[0])
  if value.brackets not in ("cup", "cap", "minus", ""):
    return None
  if len(variables(value)) > 1:
    return None
  parts = [read(x) for x in _conditions(value.items)]
  if not parts or None in parts:
    return None
  if value.brackets == "minus":
    return _fold(parts, lambda x: x[0] and not any(x[1:]))
  if value.brackets == "cup":
    return _fold(parts, any)
  if not any(isinstance(x, Relation) for x in value.items):
    return None if value.brackets == "" else _fold(parts, all)
  both = _fold(parts, all)
  # A comma is "and", or "or" if the intersection is empty.
  nothing = value.brackets == "" and both is not None and not any(both.members)
  return _fold(parts, any) if nothing else both


def _conditions(items) -> list:
  """The items of a list, where `x != 1, 4` becomes `x != 1, x != 4`."""
  out: list = []
  for item in items:
    before = out[-1] if out else None
    if (
        isinstance(before, Relation)
        and before.ops == ("!=",)
        and is_expression(item)
    ):
      item = Relation(("!=",), (before.sides[0], item))
    out.append(item)
  return out


def is_number(value: Any) -> bool:
  """Whether a value is an expression without variables."""
  return is_expression(value) and not numeric.names(value)


def _fold(parts: list, test: Callable) -> RealSet | None:
  """The set of the pieces whose membership in each part passes a test."""
  points: list = []
  for part in parts:
    for point in part.points:
      at = 0
      while at < len(points) and numeric.sign(minus(points[at], point)) < 0:
        at += 1
      if at == len(points) or not numeric.equal(points[at], point):
        points.insert(at, point)
    if len(points) > MAX_POINTS:
      return None
  columns = []
  for part in parts:
    column, at = [part.members[0]], 0
    for point in points:
      inside = at < len(part.points) and numeric.equal(part.points[at], point)
      at += inside
      # A point within a gap belongs to the set if the gap does.
      column += [part.members[2 * at - 1 if inside else 2 * at]]
      column += [part.members[2 * at]]
    columns.append(column)
  members = [bool(test(list(row))) for row in zip(*columns, strict=True)]
  kept = [
      i for i in range(len(points)) if len(set(members[2 * i : 2 * i + 3])) > 1
  ]
  pieces = [members[0]]
  for i in kept:
    pieces += members[2 * i + 1 : 2 * i + 3]
  return RealSet(tuple(points[i] for i in kept), tuple(pieces))


def _is_infinite(value) -> bool:
  return value == INFINITY or value == negative(INFINITY)


def _compare(bound, op: str) -> RealSet:
  """All x with `x op bound`."""
  return RealSet((bound,), tuple(map(_TESTS[op], (-1, 0, 1))))


def _interval(value: Seq) -> RealSet | None:
  """An interval; None if it is a point, or empty."""
  if len(value.items) != 2 or not all(map(is_number, value.items)):
    return None
  low, high = value.items
  if high == negative(INFINITY) or low == INFINITY:
    return None
  finite = [x for x in (low, high) if not _is_infinite(x)]
  if len(finite) == 2 and numeric.sign(minus(low, high)) >= 0:
    return None
  parts = [RealSet((), (True,))]
  if not _is_infinite(low):
    parts.append(_compare(low, ">=" if value.brackets[0] == "[" else ">"))
  if not _is_infinite(high):
    parts.append(_compare(high, "<=" if value.brackets[1] == "]" else "<"))
  return _fold(parts, all)


def _solution(relation: Relation) -> RealSet | None:
  """The solutions of a chain of inequalities in one variable."""
  ops, sides = relation.ops, relation.sides
  if ops == ("in",):
    return read(sides[1])
  if not set(ops) <= set(_TESTS) or not all(map(is_expression, sides)):
    return None
  names = frozenset().union(*map(numeric.names, sides))
  if len(names) != 1:
    return None
  (name,) = names
  parts = []
  for op, left, right in zip(ops, sides[:-1], sides[1:], strict=True):
    part = _pair(left, op, right, name)
    if part is None:
      return None
    parts.append(part)
  return _fold(parts, all)


def _pair(left, op, right, name) -> RealSet | None:
  """The solutions of one inequality or equation."""
  if _is_infinite(left) or _is_infinite(right):
    below = left == negative(INFINITY) or right == INFINITY
    holds = op in (("<", "<=", "!=") if below else (">", ">=", "!="))
    return RealSet((), (True,)) if holds else None
  if type(left) is not tuple or left[0] != "abs":
    left, op, right = right, FLIPPED.get(op, op), left
  if type(left) is tuple and left[0] == "abs" and is_number(right):
    return _absolute(left[1], op, right, name)
  coefficients = _polynomial(minus(left, right), name)
  while coefficients and numeric.sign(coefficients[-1]) == 0:
    coefficients.pop()
  if not coefficients or not 2 <= len(coefficients) <= 3:
    return None
  sign = numeric.sign(coefficients[-1])
  if len(coefficients) == 2:
    root = ("/", negative(coefficients[0]), coefficients[1])
    return RealSet((root,), tuple(map(_TESTS[op], (-sign, 0, sign))))
  c, b, a = coefficients
  signs: tuple[int, ...]
  square = ("+", ("*", b, b), ("*", Fraction(-4), ("*", a, c)))
  kind, double = numeric.sign(square), ("*", Fraction(2), a)
  if kind < 0:
    return RealSet((), (_TESTS[op](sign),))
  if kind == 0:
    signs, roots = (sign, 0, sign), [("/", negative(b), double)]
  else:
    signs = (sign, 0, -sign, 0, sign)
    far = ("sqrt", square)
    order = (negative(far), far) if sign > 0 else (far, negative(far))
    roots = [("/", ("+", negative(b), x), double) for x in order]
  found = RealSet(tuple(roots), tuple(map(_TESTS[op], signs)))
  return _fold([found], all)


def _absolute(inner, op, bound, name) -> RealSet | None:
  """All x with `|inner| op bound`."""
  if op in (">", ">=", "!="):
    part = _absolute(inner, _NEGATED[op], bound, name)
    return part and RealSet(part.points, tuple(not x for x in part.members))
  if numeric.sign(bound) < 0:
    return RealSet((), (False,))
  other = {"<": ">", "<=": ">=", "=": "="}[op]
  parts = [
      _pair(inner, op, bound, name),
      _pair(inner, other, negative(bound), name),
  ]
  return None if None in parts else _fold(parts, any if op == "=" else all)


def _polynomial(node, name) -> list | None:
  """Coefficients by ascending powers; None if the degree is above two."""
  if name not in numeric.names(node):
    return [node]
  if node[0] == "name":
    return [Fraction(0), Fraction(1)]
  if node[0] == "/" and name in numeric.names(node[2]):
    return None
  if node[0] == "^":
    return _polynomial(("*", node[1], node[1]), name) if node[2] == 2 else None
  if node[0] not in ("+", "*", "/"):
    return None
  parts = []
  for child in node[1:]:
    part = _polynomial(child, name)
    if part is None:
      return None
    parts.append(part)
  if node[0] == "/":
    return [("/", x, node[2]) for x in parts[0]]
  out = parts[0]
  for part in parts[1:]:
    if node[0] == "+":
      size = max(len(out), len(part))
      pad = [[*x, *[Fraction(0)] * (size - len(x))] for x in (out, part)]
      out = [("+", x, y) for x, y in zip(*pad, strict=True)]
    else:
      terms: list = [Fraction(0)] * (len(out) + len(part) - 1)
      for i, x in enumerate(out):
        for j, y in enumerate(part):
          terms[i + j] = ("+", terms[i + j], ("*", x, y))
      out = terms
    if len(out) > 3:
      return None
  return out
