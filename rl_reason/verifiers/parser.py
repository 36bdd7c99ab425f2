r"""Parses an answer, LaTeX or plain, into a value.

No text is evaluated: the result is a tree of `value_types`, in which numbers
are exact fractions. Text outside of the grammar is `Unreadable`, never guessed.
`phrases` handles words in an answer.
"""

import re
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import (
    lexer,
    numeric,
    phrases,
    real_sets,
    series,
    units,
    value_types,
)
from rl_reason.verifiers.lexer import (
    FUNCTIONS,
    OPENING,
    SEPARATORS,
    Token,
    Unreadable,
)
from rl_reason.verifiers.value_types import (
    Family,
    Quantity,
    Relation,
    Rounded,
    Seq,
    is_name,
    op,
)

MAX_TOKENS = 600
MAX_DEPTH = 40
MAX_ITEMS = 64


_INVERSE = dict(sin="asin", cos="acos", tan="atan")
# Letters before brackets that name a function rather than a factor.
_FUNCTION_NAMES = frozenset("f g h F G H I O T Phi phi psi zeta Gamma".split())
_DECORATIONS = frozenset(
    "overline bar hat vec dot ddot tilde overrightarrow widehat mathbb mathfrak"
    " mathcal".split()
)
# Superscripts that are not exponents.
_MARKS = {"'": "prime", "prime": "prime", "*": "star", "top": "transposed"}
_RELATIONS = ("=", "!=", "<", ">", "<=", ">=", "in", "approx")
_INEQUALITIES = frozenset(("!=", "<", ">", "<=", ">="))
_STYLES = frozenset(lexer.STYLES.split("|"))
# Words that no name on the left of a sign has.
_NO_NAME = frozenset(
    "and or not is are if no never unless except cannot".split()
)
_CHOSEN = ("max", "min", "gcd", "lcm")


def read(text: str) -> Any:
  """Returns the value of an answer.

  Raises:
    Unreadable: the grammar does not cover the text.
  """
  text = lexer.clean(text)
  value = phrases.value(text)
  if value is not None:
    return value
  text = phrases.mathematics(text)
  rest, variable, domain = phrases.domain(text)
  if variable:
    found = _list(lexer.tokens(rest), 0)
    if type(found) is Family:
      raise Unreadable("two domains")
    items = found.items if isinstance(found, Seq) else (found,)
    return Family(variable, domain, tuple(items))
  tokens = lexer.tokens(text)
  if not 0 < len(tokens) <= MAX_TOKENS:
    raise Unreadable("nothing, or too much")
  if all(t.kind in ("word", "text") or t.text in ("'", "-") for t in tokens):
    lengths = [len(t.text) for t in tokens]
    if max(lengths) > 2 or len(tokens) > 3 or lengths == [2]:
      words = phrases.fold(text if len(tokens) > 1 else tokens[0].text)
      reals = words in ("all real numbers", "all reals", "all real")
      return value_types.REALS if reals else words
  return _list(tokens, 0)


def _list(tokens, depth) -> Any:
  """A value, or a list of values; a list of inequalities is a set."""
  items = _elements(tokens, depth)
  if len(items) == 1:
    return items[0]
  kinds = set(lexer.split(tokens, SEPARATORS)[1])
  if any(isinstance(x, Relation) and set(x.ops) & _INEQUALITIES for x in items):
    return Seq({"or": "cup", "and": "cap"}.get("".join(kinds), ""), items)
  return Seq("or" if kinds == {"or"} else "", items)


def _elements(tokens, depth) -> tuple:
  """The values of a list; a value with a plus-minus sign counts as two."""
  out = []
  dots = 0  # the place of dots: 1, 2, ..., 9
  for part in lexer.split(tokens, SEPARATORS)[0]:
    if not part:
      raise Unreadable("an empty place in a list")
    if [t.text for t in part] == ["dots"] and not dots and out:
      dots = len(out)
      continue
    if name := _noun(part):
      out.append(name)
      continue
    double = any(t.text in ("pm", "mp") for t in part)
    for texts in ("+-", "-+") if double else ("+-",):
      plus, minus = (Token("symbol", text, False) for text in texts)
      signs = dict(pm=plus, mp=minus)
      out.append(_item([signs.get(t.text, t) for t in part], depth))
  if dots:
    out = series.filled(out[:dots], out[dots:], MAX_ITEMS)
  if len(out) > MAX_ITEMS:
    raise Unreadable("too many values")
  return tuple(out)


