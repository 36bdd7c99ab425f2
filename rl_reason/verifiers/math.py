r"""Mathematical answers: whether a response's final answer equals the gold.

An answer is read by a grammar of our own (`latex`) and compared exactly or, if
irrational or with variables, by evaluation at high precision (`numeric`). What
the grammar does not know goes to math-verify's LaTeX parser, after a whitelist;
never to `sympify` or `parse_expr`, which execute what they read. A hard answer
may take seconds there: score many in `workers`.

Conventions, where reasonable people differ:

- Nothing is rounded: 0.333 is not 1/3, 3.14 is not pi, 2.50 is 2.5.
- A unit may be left out, or added where the gold has none; two different
  physical units are different (10 cm is not 10 m); nouns do not count.
- 50% is 1/2. As graders of "what percent" want, it is 50 as well: a bare number
  answers a gold with a percent sign, and where the gold has none `x%` is x for
  x > 1.
- Degrees are a unit: 45 degrees is 45, not pi/4; but its sine is that of pi/4.
- A number in a base equals the same digits in the same base only.
- `x = 5` is 5. A bare list is a set with multiplicity; it may stand for a tuple
  of the same order. Tuples, intervals and sets keep their brackets.
- `log` without a base is natural; `i` is imaginary; `1\frac12` is 3/2.
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from rl_reason.verifiers import final, latex, lexer, numeric, units
from rl_reason.verifiers.latex import (
    Based,
    Matrix,
    Quantity,
    Relation,
    Seq,
    Text,
    Union,
)

answer = final.final

_PLAIN = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,18})(?:\.\d{1,18})?\.?")
# Units that are measured: two of them are interchangeable if equal only.
_MEASURED = frozenset(units.UNITS.values())


def plain(text: str) -> Fraction | None:
  """The value of a plain decimal number: most answers are one."""
  text = text.strip().strip("$").strip()
  if not _PLAIN.fullmatch(text) or not text.isascii():
    return None
  return Fraction(text.replace(",", "").rstrip("."))


def verify(text: str, gold: str, *, tolerance: float = 0.0) -> bool:
  """Whether the final answer of a response is the gold.

  Args:
    text: a response; anything at all.
    gold: the right answer, plain or LaTeX.
    tolerance: absolute error that a rational number may have, as a few golds
      of OlympiadBench say; 0 for none.
  """
  given = answer(text)
  if given is None:
    return False
  return equal(given, gold) or bool(tolerance and _near(given, gold, tolerance))


def _near(given: str, gold: str, tolerance: float) -> bool:
  """Whether two rational numbers, units aside, are so near."""
  try:
    a, b = map(_rational, (latex.read(given), _read_gold(gold)))
  except (lexer.Unreadable, numeric.Hard, RecursionError):
    return False
  if a is None or b is None:
    return False
  return abs(a - b) <= Fraction(str(tolerance))


def _rational(value) -> Fraction | None:
  value = value.value if isinstance(value, Quantity) else value
  return numeric.exact(value) if latex.is_expression(value) else None


def equal(given: str, gold: str) -> bool:
  """Whether two answers are the same; False if one cannot be read."""
  fast = plain(given), plain(gold)
  if fast[0] is not None and fast[1] is not None:
    return fast[0] == fast[1]
  if not given.strip() or not gold.strip():
    return False
  if given.strip() == gold.strip():
    return _printable(given)
  try:
    values = latex.read(given), _read_gold(gold)
  except (lexer.Unreadable, RecursionError):
    return _fold(given) == _fold(gold) != "" or _math_verify(given, gold)
  try:
    return _same(*values)
  except (numeric.Hard, RecursionError):
    return False


def usable(gold: str) -> bool:
  """Whether a gold can be checked: it is read, and equals itself.

  A gold that only its own text would match is not usable.
  """
  if plain(gold) is not None:
    return True
  try:
    value = latex.read(gold)
    return _same(value, value)
  except (lexer.Unreadable, numeric.Hard, RecursionError):
    return _math_verify(gold, gold)


_read_gold = functools.lru_cache(maxsize=4096)(latex.read)


def _printable(text: str) -> bool:
  return all(c.isprintable() or c in "\n\t" for c in text)


def _fold(text: str) -> str:
  """LaTeX without spaces and looks, for what no grammar knows."""
  try:
    text = lexer.clean(text)
  except lexer.Unreadable:
    return ""
  text = re.sub(r"\\(?:text|mathrm|mbox)(?![a-z])|[{}]", " ", text)
  return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", " ".join(text.split()))


# --- values ------------------------------------------------------------------


def _same(given, gold) -> bool:
  """Whether two values are the same answer."""
  if isinstance(given, Quantity) or isinstance(gold, Quantity):
    return _same_quantities(given, gold)
  if not isinstance(given, Relation) or not isinstance(gold, Relation):
    given, gold = _as_set(given), _as_set(gold)
  if isinstance(given, Relation) or isinstance(gold, Relation):
    return _same_relations(given, gold)
  alone = [_is_single(given), _is_single(gold)]
  if alone == [True, False]:
    return _same(given.items[0], gold)
  if alone == [False, True]:
    return _same(given, gold.items[0])
  if isinstance(given, Seq) and isinstance(gold, Seq):
    return _same_sequences(given, gold)
  if latex.is_expression(given) and latex.is_expression(gold):
    return numeric.equal(given, gold)
  if type(given) is not type(gold):
    return False
  return _SAME[type(gold)](given, gold)


def _is_single(value) -> bool:
  """Whether a set has one element, for which it may stand."""
  return (
      isinstance(value, Seq)
      and value.brackets == "{}"
      and len(_distinct(value.items)) == 1
  )


def _same_matrices(given, gold) -> bool:
  shapes = [[len(row) for row in m.rows] for m in (given, gold)]
  return shapes[0] == shapes[1] and all(
      _same(a, b)
      for one, other in zip(given.rows, gold.rows, strict=True)
      for a, b in zip(one, other, strict=True)
  )


_SAME: dict[type, Callable[..., bool]] = {
    Text: lambda given, gold: given == gold != Text(""),
    Based: lambda given, gold: given == gold,
    Matrix: _same_matrices,
    Union: lambda given, gold: _same_any_order(given.items, gold.items),
}


def _same_any_order(given, gold) -> bool:
  """Whether the values can be paired; equality is transitive, so greedily."""
  left = list(gold)
  if len(given) != len(left):
    return False
  for one in given:
    for index, other in enumerate(left):
      if _same(one, other):
        del left[index]
        break
    else:
      return False
  return True


def _distinct(items) -> list:
  kept: list = []
  for item in items:
    if not any(_same(item, other) for other in kept):
      kept.append(item)
  return kept


def _same_sequences(given, gold) -> bool:
  kinds = {given.brackets, gold.brackets}
  if kinds == {"{}"}:
    return _same_any_order(_distinct(given.items), _distinct(gold.items))
  if kinds <= {"", "{}"}:
    return _same_any_order(given.items, gold.items)
  if len(given.items) != len(gold.items):
    return False
  vectors = kinds == {"()", "[]"} and len(gold.items) > 2
  if len(kinds) > 1 and not vectors and kinds != {"", "()"}:
    return False
  return all(_same(a, b) for a, b in zip(given.items, gold.items, strict=True))


def _same_quantities(given, gold) -> bool:
  """Values with units; see the conventions above."""
  if any(isinstance(x, Seq) and x.brackets == "" for x in (given, gold)):
    return False
  if isinstance(given, Relation) != isinstance(gold, Relation):
    relation, other = (
        (given, gold) if isinstance(given, Relation) else (gold, given)
    )
    named = _assigned(relation)
    return named is not None and (
        _same(named, other) if relation is given else _same(other, named)
    )
  a = given if isinstance(given, Quantity) else Quantity(given, "")
  b = gold if isinstance(gold, Quantity) else Quantity(gold, "")
  if (a.unit == "%") != (b.unit == "%"):
    share, other = (a, b) if a.unit == "%" else (b, a)
    if other.unit and other.unit.partition("^")[0] in _MEASURED:
      return False
    if not latex.is_expression(share.value):
      return False
    hundredth = ("/", share.value, Fraction(100))
    if _same(hundredth, other.value):
      return True
    value = numeric.exact(share.value)
    bare = share is b or (value is not None and abs(value) > 1)
    return bare and _same(share.value, other.value)
  physical = [
      q.unit for q in (a, b) if re.split(r"[\^/]", q.unit)[0] in _MEASURED
  ]
  if len(physical) == 2 and physical[0] != physical[1]:
    return False
  return _same(a.value, b.value)


# --- relations ---------------------------------------------------------------

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _is_name(value) -> bool:
  """A variable, a function of one, a product of letters such as AB."""
  if not isinstance(value, tuple) or isinstance(value, Quantity):
    return False
  if value[:1] == ("name",):
    return True
  return value[:1] == ("*",) and all(
      isinstance(x, tuple) and _is_name(x) for x in value[1:]
  )


def _is_number(value) -> bool:
  return latex.is_expression(value) and not numeric.names(value)


def _renames(left, right) -> bool:
  """Whether A = B, of two variables or functions, says more than B."""
  if type(right) is not tuple or right[0] != "name" or not numeric.names(right):
    return False
  return "(" not in left[1] or "(" in right[1]


def _assigned(relation: Relation):
  """The value that `x = 5`, `f(x) = ... = 5`, `x in S` gives; else None."""
  left, right = relation.sides[0], relation.sides[-1]
  if set(relation.ops) == {"="}:
    numbers = [s for s in relation.sides if _is_number(s)]
    if any(not numeric.equal(s, numbers[0]) for s in numbers):
      return None  # x = 5 = 6
    if _is_name(left):
      return None if _renames(left, right) else right
    if _is_number(left) and _is_name(right):
      return left  # 5 = x
    if len(numbers) == len(relation.sides) and left != right:
      return right  # 2 + 3 = 5
  if relation.ops == ("in",) and _is_name(left):
    return right
  return None


def _as_set(value):
  """Inequalities of one variable as intervals, several as their union."""
  if (
      isinstance(value, Seq)
      and value.brackets == ""
      and all(isinstance(x, Relation) for x in value.items)
  ):
    parts = tuple(_as_set(item) for item in value.items)
    if all(isinstance(part, Seq) for part in parts):
      return Union(parts)
  if isinstance(value, Relation):
    return _interval(value) or value
  if value == latex.REALS:
    return Seq("()", (("*", Fraction(-1), latex.INFINITY), latex.INFINITY))
  return value


def _range(relation: Relation):
  """The set that an inequality or `x in S` gives; None if it gives none."""
  inside = relation.ops == ("in",)
  return _assigned(relation) if inside else _interval(relation)


def _variables(relation: Relation) -> frozenset[str]:
  sides = filter(latex.is_expression, relation.sides)
  return frozenset().union(*map(numeric.names, sides))


def _interval(relation: Relation) -> Seq | None:
  """`1 < x <= 3` as (1, 3]; None if it bounds no single variable."""
  ops, sides = relation.ops, relation.sides
  if len(ops) > 2 or not set(ops) <= set(_FLIPPED):
    return None
  if ops[0] in (">", ">="):
    ops, sides = tuple(_FLIPPED[op] for op in ops[::-1]), sides[::-1]
  if not set(ops) <= {"<", "<="} or not all(map(latex.is_expression, sides)):
    return None
  free = [_is_name(side) and bool(numeric.names(side)) for side in sides]
  if free.count(True) != 1 or any(
      numeric.names(s) for s, f in zip(sides, free, strict=True) if not f
  ):
    return None
  at = free.index(True)
  low = ("*", Fraction(-1), latex.INFINITY) if at == 0 else sides[at - 1]
  high = sides[at + 1] if at + 1 < len(sides) else latex.INFINITY
  closed_low = at > 0 and ops[at - 1] == "<="
  closed_high = at < len(ops) and ops[at] == "<="
  return Seq(
      ("[" if closed_low else "(") + ("]" if closed_high else ")"), (low, high)
  )


def _same_relations(given, gold) -> bool:
  if not isinstance(gold, Relation):
    value = _assigned(given)
    return value is not None and _same(value, gold)
  if not isinstance(given, Relation):
    value = _assigned(gold)
    return value is not None and _same(given, value)
  a, b = _assigned(given), _assigned(gold)
  if a is not None and b is not None and given.sides[0] == gold.sides[0]:
    return _same(a, b)
  a, b = _range(given), _range(gold)
  if a and b:
    return _variables(given) == _variables(gold) and _same(a, b)
  if len(given.sides) == len(gold.sides) == 2:
    sides = (*given.sides, *gold.sides)
    if all(map(latex.is_expression, sides)):
      return _same_zero(given, gold)
  return given.ops == gold.ops and all(
      _same(x, y) for x, y in zip(given.sides, gold.sides, strict=True)
  )


def _same_zero(given: Relation, gold: Relation) -> bool:
  """Whether two relations of expressions say the same of left less right."""
  op, other = given.ops[0], gold.ops[0]
  sign = Fraction(-1) if _FLIPPED.get(op) == other else Fraction(1)
  if op != other and sign > 0:
    return False
  a, b = (
      ("+", r.sides[0], ("*", Fraction(-1), r.sides[1])) for r in (given, gold)
  )
  ordered = op in _FLIPPED
  return numeric.proportional(("*", sign, a), b, positive=ordered)


# --- math-verify -------------------------------------------------------------

# Commands that may reach its parser: each builds an expression that it can
# judge, and none of them can name a Python object.
_KNOWN = frozenset(
    "frac sqrt cdot times pi infty sum prod int lim to sin cos tan cot sec csc"
    " arcsin arccos arctan sinh cosh tanh ln log exp binom left right cup cap"
    " setminus emptyset mathbb in le ge leq geq neq pm mp begin end alpha beta"
    " gamma delta theta lambda mu omega phi sigma rho tau det max min gcd mod"
    " pmod bmod equiv lfloor rfloor lceil rceil vec overline circ quad mid"
    " prime partial land lor backslash".split()
)
_ALLOWED = re.compile(r"[0-9a-zA-Z\\+\-*/^_=<>()\[\]{}|,;:.!&%' \n]{1,300}")


def _admitted(text: str) -> str | None:
  """LaTeX that may reach math-verify; None if any of it is not whitelisted."""
  try:
    text = lexer.clean(text)
  except lexer.Unreadable:
    return None
  if not _ALLOWED.fullmatch(text) or "\\" not in text:
    return None
  text = re.sub(r"\\[dtc]frac", r"\\frac", text)
  if not set(re.findall(r"\\([a-zA-Z]+)", text)) <= _KNOWN:
    return None
  words = re.findall(r"[a-zA-Z]{3,}", re.sub(r"\\[a-zA-Z]+", " ", text))
  if set(words) - {"pmatrix", "bmatrix", "vmatrix", "matrix", "cases"}:
    return None
  # Towers of powers and long numbers are slow to evaluate.
  if re.search(r"\d{20}|\^[^+\-*/()]{0,8}\^|!!", text) or text.count("^") > 12:
    return None
  if any(int(n) > 999 for n in re.findall(r"(?<=\^)\{?-?(\d+)", text)):
    return None
  return text


def _math_verify(given: str, gold: str) -> bool:
  """The verdict of math-verify on two whitelisted pieces of LaTeX."""
  one, other = _admitted(given), _admitted(gold)
  if one is None or other is None:
    return False
  import math_verify

  try:
    # Only LaTeX: for plain expressions it would call `parse_expr`. Its time
    # limits are signals, which only the main thread may use; ours are outside.
    parsed = [
        math_verify.parse(
            f"${text}$",
            [math_verify.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        for text in (one, other)
    ]
    if not all(parsed):
      return False
    return bool(math_verify.verify(parsed[1], parsed[0], timeout_seconds=None))
  except Exception:  # whatever sympy raises: the answer cannot be scored
    return False
