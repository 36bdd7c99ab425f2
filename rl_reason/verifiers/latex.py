r"""Reads an answer, LaTeX or plain, into a value by a grammar of its own.

Nothing here evaluates: a value is a tree of the tuples below, and numbers are
exact fractions. What the grammar does not know is `Unreadable`, never guessed.

An expression is a Fraction, or a tuple ("name", x), ("+", a, b, ...),
("*", a, b, ...), ("/", a, b), ("^", a, b), or (function, a, ...).
"""

import hashlib
import re
from fractions import Fraction
from typing import Any, NamedTuple

from rl_reason.verifiers import lexer, units
from rl_reason.verifiers.lexer import FUNCTIONS, Token, Unreadable, number

MAX_TOKENS = 600
MAX_DEPTH = 40
MAX_ITEMS = 64


class Text(NamedTuple):
  """Words, folded: East -> 'east'."""

  words: str


class Based(NamedTuple):
  """Digits in a base: 1011_2."""

  digits: str
  base: int


class Quantity(NamedTuple):
  """A value with a unit: `'%'`, `'degree'`, `'cm^2'`, or any noun."""

  value: Any
  unit: str


class Seq(NamedTuple):
  """Values between brackets: '()', '[)', '{}', ...; '' for a bare list."""

  brackets: str
  items: tuple


class Union(NamedTuple):
  """Sets joined by a cup."""

  items: tuple


class Matrix(NamedTuple):
  """Rows of expressions."""

  rows: tuple


class Relation(NamedTuple):
  """`sides[0] ops[0] sides[1] ops[1] ...`; ops of = != < > <= >= in."""

  ops: tuple
  sides: tuple


# Letters before brackets that name a function rather than a factor.
_FUNCTION_NAMES = frozenset("f g h F G H I O T Phi phi psi zeta Gamma".split())
INFINITY = ("name", "infinity")
REALS = ("name", "mathbb R")
_REALS_IN_WORDS = ("all real numbers", "all reals", "all real")

_DECORATIONS = frozenset(
    "overline bar hat vec dot ddot tilde overrightarrow widehat".split()
)
_MARKS = {"'": "prime", "prime": "prime", "*": "star", "top": "transposed"}
_RELATIONS = frozenset(["=", "!=", "<", ">", "<=", ">=", "in"])
_OPENING = {"(": ")", "[": "]", "\\{": "\\}", "{": "}"}


def read(text: str) -> Any:
  """The value of an answer.

  Raises:
    Unreadable: the grammar does not know it.
  """
  text = lexer.clean(text)
  based = re.fullmatch(
      r"(-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)(?:_|_?(?:in)?base)(\d{1,2}|[a-z]+)",
      re.sub(r"\\(?:text|mathrm)(?![a-z])|[{}()\s]", "", text),
  )
  if based and (re.search(r"\d", based[1]) or based[0][2:].endswith("_16")):
    base = _BASES.get(based[2]) or int("0" + re.sub(r"\D", "", based[2]))
    digits = re.sub(r"^(-?)0+(?=\w)", r"\1", based[1].upper())
    if 2 <= base <= 16 and all(
        int(d, 16) < base for d in re.sub(r"[-.]", "", digits)
    ):
      return number(based[1]) if base == 10 else Based(digits, base)
  time = re.sub(r"\\(?:text|mbox|mathrm)|[{}\s.]", "", text).lower()
  if re.fullmatch(r"\d{1,2}(?::\d\d)?[ap]m", time):
    return Text(time)
  tokens = lexer.tokens(text)
  if not 0 < len(tokens) <= MAX_TOKENS:
    raise Unreadable("nothing, or too much")
  if len(tokens) > 1 and all(
      t.kind in ("word", "text") or t.text in ("'", "-") for t in tokens
  ):
    if any(len(t.text) > 2 for t in tokens) or len(tokens) > 3:
      words = fold(text)
      return REALS if words in _REALS_IN_WORDS else Text(words)
  if len(tokens) == 1 and tokens[0].kind in ("word", "text"):
    word = tokens[0].text
    return ("name", word) if len(word) == 1 else Text(fold(word))
  if re.fullmatch(r"\(\s*(?:\\text\{)?\(?[A-Z]\)?\}?\s*\)", text):
    return ("name", re.sub(r"\\text|[^A-Z]", "", text))
  if re.fullmatch(r"\(?\s*\d+\s*:\s*\d+(?:\s*:\s*\d+)*\s*\)?", text):
    return Text(re.sub(r"[\s()]", "", text))  # a ratio or a time
  if re.fullmatch(r"\d+ to \d+", text):
    return Text(text.replace(" to ", ":"))
  items = _elements(tokens, 0)
  return items[0] if len(items) == 1 else Seq("", items)


