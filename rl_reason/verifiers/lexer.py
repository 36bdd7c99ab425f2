r"""Cuts an answer, LaTeX or plain, into tokens; looks are dropped here.

Spellings of one thing become one token: `\\times`, `\u00d7` and `*` are `*`,
`\\dfrac` is `frac`, `1{,}000` is `1000`. Nothing is evaluated.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 2_000
MAX_DIGITS = 4_000


class Unreadable(Exception):
  """The grammar does not know this; says what."""


class Token(NamedTuple):
  """A piece of the text; `spaced` if white space stands before it."""

  kind: str  # number, word, text, command, symbol
  text: str
  spaced: bool


def _table(text: str) -> dict[str, str]:
  """`new: old old; ...` as old -> new."""
  pairs = (part.split(": ") for part in text.replace("\n", " ").split(";"))
  return {old: new.strip() for new, olds in pairs for old in olds.split()}


_CHARS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00d7\u22c5\u2217\u00b7\u2219", "*"),
        **dict.fromkeys("\u00f7\u2215\u2044", "/"),
        **dict.fromkeys("\u200b\u200e\u200f\u2060\ufeff", ""),
        **{
            old: f"\\{new} "
            for old, new in zip(
                "\u221a\u03c0\u03b8\u03b1\u03b2\u03bb\u221e\u2264\u2265"
                "\u2260\u2248"
                "\u222a\u2208\u2205\u211d\u00b1\u2213\u00b0\u20ac\u00a3\u00a5"
                "\u20b9\u221b",
                "sqrt pi theta alpha beta lambda infty le ge ne approx cup in"
                " emptyset mathbb{R} pm mp circ euro pound yen rupee"
                " sqrt[3]".split(),
                strict=True,
            )
        },
        **{
            char: f" {value.numerator}/{value.denominator}"
            for char in map(chr, [*range(0xBC, 0xBF), *range(0x2153, 0x215F)])
            for value in [
                Fraction(unicodedata.numeric(char)).limit_denominator(10)
            ]
        },
    }
)
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b\u207f"
_LOWERED = "\u2080-\u2089"

# One name for commands that mean the same.
_COMMANDS = _table("""
    frac: dfrac tfrac cfrac; binom: dbinom tbinom; *: cdot times ast; /: div;
    <=: le leq leqslant; >=: ge geq geqslant; !=: ne neq; <: lt; >: gt;
    =: approx equiv; \\{: lbrace; \\}: rbrace; [: lbrack; ]: rbrack;
    |: lvert rvert vert mid; emptyset: varnothing; degree: circ; ,: land lor;
    asin: arcsin; acos: arccos; atan: arctan; infinity: infty inf oo;
    (: langle; ): rangle; phi: varphi; epsilon: varepsilon; log: ln; cup: union
""")
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log lg".split()
)
NAMES = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi"
    " rho sigma tau phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi"
    " Psi Omega ell hbar aleph pi infinity emptyset".split()
)
# Words that are commands without a backslash as well.
_PLAIN = FUNCTIONS | frozenset(
    "pi sqrt infinity oo inf abs arcsin arccos arctan ln theta cup union"
    " alpha beta lambda floor ceil".split()
)
_STYLES = (
    r"text|mbox|hbox|bm|boldsymbol|textbf|textit|textrm|mathrm|mathbf|mathit"
    r"|mathsf"
)
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+(?:\.(?!\.)\d*)?(?:[eE][+-]?\d{1,4}(?![\d.]))?|\.\d+)"
    rf"|(?P<text>\\(?:{_STYLES})\s*\{{[^{{}}]*\}})"
    r"|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<symbol>\\\\|\\[{}|%$]|\*\*|<=|>=|!=|[-+*/^_=<>()\[\]{}|,;:!%$&'])",
    re.ASCII,
)
# A comma in a number; where brackets are, it may part their items as well.
_COMMAS = re.compile(
    r"\\?\$?\s*[-+]?\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?(?:\s*[^\d,]*)?"
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_LOOKS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:display|text|script)style\b|\\(?:no)?limits\b", " "),
        (r"\\(?:tiny|small|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])", " "),
        (r"\\(?:textcolor|color)\s*\{[a-zA-Z]+\}|\\underline(?=\s*\{)", " "),
        (r"\\colon(?![a-zA-Z])", ":"),
        *[
            (
                rf"\{{([^{{}}\\]*)\\{old}\s*([^{{}}\\]*)\}}",
                rf"\\{new}{{\1}}{{\2}}",
            )
            for old, new in dict(choose="binom", over="frac").items()
        ],
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
        (r"\\mathrm\s*\{\s*([ei])\s*\}", r" \1 "),  # constants, no text
    )
]
# Digits in groups of three: 1,234 or 1 234, and nothing else in the answer.
_SPACES = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?![\d./ ])")


def clean(text: str) -> str:
  r"""The answer without what only changes its looks.

  Raises:
    Unreadable: it is too long.
  """
  if len(text) > MAX_CHARS:
    raise Unreadable("too long")
  text = re.sub("([\u221a\u221b])\\s*(\\d+)", r"\1{\2}", text)
  text = text.translate(_CHARS)
  for mark, digits in (("^", _RAISED), ("_", _LOWERED)):
    text = re.sub(f"[{digits}]+", rf"{mark}{{\g<0>}}", text)
  text = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
  for pattern, replacement in _LOOKS:
    text = pattern.sub(replacement, text)
  if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
    text = re.sub(r"(?<!\\)\$", " ", text)  # around formulas; else it is money
  text = text.strip()
  whole = re.fullmatch(rf"\\(?:{_STYLES})\s*\{{([^{{}}]*)\}}", text)
  text = (whole[1] if whole else text).strip()
  if _COMMAS.fullmatch(text) or not re.search(r"[(\[{]", text):
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
  spaced = _SPACES.match(text)
  if spaced:
    text = spaced[0].replace(" ", "") + text[spaced.end() :]
  return text if text.endswith("..") else text.rstrip(".,; \\")


def tokens(text: str) -> list[Token]:
  """The pieces of an answer that `clean` gave, spellings unified.

  Raises:
    Unreadable: a character that no answer needs, such as a null byte or a mark
      that shows text in another order than it is stored.
  """
  out, at, spaced = [], 0, False
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
      if piece in ("and", "or", ", and", ", or", "and/or", ","):
        kind, piece = "symbol", ","
    elif kind == "command":
      piece = _COMMANDS.get(piece[1:], piece[1:])
      if not piece.isalpha() or piece == "in":
        kind = "symbol"
    elif kind == "word":
      if piece.lower() in ("and", "or"):
        kind, piece = "symbol", ","
      elif piece == "in" and not (out and out[-1].kind == "number"):
        kind = "symbol"  # but 5 in: inches
      elif piece in _PLAIN:
        kind, piece = "command", _COMMANDS.get(piece, piece)
    elif piece == "**":
      piece = "^"
    if piece == "," and out and out[-1].text == "," and kind == "symbol":
      continue  # ", and"
    out.append(Token(kind, piece, spaced))
    spaced = False
  return out


def number(text: str) -> Fraction:
  """Exact value of digits, perhaps with a point and an exponent."""
  if len(text) > MAX_DIGITS:
    raise Unreadable("too many digits")
  return Fraction(text.rstrip(".") if text[-1] == "." else text)
