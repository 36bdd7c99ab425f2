r"""Bound variables: names that an answer may choose freely.

Examples are the argument of a function (`f(t) = t^2`), the index of a sequence,
the integer of a family (`2k\pi` for k in Z), and the constant of integration.
"""

import math
import re
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import numeric
from rl_reason.verifiers.phrases import INTEGERS
from rl_reason.verifiers.value_types import (
    Family,
    Relation,
    Seq,
    is_expression,
    is_name,
    minus,
    same_any_order,
)

MAX_CLASSES = 40  # residue classes of a family
_CALL = re.compile(r"([A-Za-z]+(?:\^\{-1\})?)\(([a-z](?:,[a-z])*)\)")
_INDEXED = re.compile(r"([A-Za-z]+)_([a-z])")
_INTEGER_NAMES = frozenset("jklmn")
_CONSTANTS = re.compile(r"[CcKk](?:_[01])?")


# --- functions and sequences -------------------------------------------------


def _bound(relation: Relation) -> tuple[str, list[str]]:
  """Name and arguments of the function that an equation defines; "" if none."""
  left = relation.sides[0]
  if relation.ops != ("=",) or not is_name(left):
    return "", []
  for pattern in (_CALL, _INDEXED):
    found = pattern.fullmatch(left[1])
    if found:
      return found[1], found[2].split(",")
  return "", []


def renamed(found: Relation, reference: Relation) -> Relation:
  """The definition of a function, with the reference's names of arguments."""
  (name, theirs), (other, ours) = _bound(found), _bound(reference)
  right = found.sides[-1]
  if name != other or not name or len(theirs) != len(ours):
    return found
  if theirs == ours or len(set(theirs)) < len(theirs):
    return found
  if not is_expression(right) or not numeric.names(right) & set(theirs):
    return found
  # A free variable of the response is not an argument of the reference.
  names = {x: ("name", f"{x} free") for x in ours}
  names |= {x: ("name", y) for x, y in zip(theirs, ours, strict=True)}
  return Relation(
      found.ops, (reference.sides[0], numeric.substitute(right, names))
  )


# --- constants of integration ------------------------------------------------


def with_constant(found, reference):
  """The expression, with the reference's name of the added constant."""
  names, theirs = numeric.names(reference), numeric.names(found)
  ours = {x for x in _added(reference) if x[0] == "C"}
  other = _added(found)
  if not ours or not other or ours == other or len(names) < 2:
    return found
  if len(ours) > 1 or len(other) > 1 or ours & theirs or other & names:
    return found
  (old,), (new,) = other, ours
  return numeric.substitute(found, {old: ("name", new)})


def _added(node) -> set[str]:
  """Names of constants that are terms of a sum."""
  if isinstance(node, Fraction) or node[0] != "+":
    return set()
  return {x[1] for x in node[1:] if is_name(x) and _CONSTANTS.fullmatch(x[1])}


# --- families ----------------------------------------------------------------


def _items(value: Any) -> list | None:
  """The expressions of a family, a list or a single value; None of others."""
  if isinstance(value, Family | Seq):
    if isinstance(value, Seq) and value.brackets not in ("", "or", "{}", "cup"):
      return None
    out: list = []
    for item in value.items:
      part = _items(item)
      if part is None:
        return None
      out += part
    return out
  if isinstance(value, Relation) and value.ops in (("=",), ("in",)):
    left, right = value.sides
    named = is_name(left) and "(" not in left[1]
    return _items(right) if named else None
  return [value] if is_expression(value) else None


def _integer_of(items) -> str:
  """The only variable of expressions if it usually is an integer; else ''."""
  names = frozenset().union(*map(numeric.names, items))
  if len(names) != 1 or not names <= _INTEGER_NAMES:
    return ""
  return next(iter(names))


def _has_pi(node) -> bool:
  if isinstance(node, Fraction):
    return False
  if node[0] == "name":
    return node[1] == "pi"
  return any(map(_has_pi, node[1:]))


def same_families(found: Any, reference: Any) -> bool | None:
  """Whether two families are equal; None if they are not both families.

  A family with a domain is a set, which has many descriptions. Without a domain
  `(n - 2) pi` may be a formula in a given n, and equals only the same formula,
  with any name of the integer.

  Raises:
    Hard: the families cannot be compared.
  """
  a, b = _items(found), _items(reference)
  if not a or not b:
    return None
  declared = [isinstance(x, Family) for x in (found, reference)]
  names = [
      x.variable if isinstance(x, Family) else _integer_of(items)
      for x, items in ((found, a), (reference, b))
  ]
  if not all(names):
    return None
  domains = {x.domain for x in (found, reference) if isinstance(x, Family)}
  if len(domains) > 1:
    return False
  a = [numeric.substitute(x, {names[0]: ("name", "k")}) for x in a]
  b = [numeric.substitute(x, {names[1]: ("name", "k")}) for x in b]
  periodic = all(map(_has_pi, [*a, *b]))
  if not any(declared) and (not periodic or names[0] == names[1]):
    return None
  if not all(declared) and domains != {INTEGERS} and domains:
    return False
  if declared == [True, False] and not periodic:
    return False
  if same_any_order(a, b, numeric.equal):
    return True
  if not declared[1] or domains != {INTEGERS}:
    return False
  if not declared[0] and not periodic:
    return False
  return _same_classes(a, b)


def _same_classes(a: list, b: list) -> bool:
  """Whether two unions of arithmetic progressions are the same set."""
  progressions = [x for x in map(_progression, (*a, *b)) if x is not None]
  if len(progressions) < len(a) + len(b):
    return False
  unit = progressions[-1][1]
  ratios = []
  for _, period in progressions:
    ratio = _ratio(period, unit)
    if ratio is None:
      return False
    ratios.append(ratio)
  common = Fraction(
      math.lcm(*(x.numerator for x in ratios)),
      math.gcd(*(x.denominator for x in ratios)),
  )
  classes: list = []
  for (start, period), ratio in zip(progressions, ratios, strict=True):
    count = int(common / ratio)
    if count > MAX_CLASSES:
      raise numeric.Hard("a family of many classes")
    classes.append(
        [("+", start, ("*", Fraction(n), period)) for n in range(count)]
    )
  whole = ("*", common, unit)
  ours = [x for part in classes[: len(a)] for x in part]
  theirs = [x for part in classes[len(a) :] for x in part]
  if len(ours) * len(theirs) > MAX_CLASSES**2:
    raise numeric.Hard("a family of many classes")
  return all(
      any(_congruent(x, y, whole) for y in others)
      for some, others in ((ours, theirs), (theirs, ours))
      for x in some
  )


def _progression(node) -> tuple | None:
  """Start and period of a formula that is linear in k; else None."""
  at = [numeric.substitute(node, {"k": Fraction(n)}) for n in (0, 1)]
  period = minus(at[1], at[0])
  if numeric.names(period) or numeric.sign(period) == 0:
    return None
  line = ("+", at[0], ("*", period, ("name", "k")))
  return (at[0], period) if numeric.equal(node, line) else None


def _ratio(a, b) -> Fraction | None:
  """The absolute value of a rational quotient of small numbers."""
  share = ("/", a, b)
  near = Fraction(numeric.nearest(("*", share, Fraction(5040))), 5040)
  return abs(near) if near and numeric.equal(share, near) else None


def _congruent(a, b, modulus) -> bool:
  times = ("/", minus(a, b), modulus)
  return numeric.equal(times, Fraction(numeric.nearest(times)))
