r"""Splits an answer, LaTeX or plain, into tokens, without formatting.

Different spellings become one token: `\\times`, `\u00d7` and `*` are `*`,
`\\dfrac` is `frac`, `1{,}000` is `1000`. No text is evaluated.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 2_000
MAX_DIGITS = 4_000


class Unreadable(Exception):
  """The text is outside of the grammar; the message says where."""


class Token(NamedTuple):
  """A token; `spaced` if white space precedes it."""

  kind: str  # number, word, text, command, symbol
  text: str
  spaced: bool


def _table(text: str) -> dict[str, str]:
  """`new: old old; ...` as old -> new."""
  pairs = (part.split(": ") for part in text.replace("\n", " ").split(";"))
  return {old: new.strip() for new, olds in pairs for old in olds.split()}


OPENING = {"(": ")", "[": "]", "\\{": "\\}", "{": "}"}
CLOSING = frozenset(OPENING.values())
# Separators of the items of a list.
SEPARATORS = (",", ";", "and", "or")
# Commands that are operators, not names or functions.
_OPERATORS = frozenset("in cup cap setminus approx and or".split())
# Characters of Unicode as ASCII or as LaTeX.
_CHARS = str.maketrans(
    {
        **dict.fromkeys("\u200b\u200e\u200f\u2060\ufeff", ""),
        **_table("""
        -: \u2212 \u2010 \u2011 \u2012 \u2013 \ufe63 \uff0d;
        *: \u00d7 \u22c5 \u2217 \u00b7 \u2219; /: \u00f7 \u2215 \u2044
    """),
        **{char: f"\\{name} " for char, name in _table("""
            sqrt: \u221a; sqrt[3]: \u221b; pi: \u03c0; theta: \u03b8;
            alpha: \u03b1; beta: \u03b2; lambda: \u03bb; infty: \u221e;
            le: \u2264; ge: \u2265; ne: \u2260; approx: \u2248; cup: \u222a;
            in: \u2208; dots: \u2026; emptyset: \u2205; mathbb{R}: \u211d;
            pm: \u00b1; mp: \u2213; circ: \u00b0; euro: \u20ac; pound: \u00a3;
            yen: \u00a5; rupee: \u20b9
        """).items()},
    }
)
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b\u207f"
_LOWERED = "\u2080-\u2089"

# One name for commands with the same meaning.
_COMMANDS = _table("""
    frac: dfrac tfrac cfrac; binom: dbinom tbinom; *: cdot times ast; /: div;
    <=: le leq leqslant; >=: ge geq geqslant; !=: ne neq; <: lt; >: gt;
    =: equiv; \\{: lbrace; \\}: rbrace; [: lbrack; ]: rbrack;
    |: lvert rvert vert mid; emptyset: varnothing; degree: circ;
    asin: arcsin; acos: arccos; atan: arctan; infinity: infty inf oo; and: land;
    or: lor; setminus: backslash; dots: ldots cdots dotsb dotsc dotsm dotso;
    (: langle; ): rangle; phi: varphi; epsilon: varepsilon; log: ln; cup: union
