r"""Words in an answer, or in place of one, and their mathematical meaning.

"no solution" is the empty set, "5th" is 5, "k is an integer" is a domain. Other
words are kept, since they may change the answer.
"""

import math
import re
from fractions import Fraction
from typing import Any

from rl_reason.verifiers import lexer
from rl_reason.verifiers.value_types import EMPTY, Quantity, Seq

MAX_WORDS = 120  # characters; the words of longer texts are not read
_TEXT = re.compile(r"\\(?:text|textrm|textit|mbox|hbox|mathrm)\s*\{([^{}]*)\}")
_EMPTY = re.compile(
    r"(?:there (?:is|are|exists?) )?no (?:(?:(?:real|integer|such|valid"
    r"|possible|rational) )*(?:solutions?|roots?)|such \w+)(?: exists?)?"
    r"|none|(?:empty|null) set"
)
_ABSENT = re.compile(
    r"(?:(?:this )?limit )?(?:do(?:es)?(?: not|nt|n t) exist|dne)"
)
_INFINITE = re.compile(r"infinitely many(?: solutions?)?")
_ONES = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth"
    " eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth"
    " eighteenth nineteenth twentieth"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {word: n for n, word in enumerate(_ONES)} | {
    f"{ten} {one}": 10 * n + m
    for n, ten in enumerate(_TENS, 2)
    for m, one in enumerate(_ONES[1:10], 1)
}
_NUMBERED = re.compile(r"(?:the )?(\d{1,9}) ?\^? ?\{? ?(st|nd|rd|th) ?\}?")


def plain(text: str) -> str:
  """The text with the content of text commands in place of the commands."""
  return " ".join(_TEXT.sub(r" \1 ", text).split())


_BASES = (
    "zero one two three four five six seven eight nine ten eleven twelve - - -"
    " sixteen".split()
)


def _verbatim(text: str) -> Fraction | tuple | str | None:
  """Digits in a base, times of day and (C), which are compared as text."""
  bare = re.sub(r"\\(?:text|mbox|mathrm)(?![a-z])|[{}\s]", "", text)
  based = re.fullmatch(
      r"(-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)(?:_|_?(?:in)?base)(\d{1,2}|[a-z]+)",
      re.sub(r"[()]", "", bare),
  )
  if based and (re.search(r"\d", based[1]) or based[0][2:].endswith("_16")):
    name = based[2] if based[2] in _BASES else "zero"
    base = int(based[2]) if based[2].isdigit() else _BASES.index(name)
    digits = re.sub(r"^(-?)0+(?=\w)", r"\1", based[1].upper())
    values = [int(digit, 16) for digit in re.sub(r"[-.]", "", digits)]
    if 2 <= base <= 16 and max(values) < base:
      return lexer.number(based[1]) if base == 10 else f"{digits}_{base}"
  time = bare.replace(".", "").lower()
  if re.fullmatch(r"\d{1,2}(?::\d\d)?[ap]m", time):
    return time
  choice = re.fullmatch(r"\(\(?([A-Z])\)?\)", bare)
  return ("name", choice[1]) if choice else None


def fold(text: str) -> str:
  """Words without case, articles, punctuation and double spaces."""
  text = re.sub(r"\\[a-zA-Z]+", " ", text).casefold()
  words = re.findall(r"[^\W_]+", text)
  content = [word for word in words if word not in ("the", "a", "an")]
  return " ".join(content or words)


def value(text: str) -> Any:
  """The value of words that stand for a value; None for other texts."""
  verbatim = _verbatim(text)
  if verbatim is not None:
    return verbatim
  text = plain(text)
  clock = re.fullmatch(r"(\d|[01]\d|2[0-4]) ?: ?([0-5]\d)", text)
  if clock:
    hours, minutes = int(clock[1]), int(clock[2])
    if clock[2][0] == "0":
      return f"{hours}:{clock[2]}"
    # 10:30 is a time, not the ratio 1:3; 3:10 may be a ratio.
    if math.gcd(hours, minutes) > 1:
      return Seq("clock", (Fraction(hours), Fraction(minutes)))
  numbered = _NUMBERED.fullmatch(text)
  if numbered:
    tail = int(numbered[1]) % 100
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(tail % 10, "th")
    if numbered[2] == ("th" if 10 < tail < 20 else suffix):
      return Quantity(lexer.number(numbered[1]), "ordinal")
  if not re.fullmatch(r"[a-zA-Z ,.'-]+", text):
    return None
  words = fold(text.replace("'", " "))
  if words in _ORDINALS and not re.match(r"an? ", text):
    return Quantity(Fraction(_ORDINALS[words]), "ordinal")
  if _EMPTY.fullmatch(words):
    return EMPTY
  if _ABSENT.fullmatch(words):
    return "does not exist"
  if _INFINITE.fullmatch(words):
    return "infinitely many"
  return None