def _noun(tokens) -> str:
  """The words of an item of a list such as "Alice, Bob"; '' of mathematics."""
  if not all(t.kind in ("word", "text") for t in tokens):
    return ""
  words = " ".join(t.text for t in tokens)
  parts = re.findall(r"[^\W\d_]{3,}", words)
  prose = any(phrases.is_word(x, among_words=True) for x in parts)
  return phrases.fold(words) if prose else ""


def _item(tokens, depth) -> Any:
  """A relation, a union, a ratio, or an expression with or without a unit."""
  if depth > MAX_DEPTH:
    raise Unreadable("too deep")
  for name in ("cup", "cap"):
    real_sets, joints = lexer.split(tokens, (name,))
    if joints:
      return Seq(name, tuple(_item(each, depth + 1) for each in real_sets))
  sides, ops = lexer.split(tokens, _RELATIONS)
  if ops:
    first = _name_of(sides[0]) or _item(sides[0], depth)
    rest = (
        _rounded(side, depth) if sign == "approx" else _item(side, depth)
        for sign, side in zip(ops, sides[1:], strict=True)
    )
    return Relation(ops, (first, *rest))
  for name, sign in (("minus", "setminus"), ("ratio", ":")):
    parts, signs = lexer.split(tokens, (sign,))
    if signs:
      return Seq(name, tuple(_item(each, depth + 1) for each in parts))
  return _quantity(tokens, depth)


def _rounded(tokens, depth) -> Rounded:
  """The value after an approximation sign, and the precision of its digits."""
  value = _item(tokens, depth)
  digits = [t.text for t in tokens if t.kind == "number"]
  if len(digits) != 1 or re.search("[eE]", digits[0]):
    return Rounded(value, None)
  places = len(digits[0].partition(".")[2])
  return Rounded(value, Fraction(1, 2 * 10**places))


def _name_of(tokens) -> tuple | None:
  """A left side that is only a name: `f(x)`, `Area`, `(a, b)`; else None."""
  text = "".join(t.text for t in tokens if t.text != "angle")
  kinds = {t.kind for t in tokens}
  if kinds and kinds <= {"text", "word"}:
    name = " ".join(t.text for t in tokens)
    if set(name.split()) & _NO_NAME:
      raise Unreadable("a sentence before a sign")
    return ("name", name)
  call = re.fullmatch(r"[A-Za-z]+(?:\^\{-1\})?\([^()]*\)", text)
  names = re.fullmatch(r"\([A-Za-z](?:_?\w)?(?:,[A-Za-z](?:_?\w)?)+\)", text)
  return ("name", text) if names or call and "command" not in kinds else None


def _quantity(tokens, depth) -> Any:
  """An expression with or without a unit."""
  if not tokens:
    raise Unreadable("nothing")
  rest, unit = units.split(tokens, nested=depth > 0)
  value = _expression(rest, depth)
  inner = value.value if isinstance(value, Quantity) else value
  return Quantity(inner, unit) if unit else value


def _expression(tokens, depth) -> Any:
  """An expression, bracketed list or matrix that consumes all tokens."""
  parser = _Parser(tokens, depth)
  value = parser.sum()
  if parser.next.kind != "end":
    raise Unreadable(f"{parser.next.text!r} here")
  return value


