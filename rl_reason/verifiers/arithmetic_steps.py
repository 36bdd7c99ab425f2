r"""Arithmetic steps of a response, and whether each is correct.

A step is an equation of numbers with an operation, plain or LaTeX: `12+5=17`,
`$\frac{1}{2} + \frac12 = 1$`, `3 \times 4 = 12`, `20% * 50 = 10`. `a = b = c`
has two steps. `parser` parses both sides, which are compared exactly: 10/3 is
not 3.33, only \approx 3.33. An equation with a variable or a word, or outside
of the grammar, is not a step.
"""

import functools
import itertools
import re
from fractions import Fraction

from rl_reason.verifiers import lexer, numeric, parser
from rl_reason.verifiers.value_types import is_expression

MAX_SIDE = 200  # characters; a longer side may be slow, and is no step
NEAR = 20  # characters of context before and after a run

# Markup and formatting.
_REWRITES = [
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"^[ \t]*(?:[-*+\u2022]|\d+[.)])[ \t]+", ""),  # of a list
        (r"\\[()\[\]]|\\boxed\b|\\?\$|&", " "),  # formulas, or money
        (r"\\\\(?![a-zA-Z])", "\n"),
        (r"(?<![\d)}])\*\*|\*\*(?![-(\d])", " "),  # bold, not a power
        (r"(?<=[\d)] )[xX](?= [(\d])", "*"),
        (r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))", ""),
    )
]
_RUN = re.compile(
    r"(?:[\d.,+\-*/^=(){}% \t\u2212\u2013\u00d7\u22c5\u00b7\u00f7]"
    r"|\\(?:[dt]?frac|times|cdot|div|left|right)(?![a-zA-Z])|\\[%,!;: ])+",
    re.ASCII,
)
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*\\?%")
# Commands between two formulas, or before a unit.
_APART = (
    r"(?:text|mathrm|mbox|q?quad|approx|[lg]eq?|implies|to|[rR]ightarrow"
    r"|therefore)(?![a-zA-Z])"
)
# Next to a run, these make it part of an expression without a value.
_BEFORE = re.compile(rf"\\(?!{_APART})[a-zA-Z]+$")
_AFTER = re.compile(rf"!|\\(?!{_APART})")
_WORD = re.compile(r"\w")
_SIGN = re.compile(r"[ \t]*[-+*/^\u2212\u2013\u00d7\u22c5\u00b7\u00f7]")


def verdicts(text: str) -> list[bool]:
  """Whether each step of a response is correct, in order."""
  return [correct for _, correct in steps(text)]


def steps(text: str) -> list[tuple[int, bool]]:
  """The steps of a response, in order.

  Returns:
    (end, correct) of each step: the number of characters of the text up to its
    last one, and whether the step is correct.
  """
  text, ends = _rewritten(text)
  out = []
  for run in _RUN.finditer(text):
    if "=" not in run[0]:
      continue
    # Only near characters: a search of the whole text would be quadratic.
    before = text[max(0, run.start() - NEAR) : run.start()]
    after = text[run.end() : run.end() + NEAR]
    equations = [x.split("=") for x in re.split(r"[.,](?=\s|$)", run[0])]
    lasts, at = [], run.start()
    for equation in equations:
      lasts.append([])
      for side in equation:
        lasts[-1].append(at + len(side.rstrip()))
        at += len(side) + 1
    # A side that continues beyond the run is not compared.
    if _begins_before(before, run[0]):
      equations[0][0] = ""
    if _AFTER.match(after) or run[0][-1] not in " \t" and _WORD.match(after):
      equations[-1][-1] = ""
    # An equation without any operation is not a step.
    for equation, found in zip(equations, lasts, strict=True):
      sides = zip(map(_side, _without_brackets(equation)), found, strict=True)
      out += [
          (ends[last - 1], bool(a[0] & b[0]))
          for (a, _), (b, last) in itertools.pairwise(sides)
          if a and b and (a[1] or b[1])
      ]
  return out


def _rewritten(text: str) -> tuple[str, list[int]]:
  """The text without markup, and the end of each of its characters.

  An end is the number of characters of the original text up to a character.
  """
  ends = list(range(1, len(text) + 1))
  for pattern, replacement in _REWRITES:
    kept, found, at = [], [], 0
    for match in pattern.finditer(text):
      start, end = match.span()
      kept += [text[at:start], replacement]
      found += ends[at:start] + [ends[end - 1]] * len(replacement)
      at = end
    text, ends = "".join(kept) + text[at:], found + ends[at:]
  return text, ends


def _begins_before(before: str, run: str) -> bool:
  """Whether the text before a run belongs to its first side."""
  return bool(
      (run[0] not in " \t" and _WORD.match(before[-1:]))
      or (_SIGN.match(run) and _WORD.match(before.rstrip(" \t")[-1:]))
      or _BEFORE.search(before)
  )


def _without_brackets(sides: list[str]) -> list[str]:
  """The sides, without brackets around the whole equation."""
  out = [x.strip() for x in sides]
  for opening, closing in ("()", "{}"):
    unclosed = out[0].count(opening) > out[0].count(closing)
    if unclosed and out[0][0] == opening and out[-1].endswith(closing):
      out[0], out[-1] = out[0][1:], out[-1][:-1]
  return out


@functools.lru_cache(maxsize=1 << 14)
def _side(text: str) -> tuple[frozenset[Fraction], bool] | None:
  """The possible values of a side, and whether it has an operation.

  25% is 1/4 or 25, and a division by zero has no value. None if the side is no
  arithmetic.
  """
  decimal = lexer.decimal(text)
  if decimal is not None:
    return frozenset([decimal]), False
  if not text or len(text) > MAX_SIDE:
    return None
  try:
    value = parser.read(_PERCENT.sub(r"(\1/100)", text))
    if not is_expression(value):
      return None
    exact = numeric.exact(value)
  except (lexer.Unreadable, RecursionError):
    return None
  except numeric.Hard:  # a division by zero
    return frozenset(), True
  if exact is None:
    return None
  bare = _PERCENT.fullmatch(text)
  values = {exact, Fraction(bare[1])} if bare else {exact}
  return frozenset(values), not bare and _operates(value)


def _operates(value) -> bool:
  """Whether a value has an operation other than a sign."""
  if isinstance(value, Fraction):
    return False
  signed = value[0] == "*" and value[1] == Fraction(-1)
  return _operates(value[2]) if signed else True