# --- words among formulas ----------------------------------------------------

# Words whose letters would be a product in order: `abc` and `mnp` are products.
_ENGLISH = frozenset(
    "act add ado age ago aim air all amp ant any apt art ask box boy bot boss"
    " bow bet bee beg best bit cost city cow cot cry dry deny dirt dip door egg"
    " elm empty end fit fix flow fly for fort foot foul hit hot how him his ill"
    " knot lot low lost loss most mop moss not now nor opt hop boot bell bill"
    " cell cost deer dim din dot fee few fin fir fist fog fox got gist gin hint"
    " his hip imp ink inn its joy job jot know".split()
)
_SHORT = frozenset(
    "am an as at be by do go he hi if in is it me my no of oh ok on or so to up"
    " us we".split()
)


MONTHS = frozenset(
    "january february march april may june july august september october"
    " november december".split()
)


def is_word(text: str, *, among_words: bool) -> bool:
  """Whether adjacent letters are a word of prose, not a product such as `abc`.

  Args:
    text: at least two letters.
    among_words: whether a space and a word or number is next to it. Two letters
      are a word only then: `ax + by` is algebra, "0 if x" is not.
  """
  lower = text.lower()
  if len(text) == 2:
    return among_words and lower in _SHORT
  if not re.search("[aeiou]", lower.rstrip("i")):
    return False  # mgh, xyz, PQR, 2xyi
  if len(text) < 5 and not text[1:].islower():
    return False  # ABCD, nRT
  codes = [ord(x) for x in lower]
  steps = [y - x for x, y in zip(codes, codes[1:], strict=False)]
  if max(steps) == min(steps) == 1:
    return False  # abcd
  return len(text) > 4 or min(steps) < 1 or lower in _ENGLISH


_ABOUT = r"(?<![\\a-zA-Z])(?:approximately|about|roughly|approx\.?)"
_SAME = r"(?:(?:or )?equivalently|i\. ?e\.|that is)(?: ?,)?"
_START = r"(?=[-\d\\({\[$.])"  # the start of a formula, not of a word
_REWRITES = [
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # An approximation.
        (r"^(.+?) ?\( ?\\approx (.+?) ?\)$", r"\1 \\approx \2"),
        (
            rf"^(.*[\d}})].*?) ?[,(]? ?(?:or |which is )?{_ABOUT} ({_START}.+?)"
            r" ?\)?$",
            r"\1 \\approx \2",
        ),
        # The same value in another form.
        (
            rf"^(.*[\d}})].*?) ?(?:\( ?{_SAME} (.+?) ?\)|,? ?{_SAME} (.+))$",
            r"\1 or \2\3",
        ),
        (r"^(.*\d.*?) ?\( ?or (.+?) ?\)$", r"\1 or \2"),
        # Sets of real numbers.
        (
            r"^(?:x is )?(?:all|any) real(?: numbers?|s)?(?: x)? ?,? ?"
            r"(?:except|other than|but|excluding)(?: for)?"
            r"(?: x ?=| zero$)? ?(.*)$",
            r"\\mathbb{R} \\setminus \\{ \1 \\}",
        ),
        (r"^(?:(?:all|any) )?positive real(?: number)?s?$", r"( 0 , \\infty )"),
        (
            r"^(?:(?:all|any) )?negative real(?: number)?s?$",
            r"( -\\infty , 0 )",
        ),
        (
            r"^(?:(?:all|any) )?non-?negative real(?: number)?s?$",
            r"[ 0 , \\infty )",
        ),
        (
            r"^(?:all|any) real(?: numbers?|s)?(?: such that)?"
            r" (?=[a-z] ?(?:[<>]|\\[gl]e|\\n?eq))",
            "",
        ),
        # An equation of a curve states no value.
        (
            r"^(?:the )?(?:line|plane|curve|circle|parabola|ellipse|hyperbola"
            r"|locus|graph|sphere|equation|asymptote|tangent)\b[a-zA-Z' ]*"
            r" (?:is|are|get|have) (\S[^=]*)=([^=]+)$",
            r"\1 - ( \2 ) = 0",
        ),
        # Words before or after a value that do not change it.
        (
            r"^(?:only|exactly|precisely|a total of|(?:[a-zA-Z]|[Tt]he [a-z]+)"
            rf" (?:is|are|equals)(?: equal to)?) {_START}",
            "",
        ),
        (
            r"^(?:the )?(?:point|set|solution set|vector|interval|ordered pair)"
            rf"s? {_START}",
            "",
        ),
        (r"^(.*[\d})].*) (?:only|in total|in all|altogether)$", r"\1"),
        (
            r"^(.*[\d})].*?) (?:is|are) the (?:only )?(?:possible )?"
            r"(?:values?|solutions?|answers?|roots?|possibility)$",
            r"\1",
        ),
        (
            r"^(.*[\d})].*?) ?\( ?(?:the )?only (?:real )?(?:solution|root"
            r"|value|answer|one|possibility) ?\)$",
            r"\1",
        ),
        (
            r"^(.+?) ?,? ?(?:where|for|with|,) [a-z] ?\\in ?\\mathbb\{R\}$",
            r"\1",
        ),
        (
            r"^(.+?) ?,? for (?:all|any|every)(?: real)?(?: numbers?"
            r"| values of)? [a-z]$",
            r"\1",
        ),
    )
]
_HEDGE = re.compile(r"\b(?:not|never|no|n't|least|most|than|less|more)\b")