_BASES = dict(
    two=2, three=3, four=4, five=5, six=6, seven=7, eight=8, nine=9, ten=10,
    eleven=11, twelve=12, sixteen=16,
)  # fmt: skip


def fold(text: str) -> str:
  """Words to compare: no case, articles, punctuation or double spaces."""
  text = re.sub(r"\\[a-zA-Z]+", " ", text).casefold()
  words = re.findall(r"[^\W_]+", text)
  return " ".join(w for w in words if w not in ("the", "a", "an")) or " ".join(
      words
  )


def _split(tokens, wanted) -> list[list[Token]]:
  """Cut at symbols of `wanted` that stand outside of all brackets."""
  parts, depth = [[]], 0
  for token in tokens:
    if token.kind == "symbol":
      if token.text in ("(", "[", "{", "\\{"):
        depth += 1
      elif token.text in (")", "]", "}", "\\}"):
        depth -= 1
      elif depth == 0 and token.text in wanted:
        parts.append([])
        continue
    parts[-1].append(token)
  return parts


def _elements(tokens, depth) -> tuple:
  """Values of a list; one with a plus-minus sign counts as two."""
  out = []
  for part in _split(tokens, (",", ";")):
    if not part:
      raise Unreadable("an empty place in a list")
    if any(t.text in ("pm", "mp") for t in part):
      for plus, minus in ("+-", "-+"):
        signs = {"pm": plus, "mp": minus}
        out.append(
            _item(
                [
                    t._replace(kind="symbol", text=signs[t.text])
                    if t.text in signs
                    else t
                    for t in part
                ],
                depth,
            )
        )
    else:
      out.append(_item(part, depth))
  if len(out) > MAX_ITEMS:
    raise Unreadable("too many values")
  return tuple(out)


def _item(tokens, depth) -> Any:
  """A relation, a union, or an expression, perhaps with a unit."""
  if depth > MAX_DEPTH:
    raise Unreadable("too deep")
  sides = _split(tokens, _RELATIONS)
  if len(sides) > 1:
    ops, level = [], 0
    for token in tokens:
      if token.kind == "symbol":
        level += token.text in ("(", "[", "{", "\\{")
        level -= token.text in (")", "]", "}", "\\}")
        if not level and token.text in _RELATIONS:
          ops.append(token.text)
    values = [_name_of(sides[0]) or _item(sides[0], depth)]
    values += [_item(side, depth) for side in sides[1:]]
    return Relation(tuple(ops), tuple(values))
  parts, last = [], 0
  for index, token in enumerate(tokens):
    if token == token._replace(kind="command", text="cup"):
      parts.append(tokens[last:index])
      last = index + 1
  if parts:
    parts.append(tokens[last:])
    return Union(tuple(_item(part, depth + 1) for part in parts))
  return _quantity(tokens, depth)


def _name_of(tokens) -> tuple | None:
  """A left side that only names what follows: `f(x)`, `AB`, `(a, b)`."""
  text = "".join(t.text for t in tokens if t.text != "angle")
  if re.fullmatch(
      r"[A-Za-z]+(?:\^\{-1\})?\([^()]*\)", text
  ) and "command" not in {t.kind for t in tokens}:
    return ("name", text)
  if tokens and all(t.kind in ("text", "word") for t in tokens):
    return ("name", " ".join(t.text for t in tokens))
  if re.fullmatch(r"\([A-Za-z](?:_?\w)?(?:,[A-Za-z](?:_?\w)?)+\)", text):
    return ("name", text)
  return None


