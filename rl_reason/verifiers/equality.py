"""Whether two parsed answers are the same value, by the conventions of `math`.

The first value is the response's, the second the reference. `real_sets`
compares sets of real numbers, `bound_variables` compares functions and families
of solutions, and `numeric` compares expressions.
"""

import re
from fractions import Fraction

from rl_reason.verifiers import bound_variables, numeric, real_sets, units
from rl_reason.verifiers.lexer import TRIGONOMETRIC
from rl_reason.verifiers.real_sets import FLIPPED, is_number
from rl_reason.verifiers.value_types import (
    EMPTY,
    INFINITY,
    REALS,
    Quantity,
    Relation,
    Rounded,
    Seq,
    is_expression,
    is_name,
    is_vector,
    minus,
    same_any_order,
)

# Physical units: different ones are never equal.
_PHYSICAL = frozenset(units.UNITS.values()) | {"ordinal"}


def same(a, b) -> bool:
  """Whether a value of the response and a value of the reference are the same.

  Raises:
    Hard: the values cannot be compared.
  """
  a, b = map(_settled, (a, b))
  if a is None or b is None:
    return False
  families = bound_variables.same_families(a, b)
  if families is not None:
    return families
  if isinstance(a, Quantity) or isinstance(b, Quantity):
    return _same_quantities(a, b)
  named = _assignments(a), _assignments(b)
  # The order of a bare list does not matter.
  bare = isinstance(b, Seq) and b.brackets == ""
  if named[1] or (named[0] and not bare):
    return _same_named(a, b, *named)
  related = isinstance(a, Relation) or isinstance(b, Relation)
  ratios = [isinstance(x, Seq) and x.brackets in _RATIOS for x in (a, b)]
  if any(ratios) and not related:
    return _same_ratios(a, b)
  if _is_condition(a) or _is_condition(b):
    found = _same_real_sets(a, b)
    if found is not None:
      return found
    a, b = (
        x.items[0] if isinstance(x, Seq) and x.brackets == "set" else x
        for x in (a, b)
    )
  if not isinstance(a, Relation) or not isinstance(b, Relation):
    a, b = _as_set(a), _as_set(b)
  if isinstance(a, Relation) or isinstance(b, Relation):
    return _same_relations(a, b)
  single = [_is_singleton(a), _is_singleton(b)]
  if single[0] != single[1]:  # a set of one element equals the element
    return same(a.items[0], b) if single[0] else same(a, b.items[0])
  if isinstance(a, Seq) and isinstance(b, Seq):
    return _same_sequences(a, b)
  if is_vector(a) != is_vector(b):  # (2, 3) as 2 i + 3 j
    a, b = (_by_units(x) if is_vector(x) else x for x in (a, b))
  if is_expression(a) and is_expression(b):
    return numeric.equal(bound_variables.with_constant(a, b), b)
  return isinstance(a, str) and a == b != ""


def _settled(value):
  """The value of an answer that gives one value twice; None if they disagree.

  Examples are "1/4 or 25%", and `x = 1/3` with an approximation after it.
  """
  if isinstance(value, Seq) and value.brackets == "or":
    first, *rest = value.items
    if all(same(x, first) for x in rest):
      return first
    return Seq("", value.items)
  if isinstance(value, Relation) and "approx" in value.ops:
    ops, sides = value.ops, value.sides
    at = ops.index("approx")
    if set(ops[at:]) != {"approx"}:
      return None
    exact, rest = sides[at], sides[at + 1 :]
    if _names(exact) and not is_number(exact):
      exact, rest = rest[0].value, rest[1:]
      if at or not all(_rounds(exact, x) for x in rest):
        return None
      return Relation(("=",), (sides[0], exact))  # x, about 3.17
    if not all(_rounds(exact, x) for x in rest):
      return None
    return Relation(ops[:at], sides[: at + 1]) if at else exact
  return value


def _rounds(exact, rounded: Rounded) -> bool:
  """Whether digits are those of an exact number, rounded or truncated."""
  if rounded.half is None:
    return False
  values, units_ = [], []
  for x in (exact, rounded.value):
    values.append(x.value if isinstance(x, Quantity) else x)
    units_.append(x.unit if isinstance(x, Quantity) else "")
  if not all(map(is_number, values)):
    return False
  share = Fraction(100) if units_ == ["", "%"] else Fraction(1)
  a, b = ("*", share, values[0]), values[1]
  error = ("abs", minus(a, b))
  if numeric.sign(minus(error, rounded.half)) <= 0:
    return True
  cut = minus(("abs", a), ("abs", b))
  within = numeric.sign(minus(cut, 2 * rounded.half)) < 0
  return within and numeric.sign(cut) >= 0


