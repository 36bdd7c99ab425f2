"""Answers outside of the grammar of `parser`, compared by math-verify.

Only whitelisted text reaches the LaTeX parser of math-verify, by an entry point
that executes no text.
"""

import functools
import logging
import re

from rl_reason.verifiers import lexer

# Commands that may reach the parser of math-verify. Each builds an expression
# that math-verify can compare, and none can name a Python object.
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
  """The text for math-verify; None if any part of it is not whitelisted."""
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


@functools.cache
def _library():
  """math-verify, without its warning that calls have no time limit."""
  import math_verify

  def keep(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Timeout is disabled")

  for name in ("parser", "grader"):
    logging.getLogger(f"math_verify.{name}").addFilter(keep)
  return math_verify


def equal(found: str, reference: str) -> bool:
  """Whether math-verify finds two answers equal; False if not whitelisted."""
  texts = _admitted(found), _admitted(reference)
  if None in texts:
    return False
  math_verify = _library()
  try:
    # Only LaTeX: for plain expressions math-verify calls `parse_expr`. Its time
    # limits are signals, which need the main thread; `workers` limits the time.
    parsed = [
        math_verify.parse(
            f"${text}$",
            [math_verify.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        for text in texts
    ]
    return all(parsed) and bool(
        math_verify.verify(parsed[1], parsed[0], timeout_seconds=None)
    )
  except Exception:  # sympy may raise anything
    return False
