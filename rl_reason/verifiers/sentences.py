r"""The value that a sentence of prose states: "She paid $7." states $7.

A sentence states one value or none: what is denied, hedged, supposed, asked,
unfinished or one of several values is no answer. Which number counts is decided
by its place in the sentence: after the last sign of equality, after the last
verb such as "is", or alone among numbers that only describe ("in 3 hours", "of
the 42 apples", "more than 2 bagels").
"""

import re

from rl_reason.verifiers import units

_NUMBER = r"[-+\u2212]?\\?[$\u00a3\u20ac]?\d(?:[\d,]*\d)?(?:\.\d+)?"
_SIGN = r"\s*(?:[-+*/\u00d7\u00f7\u00b7\u2212\u2013^]|x(?=[\s\d]))\s*"
# A formula between dollars: money has a space before its dollar, or a digit
# after it (the rule of Pandoc).
_FORMULA = (
    r"\$\$[^$]+\$\$|\$(?=[^\s$])[^$]*(?<=[^\s$])\$(?!\d)"
    r"|\\\((?:(?!\\\)).)+\\\)|\\\[(?:(?!\\\]).)+\\\]"
)
_WORDS = (
    "one two three four five six seven eight nine ten eleven twelve twenty"
    " thirty forty fifty sixty seventy eighty ninety hundred"
).split()
_VALUE = re.compile(
    rf"(?P<formula>{_FORMULA})"
    r"|(?P<time>(?<![\w.:/])\d+:\d+(?![\w:/])(?:\s*[ap]\.?m\b)?)"
    rf"|(?P<tuple>\((?:\s*{_NUMBER}\s*,\s)+\s*{_NUMBER}\s*\))"
    r"|(?P<ordinal>\d+(?:st|nd|rd|th)\b)"
    rf"|(?P<number>(?<![\w.^_:/]){_NUMBER}(?:{_SIGN}{_NUMBER})*"
    r"(?:\s?\\?%|[a-zA-Z]{1,2}(?:/\w+|\b))?(?![\w^_]|[:/]\d))"
    r"|(?P<other>[\w.:^_/\\{}-]*\d[\w.:^_/\\{}]*)"
    r"|(?P<word>(?<!each )(?<!this )(?<!that )(?<!the )"
    rf"\b(?:{'|'.join(_WORDS)})\b(?!-))",
    re.IGNORECASE | re.DOTALL,
)
_NOT = re.compile(
    r"\bnot\b|n't\b|\b(?:never|cannot|can't|no|nobody|none|neither|nor|hardly)\b",
    re.IGNORECASE,
)
# "60 + 50 = 110 balls were not hit": a denial that describes what is counted.
_DESCRIBED = re.compile(
    r"\bnot able to\b|\bwith\s+(?:no|none)\s+[a-z]+|\bno\.\s+of\b"
    r"|(?<!,)\snot\s+to\s+[a-z]+"
    r"|\b(?:was|were|is|are)\s+not\s+[a-z]+ing\b|\bneither\b[^,.]*\bnor\b"
    r"|(?:\b(?:that|who)|(?<!,)\swhich)\s+(?:[a-z]+\s+){0,4}?(?:are|were|is|was"
    r"|did|do|does|had|have|has|will)(?:\s+not|n't)\b|\bwho've\s+not\b"
    r"|(?:\d[\d,.]*%?\s+[a-z]+|=\s*[\d.,]+)(?:\s+[a-z]+){0,5}?\s+(?:are|were|did"
    r"|do|had|have|has|will)(?:\s+not|n't)\s+(?!right|correct|true|valid|possible"
    r"|the\b|what\b|enough|equal|an?\b|it\b|my\b)",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\bnot\b|n't\b|\b(?:never|cannot|can't)\b", re.IGNORECASE)