_RATIOS = ("ratio", "clock")


def _same_ratios(a, b) -> bool:
  """Whether ratios are proportional; 3:4 also equals 3/4."""
  if isinstance(b, Seq) and b.brackets == "clock":
    return a == b
  parts = [
      x.items if isinstance(x, Seq) and x.brackets in _RATIOS else (x,)
      for x in (a, b)
  ]
  if not all(map(is_expression, (*parts[0], *parts[1]))):
    return False
  lengths = [len(x) for x in parts]
  if 1 in lengths and sum(lengths) == 3:
    parts = [x if len(x) == 2 else (*x, Fraction(1)) for x in parts]
  if len(parts[0]) != len(parts[1]):
    return False
  return all(
      numeric.equal(("/", x, parts[0][-1]), ("/", y, parts[1][-1]))
      for x, y in zip(*parts, strict=True)
  )


def _is_condition(value) -> bool:
  """Whether a value may describe a set of real numbers by conditions."""
  if isinstance(value, Relation):
    return value.ops == ("in",) or not {"=", "in"} & set(value.ops)
  if isinstance(value, Seq):
    listed = value.brackets == "" and any(map(_is_condition, value.items))
    return listed or value.brackets in ("cup", "cap", "minus", "set")
  return value == REALS


def _same_real_sets(a, b) -> bool | None:
  """Whether two sets of real numbers are equal; None if one is no such set."""
  try:
    theirs, ours = real_sets.read(a), real_sets.read(b)
  except numeric.Hard:
    return None
  if theirs is None or ours is None:
    return None
  if real_sets.is_finite(theirs) and real_sets.is_finite(ours):
    return None
  free = real_sets.variables(a), real_sets.variables(b)
  return (not all(free) or free[0] == free[1]) and real_sets.same(theirs, ours)


def _assignments(value) -> dict:
  """The values of `x = 2, y = 3` or `(x, y) = (2, 3)` by name; {} of others."""
  if isinstance(value, Relation) and value.ops == ("=",):
    left, right = value.sides
    if not (is_name(left) and isinstance(right, Seq)):
      return {}
    tuple_ = re.fullmatch(r"\((\w+(?:,\w+)+)\)", left[1])
    names = tuple_[1].split(",") if tuple_ else []
    if len(names) != len(right.items) or right.brackets not in ("()", ""):
      return {}
    return dict(zip(names, right.items, strict=True))
  if not isinstance(value, Seq) or value.brackets != "":
    return {}
  out: dict = {}
  for item in value.items:
    if not isinstance(item, Relation) or item.ops != ("=",):
      return {}
    left, right = item.sides
    if not is_name(left) or "(" in left[1]:
      return {}
    if left[1] in out or not is_expression(right) or numeric.names(right):
      return {}
    out[left[1]] = right
  # x_1 and x_2 are values of one variable.
  letters = {name.partition("_")[0] for name in out}
  return out if len(letters) == len(out) > 1 else {}


def _same_named(a, b, theirs: dict, ours: dict) -> bool:
  """Compares values by name, or in the order of the names if one has none."""
  if theirs and ours:
    same_names = theirs.keys() == ours.keys()
    return same_names and all(same(theirs[x], ours[x]) for x in ours)
  other, names = (b, theirs) if theirs else (a, ours)
  if isinstance(other, Relation) and _assigned(other) is not None:
    other = _assigned(other)
  if not isinstance(other, Seq) or other.brackets not in ("", "()"):
    return False
  values = list(names.values())
  if len(names) != len(other.items):
    return False
  if theirs and all(len(x) == 1 for x in names):
    values = [names[x] for x in sorted(names)]  # (x, y) of y = 3, x = 2
  pairs = zip(values, other.items, strict=True)
  return all(same(x, y) if theirs else same(y, x) for x, y in pairs)


