"""Units of measurement: which words are one, and which of them are equal."""

# Name under which two units are compared: its spellings, without plural s.
# Words that are not here are nouns ("apples"); any other noun is as good.
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
# Words that make a phrase more than a unit.
_HEDGES = frozenset(
    "or and not no never but either maybe perhaps if is isn was are equals"
    " wrong incorrect than less more about approximately unless except when"
    " where for plus minus times over divided by thousand million billion"
    " trillion hundred dozen half third fourth fifth sixth seventh eighth ninth"
    " tenth hundredth thousandth factorial inverse below above under negative"
    " the january february march april may june july august september october"
    " november december".split()
)


def unit(words: list[str], power: str) -> str:
  """The name of a unit, '' if the words say more than a unit."""
  if not words or len(words) > 5:
    return ""
  folded = [word.casefold() for word in words]
  if any({word, word.removesuffix("s")} & _HEDGES for word in folded):
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