def mathematics(text: str) -> str:
  """The text with words as formulas by `_REWRITES`, or unchanged."""
  text = re.sub(r"^\\approx\s*", "", text)
  words = plain(text)
  if len(words) > MAX_WORDS or _HEDGE.search(words):
    return text
  if not re.search(r"[a-zA-Z]{2}|i\.", words):
    return text
  out = words
  for pattern, replacement in _REWRITES * 2:  # one may enable another
    out = pattern.sub(replacement, out).strip(" ,;")
  return text if out == words else out.replace(r"\{  \}", r"\{ 0 \}")


_DOMAIN = re.compile(
    r"(.+?) ?(?:[,;:]|[,;(]? ?(?:where|for|with|and|\())"
    r" ?(?:where |for |with )?(?:(?:all|any|every|each|some) )?"
    r"(?:(?P<a>[a-z]) ?\\in ?(?P<domain>\\math(?:bb|bf) ?\{?[NZ]\}?|[NZ])"
    r"|(?P<b>[a-z]) (?:is|be) (?:an?y?|an arbitrary) integer"
    r"|integers?(?: values of)? (?P<c>[a-z])) ?\)?"
)
_CONGRUENCE = re.compile(
    r"(?:(?P<name>[a-z]) ?(?:\\equiv|=) ?)?(?P<rest>-?\d+(?: ?, ?-?\d+)*) ?\(?"
    r" ?(?:\\[pb]?mod|mod) ?\{? ?(?P<modulus>\d+) ?\}? ?\)?"
)
INTEGERS = ("name", "mathbb Z")


def number_set(value: Any) -> Any:
  r"""The set that a letter names after `\in`: Z is the integers."""
  letter = isinstance(value, tuple) and value[1:] in (("Z",), ("N",))
  return ("name", f"mathbb {value[1]}") if letter else value


def domain(text: str) -> tuple[str, str, Any]:
  r"""Splits `2k\pi, k \in \mathbb{Z}` into formula, variable and domain.

  A congruence is also such a family. Without a domain the variable is ''.
  """
  words = plain(text)
  found = _DOMAIN.fullmatch(words)
  if found and "\\{" not in found[1]:
    name = found["a"] or found["b"] or found["c"]
    letter = re.sub(r"[^NZ]", "", found["domain"] or "Z")
    return found[1], name, ("name", f"mathbb {letter}")
  congruent = _CONGRUENCE.fullmatch(words)
  if congruent:
    modulus = congruent["modulus"]
    rest = congruent["rest"].split(",")
    items = ", ".join(f"{x.strip()} + {modulus} k" for x in rest)
    return items, "k", INTEGERS
  return text, "", None