def _by_units(vector: Seq):
  """A tuple or column as the sum of its components times unit vectors."""
  items = _components(vector)
  if items is None or len(items) > 3 or not all(map(is_expression, items)):
    return vector
  names = (("name", f"hat {x}") for x in "ijk")
  return ("+", *(("*", x, y) for x, y in zip(items, names, strict=False)))


def _components(vector: Seq) -> tuple | None:
  """The items of a tuple, row or column; None for other matrices."""
  if vector.brackets != "matrix":
    return vector.items
  rows = [row.items for row in vector.items]
  if len(rows) == 1:
    return rows[0]
  return tuple(x[0] for x in rows) if len(rows[0]) == 1 else None


def _is_singleton(value) -> bool:
  braces = isinstance(value, Seq) and value.brackets == "{}"
  if braces and value.items[0] in (EMPTY, Seq("{}", ())):
    return False  # {emptyset} has one element and is no value
  return braces and len(_distinct(value.items)) == 1


def _distinct(items) -> list:
  out: list = []
  for item in items:
    if not any(same(item, other) for other in out):
      out.append(item)
  return out


def _same_sequences(a, b) -> bool:
  kinds = {a.brackets, b.brackets}
  if kinds == {"{}"}:
    return same_any_order(_distinct(a.items), _distinct(b.items), same)
  if is_vector(a) and is_vector(b) and "matrix" in kinds and len(kinds) == 2:
    left, right = _components(a), _components(b)
    if left is None or right is None or len(left) != len(right):
      return False
    return all(map(same, left, right))
  if len(a.items) != len(b.items):
    return False
  if kinds <= {"", "{}"} or kinds == {"cup"}:
    return same_any_order(a.items, b.items, same)
  vectors = kinds == {"()", "[]"} and len(b.items) > 2  # no intervals
  if len(kinds) > 1 and not vectors and kinds != {"", "()"}:
    return False
  return all(map(same, a.items, b.items))


def _same_quantities(a, b) -> bool:
  """Whether values with units are the same, by the conventions of `math`."""
  if any(isinstance(x, Seq) and x.brackets == "" for x in (a, b)):
    return False
  if isinstance(a, Relation) != isinstance(b, Relation):
    first = isinstance(a, Relation)
    value = _assigned(a if first else b)
    return value is not None and (same(value, b) if first else same(a, value))
  a, b = (x if isinstance(x, Quantity) else Quantity(x, "") for x in (a, b))
  bases = [re.split(r"[\^/]", x.unit)[0] for x in (a, b)]
  physical = all(base in _PHYSICAL for base in bases)
  if (a.unit == "%") == (b.unit == "%"):
    return not (physical and a.unit != b.unit) and same(a.value, b.value)
  share, other = (a, b) if a.unit == "%" else (b, a)
  if physical or not is_expression(share.value):
    return False
  if same(("/", share.value, Fraction(100)), other.value):
    return True
  value = numeric.exact(share.value)
  bare = share is b or (value is not None and abs(value) > 1)
  return bare and same(share.value, other.value)


# --- relations ---------------------------------------------------------------


def _names(value) -> bool:
  """Whether a value is a variable, f(x), or a product of letters such as AB."""
  if type(value) is not tuple:
    return False
  return value[0] == "name" or value[0] == "*" and all(map(_names, value[1:]))


def _is_quotient(value) -> bool:
  """Whether a value is a ratio or a fraction of two names."""
  if isinstance(value, Seq):
    return value.brackets == "ratio" and all(map(_names, value.items))
  fraction = type(value) is tuple and value[0] == "/"
  return fraction and all(_names(x) and numeric.names(x) for x in value[1:])


def _assigned(relation: Relation):
  """The value of `x = 5`, `f(x) = ... = 5` or `x in S`; None for others."""
  left, right = relation.sides[0], relation.sides[-1]
  if relation.ops == ("in",):
    return right if _names(left) else None
  if set(relation.ops) != {"="}:
    return None
  numbers = [side for side in relation.sides if is_number(side)]
  if any(not numeric.equal(side, numbers[0]) for side in numbers):
    return None  # x = 5 = 6
  if _is_quotient(left) and (is_number(right) or isinstance(right, Seq)):
    return right  # a : b = 3 : 4
  if _names(left):
    # A = B, of two variables or functions, says more than B; f(n) = n does not.
    named = is_name(right) and numeric.names(right)
    renames = named and ("(" not in left[1] or "(" in right[1])
    return None if renames else right
  if is_number(left) and _names(right):
    return left  # 5 = x
  if len(numbers) == len(relation.sides) and left != right:
    return right  # 2 + 3 = 5
  return None