""")
TRIGONOMETRIC = frozenset("sin cos tan cot sec csc".split())
FUNCTIONS = TRIGONOMETRIC.union(
    "asin acos atan sinh cosh tanh exp log lg".split()
)
NAMES = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi"
    " rho sigma tau phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi"
    " Psi Omega ell hbar aleph pi infinity emptyset".split()
)
# Words that are commands even without a backslash.
_PLAIN = FUNCTIONS | frozenset(
    "pi sqrt infinity oo inf abs arcsin arccos arctan ln theta cup union"
    " alpha beta lambda floor ceil".split()
)
STYLES = (
    r"text|mbox|hbox|bm|boldsymbol|textbf|textit|textrm|mathrm|mathbf|mathit"
    r"|mathsf"
)
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+(?:\.(?!\.)\d*)?(?:[eE][+-]?\d{1,4}(?![\d.]))?|\.\d+)"
    rf"|(?P<text>\\(?:{STYLES})\s*\{{[^{{}}]*\}})"
    r"|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<symbol>\\\\|\\[{}|%$]|\*\*|<=|>=|!=|[-+*/^_=<>()\[\]{}|,;:!%$&'])",
    re.ASCII,
)
# An answer that is one number with commas, which brackets would make ambiguous.
_COMMAS = re.compile(
    r"\\?\$?\s*[-+]?\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?(?:\s*[^\d,]*)?"
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"\\(?:(?:display|text|script)style\b|(?:no)?limits\b"
            r"|(?:tiny|small|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])"
            r"|(?:textcolor|color)\s*\{[a-zA-Z]+\}|underline(?=\s*\{))",
            " ",
        ),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\{([^{}\\]*)\\choose\s*([^{}\\]*)\}", r"\\binom{\1}{\2}"),
        (r"\{([^{}\\]*)\\over\s*([^{}\\]*)\}", r"\\frac{\1}{\2}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))", "*"),  # 1.2 x 10^5
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?", ""),
        (r"(?<!\\)\\[()\[\]]|\$\$", " "),
        (
            r"(?<=\d)(?:\{,\}|,\\!|\\[,!; ]|~|\\thinspace\b)\s*(?=\d{3}(?!\d))",
            "",  # 1{,}000, 18,\!107, 1\,234
        ),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;:> \n]|~|\\q?quad(?![a-z])|\\thinspace\b", " "),
        (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])", r"\\degree "),
        *[
            (
                r"\\(?:degree|circ)\s*(?:\\(?:text|mathrm)\s*)?"
                rf"(?:\{{\s*{name[0]}\s*\}}|{name[0]}(?![a-zA-Z]))",
                rf"\\text{{{name}}}",
            )
            for name in ("Celsius", "Fahrenheit")
        ],
        (r"\{\s*\\(?:rm|bf|it)\s+", r"\\mathrm{"),
        (r"\\operatorname\*?\s*\{([a-z]+)\}", r"\\\1 "),
        # Unit vectors; a bold i is not the imaginary one.
        (
            r"\\(?:mathbf|boldsymbol|bm|hat|vec|overrightarrow)\s*\{?\s*"
            r"(?:\\([ij])math|([ijk]))(?![a-zA-Z])\s*\}?",
            r"\\hat{\1\2}",
        ),
        (r"\\mathbb\s*R(?![a-zA-Z])", r"\\mathbb{R}"),
        (r"(?<=[)\]}])\s*U\s*(?=[(\[{\\])", r" \\cup "),
        (r"(?<=\\mathbb\{R\})\s*-\s*(?=\\\{)", r"\\setminus "),
        (r"\.\.\.+(?!\s*$)", r"\\dots "),
        (r"\\mathrm\s*\{\s*([ei])\s*\}", r" \1 "),  # constants, no text
    )
]
# Digits in groups of three, as in 1 234, at the start of the answer.
_SPACES = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?![\d./ ])")


# Half-open intervals by brackets that face outwards: ]0, 1].
_REVERSED = re.compile(
    r"(?<![\w)}\]])([\[\]])([^\[\]();]*,[^\[\]();]*)([\[\]])(?![\w({\[])"
)


def _interval(match: re.Match) -> str:
  """The interval with round brackets where its end is open."""
  opening = "[" if match[1] == "[" else "("
  closing = "]" if match[3] == "]" else ")"
  return f"{opening}{match[2]}{closing}"


def clean(text: str) -> str:
  r"""Returns the answer without formatting.

  Raises:
    Unreadable: the answer is too long.
  """
  if len(text) > MAX_CHARS:
    raise Unreadable("too long")
  text = re.sub("([\u221a\u221b])\\s*(\\d+)", r"\1{\2}", text)
  text = re.sub("([\u00bc-\u00be\u2153-\u215e])", r" \1", text)  # 1\u00bd
  text = text.translate(_CHARS)
  for mark, digits in (("^", _RAISED), ("_", _LOWERED)):
    text = re.sub(f"[{digits}]+", rf"{mark}{{\g<0>}}", text)
  text = unicodedata.normalize("NFKC", text).translate(_CHARS)
  for pattern, replacement in _REWRITES:
    text = pattern.sub(replacement, text)
  if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
    text = re.sub(r"(?<!\\)\$", " ", text)  # around formulas, not money
  text = text.strip()
  text = _REVERSED.sub(_interval, text)
  wrapped = re.fullmatch(rf"\\(?:{STYLES})\s*\{{([^{{}}]*)\}}", text)
  text = (wrapped[1] if wrapped else text).strip()
  if _COMMAS.fullmatch(text) or not re.search(r"[(\[{]", text):
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
  spaced = _SPACES.match(text)
  if spaced:
    text = spaced[0].replace(" ", "") + text[spaced.end() :]
  return text if text.endswith("..") else text.rstrip(".,;: \\")


def tokens(text: str) -> list[Token]:
  """Returns the tokens of an answer that went through `clean`.

  Raises:
    Unreadable: the answer has an unexpected character, such as a null byte or a
      mark that changes the direction of text.
  """
  out: list[Token] = []
  at, spaced = 0, False
  while at < len(text):
    match = _TOKEN.match(text, at)
    if not match:
      raise Unreadable(f"the character {text[at]!r}")
    at = match.end()
    kind, piece = str(match.lastgroup), match[0]
    if kind == "space":
      spaced = True
      continue
    if kind == "text":
      piece = piece[piece.index("{") + 1 : -1].strip()
      if piece.strip(", ") in ("and", "or", "and/or", ""):
        kind, piece = "symbol", piece.strip(", ")[:3].rstrip("/") or ","
      elif piece == "to":
        kind, piece = "symbol", ":"
    elif kind == "word" and piece.lower() in ("and", "or"):
      kind, piece = "symbol", piece.lower()
    elif piece == "to" and out and out[-1].kind == "number":
      kind, piece = "symbol", ":"
    elif kind == "word" and piece == "in":
      inches = bool(out) and out[-1].kind == "number"  # 5 in
      kind = kind if inches else "symbol"
    elif kind == "command" or piece in _PLAIN:
      piece = piece.removeprefix("\\")
      piece = _COMMANDS.get(piece, piece)
      word = piece.isalpha() and piece not in _OPERATORS
      kind = "command" if word else "symbol"
    elif piece == "**":
      piece = "^"
    if (
        kind == "symbol"
        and piece in SEPARATORS
        and out
        and (out[-1].kind == "symbol" and out[-1].text == ",")
    ):
      out.pop()  # ", and"
    out.append(Token(kind, piece, spaced))
    spaced = False
  return out


def split(tokens, separators) -> tuple[list[list[Token]], tuple[str, ...]]:
  """Splits at separators outside of brackets; also returns the separators."""
  parts, found, depth = [[]], [], 0
  for token in tokens:
    if token.kind == "symbol":
      depth += (token.text in OPENING) - (token.text in CLOSING)
      if not depth and token.text in separators:
        found.append(token.text)
        parts.append([])
        continue
    parts[-1].append(token)
  return parts, tuple(found)


def number(text: str) -> Fraction:
  """Returns the exact value of digits, perhaps with a point and an exponent."""
  if len(text) > MAX_DIGITS:
    raise Unreadable("too many digits")
  return Fraction(text.rstrip("."))


_DECIMAL = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,18})(?:\.\d{1,18})?\.?", re.ASCII
)


def decimal(text: str) -> Fraction | None:
  """The value of a decimal number such as `-1,234.5`; None for other texts.

  Most answers are decimal numbers, and need no parser.
  """
  if len(text) > MAX_CHARS or not _DECIMAL.fullmatch(text):
    return None
  return number(text.replace(",", ""))