class _Parser:
  """Recursive descent over the tokens of one expression."""

  def __init__(self, tokens, depth):
    if depth > MAX_DEPTH:
      raise Unreadable("too deep")
    self.tokens = [*tokens, Token("end", "", False)]
    self.depth, self.at = depth, 0

  @property
  def next(self) -> Token:
    return self.tokens[self.at]

  def peek(self, *texts) -> bool:
    """Whether the next token is one of these symbols or commands."""
    return self.next.kind in ("symbol", "command") and self.next.text in texts

  def accept(self, *texts) -> str:
    """Consumes and returns the next token if it is one of these; else ''."""
    if not self.peek(*texts):
      return ""
    self.at += 1
    return self.tokens[self.at - 1].text

  def starts(self) -> bool:
    """Whether a factor may begin at the next token."""
    kind, text = self.next.kind, self.next.text
    if kind == "symbol":
      return text in OPENING or text == "|"
    words = kind == "text" and len(text) != 1
    return kind != "end" and not words and text not in ("to", "mod", "dots")

  def sum(self):
    """Terms joined by signs; dots stand for omitted terms."""
    terms, closed = [self.term()], False
    while sign := self.accept("+", "-"):
      if sign == "+" and self.accept("dots"):
        if closed or len(terms) < 2 or not self.accept("+"):
          raise Unreadable("dots here")
        last, closed = self.term(), True
        terms = [series.total(terms, last)]
        if numeric.names(last) and self.peek("+", "-"):
          raise Unreadable("a last term that may go on")  # ... + n + 1
        continue
      term = self.term()
      terms.append(value_types.negative(term) if sign == "-" else term)
    return terms[0] if len(terms) == 1 else op("+", *terms)

  def term(self):
    """Factors from left to right, joined by `*`, `/` or nothing."""
    value = self.factor()
    factors = [value]  # dots may continue their product
    while True:
      if (
          self.peek("dots")
          or self.peek("*")
          and (self.tokens[self.at + 1][:2] == ("command", "dots"))
      ):
        self.accept("*")
        self.accept("dots")
        self.accept("*")
        if len(factors) < 2:
          raise Unreadable("dots here")
        return series.product(factors, self.factor())
      if sign := self.accept("*", "/"):
        factor = self.factor()
        factors = [*factors, factor] if sign == "*" and factors else []
        value = op(sign, value, factor)
      elif self.starts():
        if self.tokens[self.at - 1].kind == self.next.kind == "number":
          raise Unreadable("two numbers side by side")
        value, factors = op("*", value, self.power()), []
      else:
        return value

  def factor(self):
    """A power with signs before it."""
    negative = False
    while sign := self.accept("+", "-"):
      negative ^= sign == "-"
    value = self.power()
    return value_types.negative(value) if negative else value

  def power(self):
    """A primary with exponents, arguments and marks after it."""
    numeral = self.next.kind == "number"
    value = self.primary()
    if numeral:
      value = self.mixed(value)
    while True:
      # From left to right: each applies to everything before it.
      if self.accept("^"):
        mark = self.mark()
        if mark:
          value = value_types.marked(value, mark)
        else:
          value = op("^", value, self.exponent())
      elif self.accept("!"):
        value = op("factorial2" if self.accept("!") else "factorial", value)
      elif self.accept("'"):
        value = value_types.marked(value, "prime")
      elif self.accept("degree"):
        value = Quantity(value, "degree")
      elif self.accept("radians"):
        value = op("*", value, value_types.DEGREE)
      elif self.accept("%", "\\%"):
        value = op("/", value, Fraction(100))
      elif self.is_call(value):
        value = value_types.opaque(value[1], self.bracket())
      else:
        return value

  def mixed(self, whole):
    r"""A whole number with a fraction after it: `1 1/2`, `1\frac12`."""
    here = self.tokens[self.at : self.at + 7]
    kinds, texts = [t.kind for t in here[:3]], [t.text for t in here]
    if kinds == ["number", "symbol", "number"] and texts[1] == "/":
      before = self.tokens[self.at - 1].text
      if "." in before + texts[0] + texts[2]:
        raise Unreadable("two numbers side by side")
      self.at += 3
      return ("+", whole, ("/", lexer.number(texts[0]), lexer.number(texts[2])))
    numerals = re.match(r"frac(\d\d|(\d|\{\d+\})(\d|\{\d+\}))", "".join(texts))
    if self.peek("frac") and whole.denominator == 1 and numerals:
      return op("+", whole, self.power())
    return whole

  def mark(self) -> str:
    """Consumes a superscript that is not an exponent, such as a prime."""
    end = self.at + (3 if self.peek("{") else 1)
    inside = "".join(t.text for t in self.tokens[self.at : end]).strip("{}")
    if inside not in _MARKS:
      return ""
    self.at = end
    return _MARKS[inside]

  def exponent(self):
    """A group, or one signed factor."""
    negative = self.accept("-")
    value = self.primary()
    if self.accept("^"):
      value = op("^", value, self.exponent())
    return value_types.negative(value) if negative else value

  def is_call(self, value) -> bool:
    """Whether a name and a bracket are a call, not a product as in `n(n + 1)`.

    A call has a usual name of a function, several arguments, or a number.
    """
    if not (self.peek("(") and is_name(value)):
      return False
    if "(" in value[1] or value[1] in ("pi", "e", "i"):
      return False
    end = self.closing()
    inner = self.tokens[self.at + 1 : end]
    return self.tokens[end].text == ")" and (
        bool(lexer.split(inner, SEPARATORS)[1])
        or all(t.kind in ("number", "symbol") for t in inner)
        or re.split(r"[ _]", value[1])[0] in _FUNCTION_NAMES
    )

  def group(self):
    """`{...}` as an expression; without braces one digit or letter."""
    token = self.next
    if token.kind in ("number", "word") and len(token.text) > 1:
      first, rest = token.text[0], token.text[1:]
      if first == "." or rest[0] == ".":
        raise Unreadable("an argument without braces")
      self.tokens[self.at : self.at + 1] = [
          token._replace(text=first),
          token._replace(text=rest, spaced=False),
      ]
    return self.primary()

  def closing(self) -> int:
    """The index at which the bracket that begins here ends."""
    depth = 0
    for end in range(self.at, len(self.tokens)):
      token = self.tokens[end]
      if token.kind == "symbol":
        depth += (token.text in OPENING) - (token.text in lexer.CLOSING)
        if not depth:
          return end
    raise Unreadable(f"{self.next.text} is not closed")

  def bracket(self):
    """A bracket with its content."""
    opening, inner = self.next.text, self.bracket_tokens()
    closing = self.tokens[self.at - 1].text
    matched = OPENING[opening] == closing
    if not matched and {opening, closing} - set("([)]"):
      raise Unreadable(f"{opening} closed by {closing}")
    if opening == "\\{":
      if not inner:
        return value_types.EMPTY
      such_that = lexer.split(inner, ("|", ":"))[0]  # {x | x > 3}
      if len(such_that) == 2 and any(
          t.text in _RELATIONS for t in such_that[1]
      ):
        return self.builder(*such_that)
    items = _elements(inner, self.depth + 1)
    if opening == "\\{" or opening == "{" and lexer.split(inner, SEPARATORS)[1]:
      return Seq("{}", items)
    rows = [x for x in items if isinstance(x, Seq) and x.brackets == "[]"]
    if opening + closing == "[]" and len(rows) == len(items) > 1:
      if len({len(row.items) for row in rows}) == 1:
        return Seq("matrix", tuple(Seq("row", row.items) for row in rows))
    if len(items) > 1 or not matched:
      return Seq(opening + closing, items)
    value = items[0]
    union = isinstance(value, Seq) and value.brackets == "cup"
    if union or isinstance(value, Relation | str):
      raise Unreadable("a relation in brackets")
    return value

  def builder(self, member, conditions) -> Any:
    """Set-builder notation: the form of the members, and conditions."""
    depth = self.depth + 1
    within = lexer.split(member, ("in",))[0]
    first = _item(within[0], depth)
    parts = _elements(conditions, depth)
    domains = [x for x in parts if isinstance(x, Relation) and x.ops == ("in",)]
    rest = tuple(x for x in parts if x not in domains)
    if len(within) == 2:  # {x in R : ...}
      domains.append(Relation(("in",), (first, _item(within[1], depth))))
    if any(not is_name(x.sides[0]) for x in domains):
      raise Unreadable("a domain of other than a variable")
    if len(domains) == 1 and not is_name(first) and not rest:
      name, domain = domains[0].sides
      return Family(name[1], phrases.number_set(domain), (first,))
    if not is_name(first):
      raise Unreadable("a set of formulas")
    equal = [x for x in rest if isinstance(x, Relation) and x.ops == ("=",)]
    if len(domains) == len(rest) == len(equal) == 1:
      name, domain = domains[0].sides
      if equal[0].sides[0] == first != name:  # {x | x = 2k pi, k in Z}
        domain = phrases.number_set(domain)
        return Family(name[1], domain, (equal[0].sides[1],))
    domains = [x for x in domains if x.sides != (first, value_types.REALS)]
    found = _list(conditions, depth)
    if domains and not rest and len(domains) == 1:
      return domains[0].sides[1] if domains[0].sides[0] == first else found
    if domains or not rest:
      raise Unreadable("a set of several conditions")
    if len(rest) < len(parts):
      found = rest[0] if len(rest) == 1 else Seq("", rest)
    names = real_sets.variables(found)
    if names and names != {first[1]}:
      raise Unreadable("a condition of another variable")
    return Seq("set", (found,))

  def primary(self):
    """A number, a name, a call, or a bracket."""
    token = self.next
    if token.kind in ("word", "text") and token.text in _CHOSEN:
      self.at += 1
      if self.peek("(", "\\{", "{"):
        return self.command(token.text)
      self.at -= 1
    if token.text.lower() in phrases.MONTHS:  # 5 May is May 5
      self.at += 1
      return ("name", token.text.lower())
    if token.kind == "word" and len(token.text) > 1:
      if phrases.is_word(token.text, among_words=self.among_words()):
        raise Unreadable(f"the word {token.text!r}")
      # Adjacent letters are a product; the last may have a subscript.
      letters = [Token("word", letter, False) for letter in token.text]
      self.tokens[self.at : self.at + 1] = letters
    if token.kind == "symbol" and token.text in OPENING:
      return self.bracket()
    if self.peek("|"):
      return self.between("|", "abs")
    if self.peek("lfloor", "lceil"):
      return self.between("r" + token.text[1:], token.text[1:])
    if token.kind in ("symbol", "end"):
      raise Unreadable(f"{token.text!r} here")
    self.at += 1
    if token.kind == "number":
      return self.repeating(token)
    if token.kind == "command":
      return self.command(token.text)
    return self.named(self.tokens[self.at - 1].text)

  def among_words(self) -> bool:
    """Whether a space and a word or number is next to this token."""
    kinds = ("word", "number", "text")
    before, here = self.tokens[max(self.at - 1, 0)], self.next
    after = self.tokens[self.at + 1]
    return (
        bool(self.at and here.spaced and before.kind in kinds)
        or after.spaced
        and after.kind in kinds
    )

  def repeating(self, token):
    """A number; digits under a bar or a dot are repeating decimals."""
    value = lexer.number(token.text)
    if "." in token.text and self.peek("overline", "bar", "dot"):
      dot = self.accept("overline", "bar", "dot") == "dot"
      digits = self.raw()
      if not digits.isdigit() or dot and len(digits) > 1:
        raise Unreadable("repeating digits without digits")
      places = len(token.text.partition(".")[2])
      value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
    return value

  def named(self, name):
    """A name with its subscript."""
    return ("name", f"{name}_{self.raw()}" if self.accept("_") else name)

  def raw(self) -> str:
    """The text of a group that is not parsed, such as a subscript."""
    start, depth = self.at, 0
    while self.next.kind != "end":
      depth += (self.next.text == "{") - (self.next.text == "}")
      self.at += 1
      if not depth:
        texts = [t.text for t in self.tokens[start : self.at]]
        return "".join(text for text in texts if text not in ("{", "}"))
    raise Unreadable("an argument is missing")

  def between(self, closing, function):
    """`|x|`, floors and ceilings."""
    opening, start, depth = self.next.text, self.at + 1, 0
    for end in range(start, len(self.tokens)):
      token = self.tokens[end]
      if token.kind in ("symbol", "command"):
        if token.text == closing and not depth:
          self.at = end + 1
          inner = _expression(self.tokens[start:end], self.depth + 1)
          return op(function, inner)
        depth += token.text in (*OPENING, opening)
        depth -= token.text in (*lexer.CLOSING, closing)
    raise Unreadable(f"{opening} is not closed")

  def command(self, name):
    """Fractions, roots, functions, matrices, names."""
    if name in ("frac", "binom"):
      name = "/" if name == "frac" else name
      return op(name, self.group(), self.group())
    if name == "sqrt" and self.peek("["):
      degree = op("/", Fraction(1), self.bracket())
      return op("^", self.group(), degree)
    if name == "sqrt":
      return op(name, self.group())
    if name == "begin":
      return self.matrix()
    if name in _STYLES and self.peek("{"):
      return self.group()
    if name in ("sum", "prod"):
      return self.repeated("+" if name == "sum" else "*")
    if name in _CHOSEN and self.peek("(", "\\{", "{"):
      found = self.bracket()
      items = found.items if isinstance(found, Seq) else (found,)
      op(name, *items)  # of numbers and formulas alone
      if any(map(numeric.names, items)):
        return value_types.opaque(name, *sorted(items, key=repr))
      return op(name, *items)
    if name in ("angle", "triangle", "measuredangle"):
      return ("name", f"angle {self.raw()}")
    if name in _DECORATIONS:
      return self.named(f"{name} {self.raw()}")
    if name in FUNCTIONS or name in ("abs", "floor", "ceil"):
      return self.call(name)
    if name in lexer.NAMES or len(name) == 1:
      return self.named(name)
    raise Unreadable(f"the command {name!r}")

  def repeated(self, sign):
    r"""The terms of `\sum_{k=1}^{10}`, or the factors of a product."""
    if not self.accept("_") or not self.peek("{"):
      raise Unreadable("a sum without bounds")
    start = self.bracket_tokens()
    sides, signs = lexer.split(start, ("=",))
    if signs != ("=",) or len(sides[0]) != 1 or not self.accept("^"):
      raise Unreadable("a sum without bounds")
    bounds = _expression(sides[1], self.depth + 1), self.group()
    if any(t.text in ("sum", "prod") for t in self.tokens[self.at :]):
      raise Unreadable("a sum of sums")
    return series.repeated(sign, sides[0][0].text, *bounds, self.term())

  def bracket_tokens(self) -> list[Token]:
    """Consumes a group and returns the tokens inside."""
    start, end = self.at + 1, self.closing()
    self.at = end + 1
    return self.tokens[start:end]

  def call(self, name):
    """A function of the bracket or the factors after it."""
    base = self.group() if self.accept("_") else None
    power = self.group() if self.accept("^") else None
    if power == value_types.negative(Fraction(1)) and name in _INVERSE:
      name, power = _INVERSE[name], None
    angle = name in lexer.TRIGONOMETRIC
    if self.peek("(", "{", "["):
      for at in range(self.at, self.closing() if angle else 0):
        if self.tokens[at][:2] == ("command", "degree"):
          self.tokens[at] = Token("command", "radians", False)
      argument = self.bracket()
    else:
      # The argument of `sin 2x` extends to the next sign or function.
      argument = self.factor()
      if angle and isinstance(argument, Quantity):
        argument = op("*", argument, value_types.DEGREE)
      while self.starts() and not self.peek("(", "[", *FUNCTIONS):
        argument = op("*", argument, self.power())
    if name == "lg":
      name, base = "log", Fraction(10)
    value = op(name, argument)
    if base is not None and name != "log":
      raise Unreadable("a subscript of a function")
    if base is not None:
      value = op("/", value, op("log", base))
    return value if power is None else op("^", value, power)

  def matrix(self):
    """A matrix environment after its `begin`."""
    kind = self.raw()
    if kind not in ("pmatrix", "bmatrix", "matrix", "array"):
      raise Unreadable(f"the environment {kind}")
    if kind == "array" and self.peek("{"):
      self.raw()
    start = self.at
    while not self.accept("end"):
      if self.next.kind == "end" or self.peek("begin"):
        raise Unreadable("a matrix is not closed")
      self.at += 1
    lines = lexer.split(self.tokens[start : self.at - 1], ("\\\\",))[0]
    if self.raw() != kind:
      raise Unreadable("a matrix is not closed")
    rows = [lexer.split(line, ("&",))[0] for line in lines if line]
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or len(rows) * max(lengths) > MAX_ITEMS:
      raise Unreadable("an empty, ragged or huge matrix")
    depth = self.depth + 1
    cells = [[op("+", _quantity(x, depth))[1] for x in row] for row in rows]
    return Seq("matrix", tuple(Seq("row", tuple(row)) for row in cells))