def _asked(relation: Relation) -> bool:
  """Whether a response gives a value to what was asked for: `m + n = 113`.

  The left side has several variables, or is a function of them, so that it is
  no equation to be solved. `x - y = 0` is an equation.
  """
  left, right = relation.sides[0], relation.sides[-1]
  if set(relation.ops) != {"="} or type(left) is not tuple:
    return False
  if not is_number(right) or numeric.exact(right) == 0:
    return False
  function = left[0] in TRIGONOMETRIC or left[0] == "abs"
  if len(numeric.names(left)) < (1 if function else 2):
    return False
  numbers = [side for side in relation.sides if is_number(side)]
  return all(numeric.equal(side, right) for side in numbers)


def _as_set(value):
  """Inequalities in one variable as intervals, a list of them as a union."""
  if isinstance(value, Seq) and value.brackets in ("", "cup"):
    one = len(real_sets.variables(value)) == 1
    if one and all(isinstance(x, Relation) for x in value.items):
      parts = tuple(map(_as_set, value.items))
      if all(isinstance(part, Seq) for part in parts):
        return Seq("cup", parts)
  if isinstance(value, Relation):
    return _interval(value) or value
  if value == REALS:
    return Seq("()", (("*", Fraction(-1), INFINITY), INFINITY))
  return value


def _variables(relation: Relation) -> frozenset[str]:
  sides = filter(is_expression, relation.sides)
  return frozenset().union(*map(numeric.names, sides))


def _interval(relation: Relation) -> Seq | None:
  """`1 < x <= 3` as (1, 3]; None if it does not bound exactly one variable."""
  ops, sides = relation.ops, relation.sides
  if ops[0] in (">", ">="):
    ops, sides = tuple(FLIPPED.get(op, op) for op in ops[::-1]), sides[::-1]
  if len(ops) > 2 or not set(ops) <= {"<", "<="}:
    return None
  if not all(map(is_expression, sides)):
    return None
  free = [index for index, side in enumerate(sides) if numeric.names(side)]
  if len(free) != 1 or not _names(sides[free[0]]):
    return None
  at = free[0]
  low = sides[at - 1] if at else ("*", Fraction(-1), INFINITY)
  high = sides[at + 1] if at + 1 < len(sides) else INFINITY
  left = "[" if at and ops[at - 1] == "<=" else "("
  right = "]" if at < len(ops) and ops[at] == "<=" else ")"
  return Seq(left + right, (low, high))


def _same_relations(a, b) -> bool:
  if not isinstance(a, Relation) or not isinstance(b, Relation):
    sides = a.sides if isinstance(a, Relation) else ()
    if sides and is_expression(b) and numeric.names(b) and set(a.ops) == {"="}:
      if all(is_expression(x) and numeric.equal(x, b) for x in sides):
        return True  # (x - 1) (x + 1) = x^2 - 1
    if isinstance(a, Relation) and _asked(a) and is_number(b):
      return numeric.equal(a.sides[-1], b)
    values = [_assigned(x) if isinstance(x, Relation) else x for x in (a, b)]
    return None not in values and same(*values)
  a = bound_variables.renamed(a, b)
  values = [_assigned(a), _assigned(b)]
  if None not in values and a.sides[0] == b.sides[0]:
    return same(*values)
  ranges = [
      value if x.ops == ("in",) else _interval(x)
      for x, value in zip((a, b), values, strict=True)
  ]
  if all(ranges):
    return _variables(a) == _variables(b) and same(*ranges)
  sides = (*a.sides, *b.sides)
  if len(a.sides) == len(b.sides) == 2 and all(map(is_expression, sides)):
    return _same_difference(a, b)
  return a.ops == b.ops and all(map(same, a.sides, b.sides))


def _same_difference(a: Relation, b: Relation) -> bool:
  """Whether the differences of the sides of two relations are proportional."""
  op, other = a.ops[0], b.ops[0]
  sign = Fraction(-1) if FLIPPED.get(op) == other else Fraction(1)
  if op != other and sign > 0:
    return False
  left, right = (minus(*x.sides) for x in (a, b))
  left = ("*", sign, left)
  return numeric.proportional(left, right, positive=op in FLIPPED)