_MONEY = {
    **{"\\$": "dollar", "$": "dollar", "USD": "dollar", "EUR": "euro"},
    **{"euro": "euro", "pound": "gbp", "yen": "yen", "rupee": "rupee"},
}


def _quantity(tokens, depth) -> Any:
  """An expression and its unit."""
  if not tokens:
    raise Unreadable("nothing")
  tokens, unit = list(tokens), ""
  if tokens[0].text in _MONEY and len(tokens) > 1:
    unit = _MONEY[tokens[0].text]
    del tokens[0]
  elif [t.text for t in tokens[:2]] in (["-", "\\$"], ["-", "$"]):
    unit = "dollar"
    del tokens[1]
  while len(tokens) > 1 and tokens[-1].text in _MONEY:
    unit = unit or _MONEY[tokens[-1].text]
    tokens.pop()
  end = len(tokens)
  power = re.search(r"\^\{?([23])\}?$", "".join(t.text for t in tokens))
  power = None if tokens[-1].kind == "text" else power
  if power:
    end -= 4 if tokens[-1].text == "}" else 2
  start = end
  while start > 1 and _is_unit(tokens, start - 1, start == end):
    start -= 1
  if (
      not depth
      and start < end
      and (not power or tokens[end - 1].kind in ("text", "word"))
  ):
    words = [w for t in tokens[start:end] for w in re.findall(r"\w+", t.text)]
    known = units.unit(words, power[1] if power else "")
    if known:
      return _with_unit(_expression(tokens[:start], depth), known)
  last = tokens[-1] if tokens else None
  if (
      last
      and last.text in ("%", "\\%", "degree")
      and len(tokens) > 1
      and not (last.text == "degree" and _OF_ANGLES & {t.text for t in tokens})
  ):
    known = "degree" if last.text == "degree" else "%"
    return Quantity(_expression(tokens[:-1], depth), known)
  value = _expression(tokens, depth)
  return _with_unit(value, unit) if unit else value


def _with_unit(value, unit):
  return Quantity(value.value if isinstance(value, Quantity) else value, unit)


def _is_unit(tokens, index, last) -> bool:
  """Whether a token may belong to the unit that ends an item."""
  token = tokens[index]
  if token.kind == "text":
    if len(token.text) == 1 and token.text not in units.UNITS:
      return False  # a vector
    return bool(re.fullmatch(r"\D+(?:\^-?\d)?", token.text))
  if token.kind == "symbol":
    return token.text == "/" and not last and index > 1
  if token.kind != "word":
    return False
  known = token.text in units.UNITS or token.text in units.POWERS
  if len(token.text) >= 3 or known and len(token.text) == 2:
    return token.spaced or tokens[index - 1].kind == "number"
  before = tokens[:index]
  if before[-1].text in ("+", "-", "*", "^", "_"):
    return False
  if token.text in units.UNITS and tokens[index - 1].text == "/":
    return index > 1 and tokens[index - 2].text in units.UNITS  # km/h
  return token.text in units.UNITS and token.spaced and _is_number(before)


def _is_number(tokens) -> bool:
  """Whether tokens hold no variable, so that a letter behind is a unit."""
  return all(
      t.kind == "number"
      or t.kind == "symbol"
      or t.text in ("pi", "sqrt", "frac")
      for t in tokens
  )


def _expression(tokens, depth) -> Any:
  """An expression, a bracketed list, or a matrix; nothing left over."""
  parser = _Parser(tokens, depth)
  value = parser.sum()
  if parser.at < len(tokens):
    raise Unreadable(f"{tokens[parser.at].text!r} here")
  return value


def is_expression(value: Any) -> bool:
  """Whether a value is a number or a formula, not a set, text, ..."""
  return isinstance(value, Fraction) or type(value) is tuple


def _scalar(value):
  """The value, if arithmetic is meant for it."""
  if isinstance(value, Quantity) and value.unit == "degree":
    value = value.value
  if not is_expression(value):
    raise Unreadable("arithmetic of what is no number")
  return value


