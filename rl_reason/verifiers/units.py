"""Units of measurement: which words are units, and which units are equal."""

import re

from rl_reason.verifiers import phrases
from rl_reason.verifiers.lexer import TRIGONOMETRIC

# Canonical name of a unit: other spellings, without the plural s. Any other
# word is a noun ("apples"), and all nouns are equal.
_SPELLINGS = """
    cm: centimeter centimetre; mm: millimeter millimetre; m: meter metre;
    km: kilometer kilometre; in: inch inches; ft: foot feet; yd: yard; mi: mile;
    g: gram gm; kg: kilogram; mg: milligram; lb: lbs pound; oz: ounce;
    s: sec second; min: minute; h: hr hour; day: ; week: ; month: ; year: yr;
    l: L liter litre; ml: mL milliliter millilitre; dollar: usd buck;
    euro: eur; cent: ; %: percent pct percentage; degree: deg;
    radian: rad; mi/h: mph; N: newton; J: joule; W: watt; V: volt; K: kelvin;
    Hz: hertz; celsius: ; fahrenheit: ; gbp: ; yen: ; rupee: ;
    A: ampere amp; north: ; south: ; east: ; west:
"""
UNITS = {
    spelling: name
    for name, _, others in (
        part.strip().partition(":") for part in _SPELLINGS.split(";")
    )
    for spelling in [name, *others.split()]
}
POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_MONEY = {
    **{"\\$": "dollar", "$": "dollar", "USD": "dollar", "EUR": "euro"},
    **{"euro": "euro", "pound": "gbp", "yen": "yen", "rupee": "rupee"},
}
# Words that change or qualify the value: a phrase with such a word is no unit.
_NO_UNITS = frozenset(
    "or and not no never but either maybe perhaps if is isn was are equals"
    " wrong incorrect impossible undefined invalid unknown excluded extraneous"
    " cannot can fails false rejected unlikely than less more about"
    " approximately unless except when where for plus minus times over"
    " divided by thousand million billion"
    " trillion hundred dozen half third fourth fifth sixth seventh eighth ninth"
    " tenth hundredth thousandth base binary octal hexadecimal factorial"
    " inverse below above under negative"
    " the january february march april may june july august september october"
    " november december".split()
)


def unit(words: list[str], power: str) -> str:
  """Returns the canonical name of a unit; '' if the words are not a unit."""
  if not words or len(words) > 5:
    return ""
  if any(
      {w, w.removesuffix("s")} & _NO_UNITS for w in map(str.casefold, words)
  ):
    return ""
  if words[-1].isdigit():  # s2, of s^2
    power = words.pop()
  for word in words[:-1]:
    power = POWERS.get(word.casefold(), "")[1:] or power
  if words[-1] in ("squared", "cubed"):
    power = "2" if words.pop() == "squared" else "3"
  if not words:
    return ""
  names = []
  for word in words:
    single = word[:-1] if word.endswith("s") and len(word) > 3 else word
    for spelling in (word, word.casefold(), single, single.casefold()):
      if spelling in UNITS and (len(word) > 1 or spelling == word):
        names.append(UNITS[spelling])
        break
  if not names:
    return "noun"
  names = [name for name in names if name != "degree"] or names  # of Celsius
  return "/".join(names) + (f"^{power}" if power else "")


def split(tokens, *, nested: bool) -> tuple[list, str]:
  """Splits the tokens of an item into its expression and its unit's name.

  Without a unit the name is ''. In brackets (`nested`) only money, percent and
  degrees are units.
  """
  tokens, money = list(tokens), ""
  if tokens[0].text in _MONEY and len(tokens) > 1:
    money = _MONEY[tokens.pop(0).text]
  elif [t.text for t in tokens[:2]] in (["-", "\\$"], ["-", "$"]):
    money = _MONEY[tokens.pop(1).text]
  while len(tokens) > 1 and tokens[-1].text in _MONEY:
    money = money or _MONEY[tokens[-1].text]
    tokens.pop()
  start, found = (0, "") if nested else _find(tokens)
  if found:
    return tokens[:start], found
  last = tokens[-1].text
  if len(tokens) > 1 and last in ("%", "\\%", "degree"):
    # The sine of 30 degrees is a number, not an angle.
    if last != "degree" or not TRIGONOMETRIC & {t.text for t in tokens}:
      return tokens[:-1], last.lstrip("\\")
  return tokens, money


def _find(tokens) -> tuple[int, str]:
  """Start and name of the unit at the end of the tokens; the name may be ''."""
  end = len(tokens)
  power = re.search(r"\^\{?([23])\}?$", "".join(t.text for t in tokens))
  if power and tokens[-1].kind != "text":
    end -= 4 if tokens[-1].text == "}" else 2
    if tokens[end - 1].kind not in ("text", "word"):
      return 0, ""
  else:
    power = None
  start = end
  while start > 1 and _in_unit(tokens, start - 1, start == end):
    start -= 1
  words = [w for t in tokens[start:end] for w in re.findall(r"\w+", t.text)]
  return start, unit(words, power[1] if power else "")


def _in_unit(tokens, index, last) -> bool:
  """Whether a token may belong to the unit at the end of an item."""
  token, before = tokens[index], tokens[index - 1]
  known = token.text in UNITS
  if token.kind == "text":
    vector = len(token.text) == 1 and not known
    return not vector and bool(re.fullmatch(r"\D+(?:\^-?\d)?", token.text))
  if token.kind == "symbol":
    return token.text == "/" and not last and index > 1
  if token.kind != "word":
    return False
  if len(token.text) > (1 if known or token.text in POWERS else 2):
    if before.text in ("+", "-", "*", "^", "_"):
      return False
    single = token.text.removesuffix("s") in UNITS
    noun = known or single or phrases.is_word(token.text, among_words=True)
    return token.spaced or noun and before.kind == "number"  # 2xyz has none
  if not known or before.text in ("+", "-", "*", "^", "_"):
    return False
  if before.text == "/":
    return index > 1 and tokens[index - 2].text in UNITS  # km/h
  # After a variable, a single letter is a variable as well.
  return token.spaced and all(
      t.kind in ("number", "symbol") or t.text in ("pi", "sqrt", "frac")
      for t in tokens[:index]
  )