_DOUBT = re.compile(
    r"(?:\b(?:is|was|are|be|seems?|looks?)|'s)\s+(?:[a-z]+\s+){0,2}?(?:wrong"
    r"|incorrect|impossible|false|invalid|extraneous|rejected|excluded|absurd"
    r"|undefined|unlikely|ruled\s+out|too\s+[a-z]+)\b|\bfails?\W*$"
    r"|\b(?:maybe|perhaps|possibly|might|either(?=\s+[$(*]*\d)|unless|whether|supposedly)\b"
    r"|\bI(?:\s+would|'d)?\s+guess|\b(?:could|may)\s+be\s+[*$(\\]*\d"
    r"|\b(?:could|would|may)\s+(?:have\s+been\s+[*$(\\]*\d|say\b)|\?\W*$"
    r"|\bshould\s+have\s+been\b|\b(?:one|some|many)\s+(?:might|may|could"
    r"|would\s+(?:think|say|guess|answer))\b|\btempt(?:ing|ed)\b|\bna[i\u00ef]ve\w*"
    r"|\b(?:incorrect|wrong|mistaken|erroneous)ly\b"
    r"|^\W*(?:one|another|the\s+other)\s+(?:(?:possible|such|of\s+the)\s+)?"
    r"(?:solution|root|answer|value|zero|factor|option|possibility|number"
    r"|example)s?\b",
    re.IGNORECASE,
)
# "We reject x = 12"; "x = 12, a contradiction".
_REJECTED = re.compile(
    r"\b(?:we|I|must|can|be|is|are)\s+(?:can\s+|must\s+)?(?:reject|discard"
    r"|exclude|eliminate|dismiss)(?:e?d)?\b|\bcontradict|\bviolat"
    r"|\bdenominators?\s+(?:zero|0|vanish)",
    re.IGNORECASE,
)
# What is told, tried or asked of the reader: no result.
_TOLD = re.compile(
    r"\W*(?:(?:so\s+)?we\s+(?:know|are\s+(?:told|given))|recall\b"
    r"|according\s+to\s+the\s+(?:problem|question)|for\s+(?:example|instance)"
    r"|the\s+(?:problem|question)\s+(?:says|states|tells|gives)"
    r"|(?:(?:now|next|then|first|so),?\s+)?(?:(?:we|I)\s+)?(?:add|subtract"
    r"|multiply|divide|take|choose|use|test|check|consider)\s+(?!.*(?:=|\b(?:gets?"
    r"|gives?|obtain|find|yields?|makes?|is|are|has|have)\b))"
    r"|(?:(?:now|next|then|first|for\s+example),?\s+)?(?:we\s+)?(?:substitut|plug"
    r"|tak|put|set|try|test|choos|consider)\w*\s+(?:the\s+case\s+)?(?:in\s+)?[$(]*"
    r"[a-zA-Z]\s*=|(?:let\s+(?:me|us)|let's|I'll|(?:I|we)\s+(?:still\s+)?(?:have"
    r"|need|want)\s+to)\s+(?:try|use|find|subtract|add|see|check|test)\b"
    r"|(?:because|since|as)\s+[^,]*\d[^,]*,[^\d$\\]*$)",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\W*(?:if|suppose|let|assum\w+|say|imagine|consider|unless|try|or|whether"
    r"|step|given)\b",
    re.IGNORECASE,
)
# What the problem says, where no calculation follows.
_GIVEN = re.compile(
    r"\b(?:(?:start|begin|beg[au]n)\w*\s+(?:out\s+)?with|initially|originally"
    r"|at\s+first|(?:is|are)\s+given|the\s+(?:problem|question)|we\s+know)\b",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(
    r"(?:\b(?:is|are|was|were|the|an?|and|or|of|to|in|for|gives?|gets?|has|have"
    r"|then|so|which|that|be|with|by|equals?|from)|[-+*/=\u00d7\u00f7(,:])\s*$",
    re.IGNORECASE,
)
_JOINT = re.compile(
    r"(?P<colon>(?<=\w):|(?<=\*):)\s+|\s*(?:\u21d2|\u2192|\u27f9|=>|->)\s*"
    r"|(?:[,;.]|\s[-\u2013\u2014])?\s+(?:and\s+)?"
    r"(?:(?P<but>but|however|although|though|yet)"
    r"|so|then|thus|therefore|hence|meaning|giving|leaving|making"
    r"|(?:which|that|this)\s+(?:means|gives|leaves|makes|equals|rounds?(?:\s+(?:up|down))?\s+to|is(?=\s+[$*]*\d))(?:\s+that)?)"
    r"\b,?\s+",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"(?:,|\s[-\u2013\u2014]|;)\s+(?:because|since|as|where|when|with"
    r"|which(?!\s+(?:rounds?|means|gives|leaves|makes|equals|is\s+[^,\d]{0,20}\d\S*$))"
    r"|attained|achieved|reached|occurring|obtained|using|by|for|i\.e\."
    r"|that\s+is|and\s+it|in\s+total|in\s+all|altogether|overall)\b.*"
    r"|\s+(?:because|since)\b.*"
    r"|,?\s+\((?![-+$\\\d\s]+\))(?!\s*[-+\d.]+\s*,).*\)[\s.]*$"
    r"|\s+(?:at|when|where|for)\s+\$?[a-z]\s*=\s*[^=]*$",
    re.IGNORECASE | re.DOTALL,
)
_SUM = re.compile(r"\d\S*\s*=\s*[$*(]*\d")
_WHY = re.compile(r"\W*(?:because|since|as)\b", re.IGNORECASE)
_WHEN = re.compile(
    r"\W*(?:since|because|as|given|after|if|when|with|for|of|in|on|at|by|from"
    r"|out|during|within|to|once|[a-z]+ing)\b"
    r"(?:[^,]|,(?=\d{3}(?!\d)))*,\s+",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?:\b(?:at\s+(?:least|most)|(?:more|less|fewer|greater|larger|smaller"
    r"|higher|lower)\s+than|over|under|up\s+to|almost|nearly|about|around"
    r"|approximately|roughly|between|below|above|exceeds?|within|from|or|not"
    r"|twice|thrice|half|double|triple|negative|minus|plus|divisible|multiple"
    r"|no|never|except|between\s+\S+\s+and)|[<>\u2264\u2265\u2248~])\W*$",
    re.IGNORECASE,
)
_RESULT = re.compile(
    r"\b(?:comes?|works?|amounts?|adds?|sums?|equal|equals|leads?|simplif\w+"
    r"|reduces?|evaluates?|rounds?|(?:in|de)creased?s?|dropp?s?(?:ed)?|rises?"
    r"|rose|fell|grew|totals?)"
    r"(?:\s+(?:out|up|down))?\s+to\W*$"
    r"|\b(?:up|left|(?:leaves?|leaving)\s+\S+)\s+with\W*$"
    r"|\b(?:needs?|needed|has|have|had|able|going|wants?|wanted|expects?|plans?"
    r"|required|managed)\s+to\s+[a-z]+(?:\s+(?:only|another|up|out))?\W*$"
    r"|\banswer\s+of\W*$|\b(?:loses?|lost|wins?|won|differs?|(?:in|de)creased?s?"
    r"|grows?|grew|rises?|rose|falls?|fell|short|ahead|behind|reduced"
    r"|increased|decreased)\s+by\W*$|\ban?\s+(?:in|de)crease\s+of\W*$"
    r"|\bresult(?:s|ed)?\s+in\W*$|\barrives?\s+at\W*$"
    r"|\b(?:an?|the|his|her|their|its|your|our)\s+(?:\w+\s+)?(?:total|sum"
    r"|profit|average|maximum|minimum|distance|amount|cost|value|length|area"
    r"|price|discount|loss|difference|remainder|change|score|speed|volume)"
    r"(?:\s+\w+)?\s+of\W*$",
    re.IGNORECASE,
)
_DESCRIBES = re.compile(
    r"(?:\b(?:in|after|for|within|during|per|every|each|by|of|on|from|at|than"
    r"|with|over|into|out|under|since|until|before|to|as|between|among|above|below)\s+"
    r"(?:(?:the|a|an|his|her|their|its|all|these|those|only|another|next|last"
    r"|first|any)\s+)*(?:\w+ing\s+)?"
    r"|\bto\s+\w+\s+(?:(?:the|a|all|his|her|their|up|out|another)\s+)*"
    r"|\b(?:who|which|whose)\s+.*"
    r"|\b(?:team|option|case|step|question|problem|part|level|chapter|figure"
    r"|equation|page|day|week|month|year|grade|room|line|example|row|column"
    r"|round|stage|phase|player|group|table|section|item|choice|base|mod"
    r"|modulo|january|february|march|april|may|june|july|august|september"
    r"|october|november|december)\s+"
    r"|(?:^|\s)(?:the|these|those|all|both|his|her|their)\s+"
    r"(?:(?:last|first|other|remaining|next)\s+)?)[*(]*$",
    re.IGNORECASE | re.DOTALL,
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|equals?|equal|makes?|gives?|yields?|gets?|got"
    r"|obtains?|leaves?|left|totals?|has|have|had|costs?|pays?|paid|takes?|took"
    r"|needs?|earns?|earned|spends?|spent|sells|sold|becomes?|contains?|holds?)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# After a number: another operand, a bound, or a factor.
_MORE = re.compile(
    r"\W*(?:(?:times|plus|minus|squared|cubed|factorial|divided|multiplied)"
    r"\s+(?:by\s+)?[$(]*(?:\d|as\b|more\b|larger\b|that\b|x\b)"
    r"|(?:squared|cubed|factorial)\b"
    r"|or\s+(?:more|less|fewer|so|above|below|higher|lower|[$(-]*\d)"
    r"|at\s+(?:most|least)\b|(?:out\s+of|in)\s+\d[\d,]*\W*$"
    r"|(?:to|and|or|through|,)\s+[$(]*-?\d|,\s*\d"
    r"|(?:pi|sqrt|sin|cos|tan|log|ln|exp)\b)"
    r"|\s*[-+*/^\u00d7\u00f7=]\s*(?:[\d$(\\]|[a-zA-Z]\b|$)|[(!]|\s*[\\_^]",
    re.IGNORECASE,
)
_PART = re.compile(r"\s+of\s+[$(]*\d")
_THAN = re.compile(r"\s+(?:more|less|fewer)\s+than\s+(?:[$(]*\d|half|twice)")
_LETTER = re.compile(r"\s*(?:[a-zA-Z](?:_?\w)?)\s*[.!]?\s*")


_QUANTITY = re.compile(r"\d|\\(?:pi|sqrt|frac|infty)|=")
_ATTACHED = re.compile(r"((?:(?<=\d)[a-zA-Z]{1,2}(?:/[a-zA-Z]+)?)?)$")
_COMPOUND = re.compile(r"[a-z]\W*[a-zA-Z\d]|[\d+*/^-]\W*[a-zA-Z]")
_EQUALS = re.compile(r"(?<![<>=!:])=(?![=>])")
# The left side of an equation to be solved: `3x`, `x^2`, `x + 1`, `2 + x`.
_UNSOLVED = re.compile(
    r"(?:\d(?!g)[a-zA-Z]|[a-zA-Z]\s*\^\s*\S+|(?<![a-zA-Z])[a-zA-Z]\s*[-+*/]\s*\S+"
    r"|[-+*/]\s*[a-zA-Z]|(?<![a-zA-Z])\d+\([^()=]*[a-zA-Z][^()=]*\))\s*$"
)
_UNIT = re.compile(
    r"[\s-]*(?:(?:more|extra|additional|full|whole|other|total)\s+)?"
    r"(?P<unit>(?P<power>(?:square|cubic|sq|cu)\.?\s+)?(?P<word>[a-zA-Z]+)"
    r"(?:(?:\s+per\s+|/)(?P<per>[a-zA-Z]+))?(?:\s+(?:squared|cubed)\b)?)"
)
_SCALES = frozenset(
    "hundred thousand million billion trillion dozen half halves third thirds"
    " quarters fourths fifths sixths eighths tenths hundredths".split()
)
_NEAR = 80  # characters before a number that decide what it is


def denied(sentence: str) -> bool:
  """Whether a sentence denies its value, doubts it, or asks for it."""
  plain = sentence.replace("*", "")
  when = _WHEN.match(plain)
  if when and _has_value(plain[when.end() :]):
    plain = plain[when.end() :]
  if re.search(r"\b(?:do(?:es)?(?:\s+not|n't)|no\s+\w+)\s+exists?\b", plain):
    return False
  if not _has_value(plain):
    return bool(_DENIED.search(plain))
  return bool(_DOUBT.search(plain) or _NOT.search(_DESCRIBED.sub("", plain)))


def without_remark(sentence: str) -> str:
  """The sentence without a remark at its end: ", which occurs when a = b".

  A sentence that has no number before its remark stays as it is.
  """
  for remark in _REMARK.finditer(sentence):
    before = sentence[: remark.start()]
    if _SUM.search(remark[0]) and not _WHY.match(remark[0]):
      return sentence  # ", which brings her to 9 + 2 = 11"
    if _has_value(before) and not _WHEN.fullmatch(before + ", "):
      return before
  return sentence


def _has_value(text: str) -> bool:
  return bool(re.search(r"[\d$\\]", text))


def clause(sentence: str) -> str | None:
  """The last clause with a number; None if it is taken back or unfinished."""
  text = re.sub(r"\*\*|(?<!\S)\*(?=\S)|(?<=[^\s*])\*(?!\S)", "", sentence)
  if not _has_value(text):
    return text
  if _UNFINISHED.search(text):
    return None
  start, end = 0, len(text)
  for joint in reversed(list(_JOINT.finditer(text))):
    concedes = (joint["but"] or "").lower() in ("although", "though")
    if concedes and _has_value(text[: joint.start()]):
      end = joint.start()  # "36 apples, although she counted 35"
    elif _has_value(text[joint.end() : end]):
      start = joint.end()
      break
    elif joint["but"]:
      return None
  text = text[start:end]
  when = _WHEN.match(text)
  if when and _has_value(text[when.end() :]):
    text = text[when.end() :]
  return None if _SUPPOSED.match(text) else text


def told(sentence: str) -> bool:
  """Whether a sentence repeats the problem, tries a value, or rejects one."""
  start = max((x.end() for x in _JOINT.finditer(sentence)), default=0)
  last = sentence[start:] if _has_value(sentence[start:]) else sentence
  return _has_value(last) and bool(_TOLD.match(last) or _REJECTED.search(last))


def unsolved(text: str) -> bool:
  """Whether a clause ends in an equation to be solved: "So 2x = 35"."""
  left, sign, right = text.rpartition("=")
  variables = set(re.findall(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])", left))
  variables |= set(re.findall(r"(?<=\d)[a-zA-Z](?![a-zA-Z])", left))
  return (
      bool(sign)
      and bool(re.fullmatch(r"[\s(]*[-+\u2212]?[\d.,/]+[\s.)]*", right))
      and not left.count("$") % 2
      and len(variables - {"a", "A", "I"}) == 1
      and bool(_UNSOLVED.search(left))
  )


def value(text: str) -> str | None:
  """The value that a clause states, with its unit; None if there is not one."""
  found = [
      x
      for x in _VALUE.finditer(text)
      if not x["ordinal"] and not (x["formula"] and not _QUANTITY.search(x[0]))
  ]
  within = [x.span() for x in found if x["formula"]]
  signs = [
      x.end()
      for x in _EQUALS.finditer(text)
      if not any(start < x.start() < end for start, end in within)
  ]
  if signs:
    after = [x for x in found if x.start() >= signs[-1]]
    if not after and _LETTER.fullmatch(text, signs[-1]) and found:  # 5 = x
      after = found[-1:]
    elif not after or text[signs[-1] : after[0].start()].strip(" *("):
      return None
    unsolved = _UNSOLVED.search(text[: signs[-1] - 1])
    if unsolved and not after[0][0][-1].isalpha():
      return None
    others = [x for x in after[1:] if not x["word"]]
    several = bool(others) and not _describes(text, others[0])
    return None if several else _with_unit(text, after[0])
  chosen = [x for x in found if not _describes(text, x)]
  if not chosen and len(found) == 1 and re.match(r"[$(]|\d+:", found[0][0]):
    chosen = found  # "He sold it for $42." "They meet at (2, 3)."
  verbs = list(_VERB.finditer(text))
  if len(chosen) > 1 and verbs:
    chosen = [x for x in chosen if x.start() >= verbs[-1].end()]
  if len(chosen) != 1 or _GIVEN.search(text):
    return None
  before, rest = text[: chosen[0].start()], text[chosen[0].end() :]
  if _BOUND.search(before[-_NEAR:]) or _THAN.match(rest):
    return None
  return _with_unit(text, chosen[0])


def _describes(text: str, number: re.Match) -> bool:
  """Whether a number only describes: "in 3 hours", "of the 42 apples"."""
  before = text[max(0, number.start() - _NEAR) : number.start()]
  return bool(_DESCRIBES.search(before)) and not _RESULT.search(before)


def _with_unit(text: str, number: re.Match) -> str | None:
  """A number or formula with its unit; None if it goes on, as in "42 or more".

  Nouns are left out. What scales a number stays: "42 million".
  """
  if number["tuple"] or number["time"]:
    return number[0]
  rest = text[number.end() :]
  share = "%" in number[0] or "/" in number[0]
  if number["word"] or number["other"] or _MORE.match(rest):
    return None
  if share and _PART.match(rest):
    return None
  exact = _last_side(number[0])
  exact, attached, _ = _ATTACHED.split(exact, maxsplit=1)
  unit = _UNIT.match(attached or rest)
  word = unit["word"] if unit else ""
  names = {word, word.casefold(), word.removesuffix("s")} - {"in", "a", "A"}
  if unit and (names & _SCALES or names & units.UNITS.keys()):
    per = unit["per"]
    if per and per in units.UNITS:
      word = f"{word} per {per}"
    elif not per:
      word = unit["unit"].replace(".", "")
    return f"{exact} {word}"
  if attached:
    return number[0]
  variable = len(word) == 1 and word not in "aAI" and number["number"]
  return None if variable else exact


def _last_side(text: str) -> str:
  r"""The last side of `$9 \cdot 4 = 36$`; other values as they are.

  An equation of one sign with a formula of a variable on its left stays.
  """
  inner = text.strip("$") if text[0] == "$" else text[2:-2]
  sides = _EQUALS.split(inner) if text[-1] in "$)]" else []
  if len(sides) < 2:
    return text
  left = re.sub(r"\\(?:angle|triangle|text|mathrm)?[a-zA-Z]*", "", sides[0])
  if len(sides) == 2 and _COMPOUND.search(left):
    return text
  return sides[-1].strip()