def _is_call(name: str, arguments, tokens) -> bool:
  """Whether `f(x)` is meant, not a product as in `n(n + 1)`.

  It is if f usually names a function, has several arguments, or a number only.
  """
  if name in ("pi", "e", "i"):
    return False
  if isinstance(arguments, Seq):
    return arguments.brackets == "()"
  letter = re.split(r"[ _]", name)[0]
  numeral = all(t.kind in ("number", "symbol") for t in tokens)
  return numeral or letter in _FUNCTION_NAMES


def _opaque(label: str, *parts) -> tuple:
  """A name for what is not evaluated: equal if all its parts are the same.

  Its parts go in as a digest: one that is quoted in another would double.
  """
  digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
  return ("name", f"{label} ({digest})")


def _marked(value, mark: str) -> tuple:
  """A name, or anything else, with a prime, a star, ..."""
  if type(value) is tuple and value[0] == "name" and "(" not in value[1]:
    return ("name", f"{value[1]} {mark}")
  return _opaque(mark, value)


class _Parser:
  """Recursive descent over the tokens of one expression."""

  def __init__(self, tokens, depth):
    if depth > MAX_DEPTH:
      raise Unreadable("too deep")
    self.tokens, self.depth, self.at = tokens, depth, 0
    self.read = ()  # the bracket read last: where, up to where, what

  def peek(self, *texts) -> bool:
    """Whether the next token is one of these symbols or commands."""
    if self.at >= len(self.tokens):
      return False
    token = self.tokens[self.at]
    return token.kind in ("symbol", "command") and token.text in texts

  def take(self, *texts) -> str:
    if not self.peek(*texts):
      raise Unreadable(f"no {' or '.join(texts)}")
    self.at += 1
    return self.tokens[self.at - 1].text

  def sum(self):
    """Terms with signs between them."""
    terms = [self.term()]
    while self.peek("+", "-"):
      sign = self.take("+", "-")
      term = _scalar(self.term())
      terms.append(term if sign == "+" else ("*", Fraction(-1), term))
    return terms[0] if len(terms) == 1 else ("+", *map(_scalar, terms))

  def term(self):
    """Factors, from left to right; between them `*`, `/` or nothing."""
    value = self.factor()
    while True:
      if self.peek("*"):
        self.take("*")
        value = ("*", _scalar(value), _scalar(self.factor()))
      elif self.peek("/"):
        self.take("/")
        value = ("/", _scalar(value), _scalar(self.factor()))
      elif self.starts():
        value = self.beside(value)
      else:
        return value

  def angle(self) -> None:
    """Degrees in the bracket that begins here become radians."""
    for at in range(self.at, self.closing()):
      token = self.tokens[at]
      if token.kind == "command" and token.text == "degree":
        self.tokens = list(self.tokens)
        self.tokens[at] = token._replace(text="radians")

  def beside(self, value):
    """Two factors side by side: a mixed number, or a product."""
    before, here = self.tokens[self.at - 1], self.tokens[self.at]
    if before.kind == "number" and here.kind == "number":
      rest = self.tokens[self.at : self.at + 3]
      kinds = [t.kind for t in rest]
      if kinds == ["number", "symbol", "number"] and rest[1].text == "/":
        if "." in before.text + rest[0].text + rest[2].text:
          raise Unreadable("two numbers side by side")
        self.at += 3
        part = ("/", number(rest[0].text), number(rest[2].text))
        return ("+", value, part)  # 1 1/2
      raise Unreadable("two numbers side by side")
    factor = self.power()
    if (
        before.kind == "number"
        and here.text == "frac"
        and value == number(before.text)
        and value.denominator == 1
        and isinstance(factor, tuple)
        and factor[0] == "/"
        and all(isinstance(x, Fraction) for x in factor[1:])
    ):
      return ("+", value, factor)  # 1\frac12
    return ("*", _scalar(value), _scalar(factor))

  def starts(self) -> bool:
    """Whether a factor may begin here."""
    if self.at >= len(self.tokens):
      return False
    token = self.tokens[self.at]
    if token.kind != "symbol":
      words = token.kind == "text" and len(token.text) != 1
      return not words and token.text not in ("to", "mod")
    return token.text in ("(", "[", "{", "\\{") or (token.text == "|")

  def factor(self):
    """An optional sign and a power."""
    sign = 1
    while self.peek("+", "-"):
      sign = -sign if self.take("+", "-") == "-" else sign
    value = self.power()
    if sign > 0:
      return value
    if isinstance(value, Fraction):
      mixed = self.at < len(self.tokens) and (
          self.tokens[self.at].text == "frac"
          or self.tokens[self.at].kind == "number"
      )
      if mixed:  # -1\frac12 is -(1 + 1/2)
        value = self.beside(value)
    return ("*", Fraction(-1), _scalar(value))

  def power(self):
    """A base and the exponent behind it, if there is one."""
    value, start = self.postfix(self.primary()), self.at
    if is_expression(value) and not isinstance(value, Fraction):
      if value[0] == "name" and self.peek("("):
        arguments = self.bracket()
        if _is_call(value[1], arguments, self.tokens[start : self.at]):
          return self.raised(self.postfix(_opaque(value[1], arguments)))
        self.read = start, self.at, arguments
        self.at = start
    return self.raised(value)

  def raised(self, value):
    """A base and the exponent behind it, if there is one."""
    if self.peek("^"):
      self.take("^")
      mark = self.mark()
      if mark:
        return self.postfix(_marked(value, mark))
      value = ("^", _scalar(value), _scalar(self.exponent()))
      value = self.postfix(value)
    return value

  def mark(self) -> str:
    """What stands raised but is no exponent: a prime, a star, a transpose."""
    end = self.at + (3 if self.peek("{") else 1)
    inside = [t.text for t in self.tokens[self.at : end] if t.text not in "{}"]
    if len(inside) != 1 or inside[0] not in _MARKS:
      return ""
    self.at = end
    return _MARKS[inside[0]]

  def exponent(self):
    """A group, or one signed factor: LaTeX takes only a digit of 2^10x."""
    sign = self.peek("-") and self.take("-")
    value = self.primary()
    if self.peek("^"):
      self.take("^")
      value = ("^", _scalar(value), _scalar(self.exponent()))
    return ("*", Fraction(-1), _scalar(value)) if sign else value

  def postfix(self, value):
    """Factorials, primes and degrees."""
    while self.peek("!", "'", "degree", "radians", "%", "\\%"):
      mark = self.take("!", "'", "degree", "radians", "%", "\\%")
      if mark == "!":
        double = self.peek("!") and self.take("!")
        value = ("factorial2" if double else "factorial", _scalar(value))
      elif mark == "'":
        value = _marked(value, "prime")
      elif mark == "degree":
        value = Quantity(value, "degree")
      elif mark == "radians":
        value = ("*", _scalar(value), _DEGREE)
      else:
        value = ("/", _scalar(value), Fraction(100))
    return value

  def group(self):
    """`{...}` as an expression; without braces one digit or letter."""
    if self.peek("{"):
      return self.bracket()
    if self.at >= len(self.tokens):
      raise Unreadable("an argument is missing")
    token = self.tokens[self.at]
    if token.kind in ("number", "word") and len(token.text) > 1:
      rest = token._replace(text=token.text[1:], spaced=False)
      if not token.text[0].isalnum() or token.text[1] == ".":
        raise Unreadable("an argument without braces")
      self.tokens = list(self.tokens)
      self.tokens[self.at : self.at + 1] = [
          token._replace(text=token.text[0]),
          rest,
      ]
    return self.primary()

  def closing(self) -> int:
    """Where the bracket that begins here ends."""
    depth = 0
    for end in range(self.at, len(self.tokens)):
      token = self.tokens[end]
      if token.kind == "symbol":
        depth += token.text in _OPENING
        depth -= token.text in (")", "]", "}", "\\}")
        if not depth:
          return end
    raise Unreadable(f"{self.tokens[self.at].text} is not closed")

  def bracket(self):
    """Any bracket and what it holds."""
    if self.read and self.read[0] == self.at:  # as the arguments of no call
      _, self.at, value = self.read
      return value
    opening, start, end = self.tokens[self.at].text, self.at + 1, self.closing()
    closing, inner = self.tokens[end].text, self.tokens[start:end]
    self.at = end + 1
    matched = _OPENING[opening] == closing
    if not matched and {opening, closing} - set("([)]"):
      raise Unreadable(f"{opening} closed by {closing}")
    if opening == "\\{" and not inner:
      return ("name", "emptyset")
    such_that = _split(inner, ("|", ":"))
    if (
        opening == "\\{"
        and len(such_that) == 2
        and (
            any(t.text in _RELATIONS for t in such_that[1])
            and such_that[0][0].kind == "word"
        )
    ):
      return _item(such_that[1], self.depth + 1)
    if opening == "\\{":
      return Seq("{}", _elements(inner, self.depth + 1))
    if opening == "{" and not inner:
      raise Unreadable("an empty group")
    if opening == "{" and len(_split(inner, (",", ";"))) > 1:
      return Seq("{}", _elements(inner, self.depth + 1))
    items = _elements(inner, self.depth + 1)
    if (
        opening == "["
        and matched
        and len(items) > 1
        and all(
            isinstance(row, Seq)
            and row.brackets == "[]"
            and len(row.items) == len(items[0].items)
            for row in items
        )
    ):
      return Matrix(tuple(row.items for row in items))
    if len(items) == 1 and matched:
      value = items[0]
      if isinstance(value, Relation | Union | Text):
        raise Unreadable("a relation in brackets")
      return value
    return Seq(opening + closing, items)

  def primary(self):
    """A number, a name, a call, or a bracket."""
    if self.at >= len(self.tokens):
      raise Unreadable("an end in the middle")
    token = self.tokens[self.at]
    if token.kind == "number":
      self.at += 1
      return self.repeating(token)
    if token.kind == "word":
      return self.letters(token)
    if token.kind == "text":
      self.at += 1
      return self.named(token.text)
    if token.text in ("(", "[", "{", "\\{"):
      return self.bracket()
    if token.text == "|":
      return self.between("|", "|", "abs")
    if token.kind == "command":
      return self.command(token.text)
    raise Unreadable(f"{token.text!r} here")

  def repeating(self, token):
    """A number; what is under a bar repeats."""
    value = number(token.text)
    if "." in token.text and self.peek("overline", "bar", "dot"):
      dot = self.take("overline", "bar", "dot") == "dot"
      digits = self.raw()
      if not digits.isdigit() or dot and len(digits) > 1:
        raise Unreadable("what repeats is no digits")
      places = len(token.text.partition(".")[2])
      value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
    return value

  def letters(self, token):
    """Letters side by side are a product; the last may have a subscript."""
    if token.text in ("exp", "sqrt"):
      return self.command(token.text)
    word = token.text
    if len(word) == 1:
      self.at += 1
      return self.named(word)
    self.tokens = list(self.tokens)
    self.tokens[self.at : self.at + 1] = [
        token._replace(text=letter, spaced=False) for letter in word
    ]
    return self.primary()

  def named(self, name):
    """A name with its subscript."""
    if self.peek("_"):
      self.take("_")
      name += "_" + self.raw()
    return ("name", name)

  def raw(self) -> str:
    """The text of a group that is not read: a subscript, a repeated part."""
    start, depth = self.at, 0
    while self.at < len(self.tokens):
      text = self.tokens[self.at].text
      depth += (text == "{") - (text == "}")
      self.at += 1
      if not depth:
        return "".join(
            t.text for t in self.tokens[start : self.at] if t.text not in "{}"
        )
    raise Unreadable("an argument is missing")

  def between(self, opening, closing, function):
    """`|x|`, floors and ceilings."""
    self.take(opening)
    depth = 0
    for end in range(self.at, len(self.tokens)):
      token = self.tokens[end]
      if token.kind in ("symbol", "command"):
        if token.text == closing and not depth:
          break
        depth += token.text in (*_OPENING, opening)
        depth -= token.text in (")", "]", "}", "\\}", closing)
    else:
      raise Unreadable(f"{opening} is not closed")
    inner = self.tokens[self.at : end]
    self.at = end + 1
    return (function, _scalar(_expression(inner, self.depth + 1)))

  def command(self, name):
    """Fractions, roots, functions, matrices, names."""
    if name == "lfloor":
      return self.between("lfloor", "rfloor", "floor")
    if name == "lceil":
      return self.between("lceil", "rceil", "ceil")
    self.at += 1
    if name == "frac":
      return ("/", _scalar(self.group()), _scalar(self.group()))
    if name == "binom":
      return ("binom", _scalar(self.group()), _scalar(self.group()))
    if name == "sqrt":
      if self.peek("["):
        degree = _scalar(self.bracket())
        return ("^", _scalar(self.group()), ("/", Fraction(1), degree))
      return ("sqrt", _scalar(self.group()))
    if name == "begin":
      return self.matrix()
    if name in ("max", "min", "gcd", "lcm") and self.peek("(", "\\{"):
      items = getattr(self.bracket(), "items", ())
      return _opaque(name, *sorted(items, key=repr))
    if name in ("angle", "triangle", "measuredangle"):
      return ("name", f"angle {self.raw()}")
    if name in ("mathbb", "mathfrak", "mathcal"):
      return self.named(f"{name} {self.raw()}")
    if name in _DECORATIONS:
      return self.named(f"{name} {self.raw()}")
    if name in FUNCTIONS or name in ("abs", "floor", "ceil"):
      return self.call(name)
    if name in lexer.NAMES:
      return self.named(name)
    if len(name) == 1:
      return self.named(name)
    raise Unreadable(f"the command {name!r}")

  def call(self, name):
    """A function of what stands in brackets or beside it."""
    base = power = None
    if self.peek("_"):
      self.take("_")
      base = _scalar(self.group())
    if self.peek("^"):
      self.take("^")
      power = _scalar(self.group())
      if power == ("*", Fraction(-1), Fraction(1)) and name in _INVERSE:
        name, power = _INVERSE[name], None
    if self.peek("(", "{", "["):
      if name in _OF_ANGLES:
        self.angle()
      argument = _scalar(self.bracket())
    else:
      argument = self.argument(name in _OF_ANGLES)
    if base is not None and name == "log":
      value = ("/", ("log", argument), ("log", base))
    elif base is not None:
      raise Unreadable("a subscript of a function")
    elif name == "lg":
      value = ("/", ("log", argument), ("log", Fraction(10)))
    else:
      value = (name, argument)
    return value if power is None else ("^", value, power)

  def argument(self, angle: bool):
    """What `sin 2x` is the sine of: factors up to a sign or a function."""
    value = self.factor()
    if angle and isinstance(value, Quantity) and value.unit == "degree":
      value = ("*", _scalar(value), _DEGREE)
    value = _scalar(value)
    while self.starts() and not (
        self.tokens[self.at].kind == "command"
        and self.tokens[self.at].text in FUNCTIONS
    ):
      if self.tokens[self.at].text in ("(", "["):
        break
      value = ("*", value, _scalar(self.power()))
    return value

  def matrix(self):
    """An environment, after its `begin`."""
    start = self.at
    self.at += 3
    kind = "".join(t.text for t in self.tokens[start : self.at])
    if kind not in ("{pmatrix}", "{bmatrix}", "{matrix}", "{array}"):
      raise Unreadable(f"the environment {kind}")
    if kind == "{array}" and self.peek("{"):
      self.bracket()
    start = self.at
    while not self.peek("end"):
      if self.at >= len(self.tokens) or self.peek("begin"):
        raise Unreadable("a matrix is not closed")
      self.at += 1
    inner = self.tokens[start : self.at]
    self.at += 4
    rows = [row for row in _split(inner, ("\\\\",)) if row]
    cells = [_split(row, ("&",)) for row in rows]
    if not cells or len(cells) * len(cells[0]) > MAX_ITEMS:
      raise Unreadable("an empty or a huge matrix")
    if any(len(row) != len(cells[0]) for row in cells):
      raise Unreadable("rows of unequal length")
    return Matrix(
        tuple(
            tuple(_scalar(_quantity(cell, self.depth + 1)) for cell in row)
            for row in cells
        )
    )


_DEGREE = ("/", ("name", "pi"), Fraction(180))
_OF_ANGLES = frozenset("sin cos tan cot sec csc".split())
_INVERSE = dict(sin="asin", cos="acos", tan="atan")
