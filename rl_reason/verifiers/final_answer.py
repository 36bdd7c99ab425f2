r"""Extracts the final answer of a response: the text after its last marker.

Markers are boxes (`\boxed{...}`), tags (`<answer>...</answer>`), "Answer:",
"the answer is", and `####`. Only the last marker counts: a response has no
answer if the last answer is empty, unfinished, or retracted ("it is not
\boxed{5}"). Boxes joined by a comma, "and" or "or" are one list. The answer of
a short response without markers is the whole response, and of a long one the
end of its last sentence.
"""

import re

from rl_reason.verifiers import sentences, thoughts

# Longer texts are cut at the start, since the answer is at the end.
MAX_TEXT = 200_000
MAX_ANSWER = 2_000

_MARKER = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])"
    r"|<(?:final_)?answer>"
    r"|(?<![a-zA-Z])ans(?:wers?)?(?![a-zA-Z])\W{0,4}(?:is|are)?[\W_]{0,4}:"
    r"|\banswers?\s+(?:(?:is|are)(?:n't)?|can(?:not|'t)\s+be)\b"
    r"|^####"
    r"|^A:",
    re.IGNORECASE | re.MULTILINE,
)
_SPECIAL = re.compile(r"<\|\w{1,40}\|>|</s>|<eos>")
_PICTURES = re.compile(
    "[\u220e\u25a0\u25a1\u2600-\u27bf\u2b50\ufe0f\U0001f000-\U0001faff\\s]+$"
)
_STEPS = re.compile(r"<<[^<>\n]{1,200}=[^<>\n]{1,40}>>")  # of GSM8K
# A formula on lines of its own at the end of a response.
_DISPLAY = re.compile(
    r"\\\[(?:(?!\\\]).)*\\\]$|\$\$[^$]*\$\$$"
    r"|\\begin\{(?P<name>(?:align|gather|equation|eqnarray)(?:ed)?\*?)\}"
    r"(?P<rows>(?:(?!\\begin).)*)\\end\{(?P=name)\}(?:\s*(?:\\\]|\$\$))?$",
    re.DOTALL,
)
_SENTENCE = re.compile(
    r"(?<=[.?])(?<!\b[MD][rs]\.)(?<!\bMrs\.)(?<!\bSt\.)\s+(?=[A-Z*$])"
)
# Remarks that may follow an answer on its line.
_AFTER = re.compile(
    r"(?:[,;\u2014]|--?|(?<!\s))\s+(?:"
    r"(?:because|since|as|which|where|so|when)\b.*"
    r"|\((?:because|since|as|i\.e\.|that is)(?![a-z]).*"
    r"|\([a-z]+(?: [a-z]+)+\)$)",
    re.DOTALL | re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:[,;\u2014]|--?|(?<!\s))\s+(?:"
    r"(?:in (?:total|all)|altogether|overall"
    r"|(?:(?:is|are|was|were|(?:will )?be) )?(?:left|remaining))[.!]*$"
    r"|(?:and )?not [$\\(]{0,3}-?\d[\d.,]*[$\\)]*\.?$)",
    re.IGNORECASE,
)
_VERB = re.compile(
    r".*(?:\b(?:is|are|was|were|equals|be|get|have|has|had|obtain"
    r"|choose|pick|costs|takes|pays|needs|earns|makes|gives|spends)"
    r"|\b(?:result|solution|total|value|sum)s?:"
    r"|\b(?:it|that)'s|=)(?![a-z<>=])[\s:]*(.+)",
    re.DOTALL | re.IGNORECASE,
)
_SO = re.compile(
    "(?:(?:therefore|thus|hence|so|then)\\b,?|\u2234|\u21d2|=>)\\s*",
    re.IGNORECASE,
)
_STRONG = re.compile(r"(?<![\w)])\*\*([^*\s][^*]*)\*\*(?![\w(])")
# An equation as the answer: "so the line is $x + y = 3$".
_FORMULA = re.compile(
    r".*\b(?:is|are|equals|get|have|obtain)\s+"
    r"((?:(?<![a-zA-Z])[a-zA-Z]{1,2}(?![a-zA-Z])"
    r"|\\[a-zA-Z]+(?![a-zA-Z])|\\[^a-zA-Z]|[^a-zA-Z,\\])*)",
    re.DOTALL | re.IGNORECASE,
)
# "The line is x + y = 42": an equation of two variables, and no value.
_CURVE = re.compile(
    r"\b(?:line|plane|curve|circle|parabola|ellipse|hyperbola|locus|graph"
    r"|sphere|equation|asymptote|tangent)\b[^=\d$\\]*(?:is|are|get|have)\s",
    re.IGNORECASE,
)
_EQUATION = re.compile(r"[^=]*[-+*/^\d][^=]*=")
_DENIED = re.compile(r"\bnot\b|n't\b|\b(?:never|cannot|can't)\b", re.IGNORECASE)

# --- words that retract an answer ---------------------------------------------

_NO = r"(?:\b(?:not|never|nobody|cannot)|n't)"
# "It is not \boxed", "I do not think the answer is", "if the answer is", "or".
_BEFORE = re.compile(
    rf"(?:{_NO}(?:\s+(?:be|equal|equals|to|is|\w{{1,20}}ly))*"
    rf"|{_NO}(?:\s+\w{{1,20}}){{0,2}}?\s+(?:think|believe|say|said|claim|sure"
    r"|certain|knows?|true|mean|case)"
    r"|\b(?:might|may|could|would|tempting\s+to)\s+(?:think|say|guess|expect"
    r"|conclude)|\b(?<!only\s)possible|\b(?:if|whether|unless|suppose|assum\w{1,4}|doubts?|imagine|false"
    r"|untrue|na[i\u00ef]ve|tempting|wrong|incorrect|or(?:\s+(?:maybe|perhaps|possibly|else))?))"
    r"(?:\s+(?:that|the|an?|my|your|final|correct|right|answer|is))*"
    r"[\s$*:(\\\[]*$",
    re.IGNORECASE,
)
# "\boxed{5} is wrong", "\boxed{5}. That cannot be right", "\boxed{5} or 6".
_DENIAL = re.compile(
    r"[\s$*.)\]\\?!,]*(?:(?:(?:this|that|it|which)\s+)?(?:(?:is|was)\s+"
    r"(?:\w{1,20}ly\s+)?(?:wrong|incorrect|false"
    r"|not\s+(?:the|my|right|correct|true|valid|it)\b)"
    r"|(?:is|was)n't\b|(?:cannot|can't)\s+be\s+(?:right|correct|true)\b)"
    r"|or\s+(?:maybe\s+|perhaps\s+|possibly\s+)?[$\\(]*-?(?:\d|frac|sqrt))",
    re.IGNORECASE,
)
# "The answer is 12. Wait, it is 13."
_TAKEN_BACK = re.compile(
    r"\W*(?:(?:oh|hmm+|but|no)\W+)?(?:wait|actually|oops|correction|sorry"
    r"|hold\s+on|just\s+kidding|scratch\s+that|on\s+second\s+thought|I\s+made\s+an?\s+(?:mistake"
    r"|error)|let\s+me\s+(?:re|correct|fix))\b"
    r"|\W*(?:(?:but|however|no)\W+)?(?:(?:this|that|it)\s+(?:is|was|can|does|seems"
    r"|looks)(?:n't|not|\s+not|'t)?\s+(?:be\s+|clearly\s+|obviously\s+)?(?:wrong"
    r"|incorrect|false|right\b(?<=n't\sright)|impossible|not)"
    r"|(?:this|that|it)\s+(?:is|was|can|does)(?:n't|not|\s+not|'t)\b"
    r"|the\s+(?:correct|right|actual|true)\s+(?:answer|value|result)\b"
    r"|no\W+(?:it|that)|it\s+should\s+be\b)",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(
    r"\b(?:yes|correct|confirm\w*|indeed|checks?\s+out|holds|right)\b",
    re.IGNORECASE,
)
# What a chat model adds: it states no value.
_CLOSING = re.compile(
    r"(?:^\s*+|(?<=[.!?])\s*+|(?<=\*)\s++|(?<!\s)[^\S\n]*+\n\s*+)"
    r"(?:(?:I\s+)?hope\s+(?:this|that|it)\b"
    r"|(?:please\s+)?(?:let\s+me\s+know|feel\s+free)\b|if\s+you\s+(?:have|need"
    r"|want|would|'d)\b|(?:do|would)\s+you\s+(?:want|like|need|have)\b"
    r"|is\s+there\s+anything\b|(?:I'm\s+)?happy\s+to\b|good\s+luck\b|great\s+(?:question"
    r"|job)\b|thanks?\b)[^.!?\n\d\\$]*[.!?]*\s*$",
    re.IGNORECASE,
)
_ARROW = re.compile(
    r".*(?:\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])"
    r"|\u21d2|\u2192|\u27f9)\s*(?=.*\d)",
    re.DOTALL,
)
_VALUE = re.compile(
    r"\s*(?:not|never|anything\s+but)\s+(?:\w+\s+){0,2}[$\\(*]*-?(?:\d|\\|(?-i:[A-J])\b)",
    re.IGNORECASE,
)
# "not 5 but 6", "not 5, it is 6"; "x = 5 or x = 6"; "\boxed{5} or \boxed{6}".
_RATHER = re.compile(r"(?:\bbut|[,;]\s*it(?:'s|\s+is))\s+(.+)", re.DOTALL)
_EITHER = re.compile(r"[\d$)}]\W*(?:[a-z]+\s+)?\bor\b[^,;:]*$", re.IGNORECASE)
_LIST = re.compile(
    r"\$?[a-z]\w{0,3}\s*=[^=]+(?:\b(?:or|and)|,)\s+\$?[a-z]\w{0,3}\s*=[^=]+$"
)
_JOINT = re.compile(
    r"(?:[\s$\\)\]]|\\q?quad)*(?:[,;]|,?\s*(?:\\text\s*\{)?\s*(?:and|or"
    r"|as\s+well\s+as)\b\s*\}?)(?:[\s$\\(\[]|\\q?quad)*"
    r"(?:(?:maybe|perhaps|possibly)\s+)?[\s$\\(\[]*(?:[a-zA-Z]\w{0,3}\s*=)?\s*",
    re.IGNORECASE,
)


def box(text: str, start: int = 0) -> str | None:
  r"""The content of the `\boxed` at `start`; None if the box is not closed."""
  opening = re.compile(r"\\(?:boxed|fbox)\s*(\{?)").match(text, start)
  if not opening:
    return None
  if not opening[1]:
    bare = re.compile(r"[^\s$\\{}]+").match(text, opening.end())  # \boxed 5
    return bare[0] if bare else None
  depth = 1
  # An escaped brace does not nest.
  for piece in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening.end()):
    depth += (piece[0] == "{") - (piece[0] == "}")
    if not depth:
      return text[opening.end() : piece.start()]
  return None


def _line(text: str) -> str:
  """The first non-empty line; a displayed formula counts as one line."""
  whole = text
  text = text.lstrip("\\*_ \t\r\n" if text[:2] == "\\ " else "*_ \t\r\n")
  bold = "**" in whole[: len(whole) - len(text)]
  for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
    if text.startswith(opening):
      end = text.find(closing, 2)
      return text[2:end] if end > 0 else ""
  line = text.partition("\n")[0]
  return line.replace("**", "", 1) if bold else line


def _tidy(text: str) -> str | None:
  """The text without surrounding Markdown, quotes and full stop."""
  text = text.strip()
  if len(text) > MAX_ANSWER:  # before the loop, which is quadratic
    return None
  text = _PICTURES.sub("", text)
  text = _STRONG.sub(r"\1", text)
  while True:
    shorter = re.sub(r"^\*\*|\*\*$|\.$|^=(?![=>])", "", text).strip()
    shorter = re.sub(r"[.,;]\s*(\$+|\\[\])])$", r"\1", shorter)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "*_`\"'":
      shorter = text[1:-1].strip()
    if shorter == text:  # a "!" stays: it may be a factorial
      return text or None
    text = shorter


def _last_row(shown: re.Match) -> str:
  """A displayed formula on one line; of aligned equations the last one."""
  if not shown["name"]:
    return shown[0].replace("\n", " ")
  text = re.sub(r"&|\\(?:Rightarrow|q?quad)(?![a-z])", " ", shown["rows"])
  rows = [x for x in (row.strip(" .,\n") for row in text.split("\\\\")) if x]
  if not rows:
    return shown[0]
  sides = rows[-1].split("=")
  return f"\n${sides[-1] if len(sides) > 2 or not sides[0] else rows[-1]}$"


def _phrase(text: str) -> str | None:
  """The answer at the start of a line: "42, because 6 times 7 is 42."."""
  text = _SENTENCE.split(text.strip(), maxsplit=1)[0]
  return _tidy(_TAIL.sub("", _AFTER.sub("", text)))


def final(text: str) -> str | None:
  """Returns the final answer of a response, verbatim; None if it has none.

  Neither a thought (`<think>...</think>`) nor a retracted answer counts.
  """
  text = thoughts.after(text[-MAX_TEXT:])
  text = _STEPS.sub("", _SPECIAL.sub("\n", text)).rstrip()
  if text.endswith(("\\]", "$$", "}")):
    shown = _DISPLAY.search(text, max(0, len(text) - MAX_ANSWER))
    text = text[: shown.start()] + _last_row(shown) if shown else text
  while closing := _CLOSING.search(text, max(0, len(text) - MAX_ANSWER)):
    if not closing.start():
      break
    text = text[: closing.start()].rstrip()
  options = text.rfind("\nB:")  # an "A:" before it is an option, not an answer
  markers = [
      marker
      for marker in _MARKER.finditer(text)
      if not _is_remark(text, marker)
      and (marker[0] != "A:" or marker.start() >= options)
  ]
  if not markers:
    found = _unmarked(text)
  elif markers[-1][0][0] in "\\<":
    found = _enclosed(text, markers)
  else:
    found = _announced(text, markers[-1])
  return found if found and len(found) <= MAX_ANSWER else None


_HEDGED = re.compile(
    r"(?:\b(?:all|every|each|any|such|if|when|unless|not|no|never|and|or|but|than"
    r"|except|least|most|only|about|approximately|where|with|for)|n't)\b"
    r"|[.;:?]\s",
    re.IGNORECASE,
)


def reference(text: str) -> str:
  """Returns a reference answer without a box or prose around it.

  "The answer is 5 apples" becomes "5 apples"; other texts are unchanged.
  """
  if re.search(
      r"\\boxed|\\fbox|<answer>|^####|answers?(?: is\b|:)", text, re.I
  ):
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    return final(text) or text
  words = re.match(r"(?:[A-Za-z']+,?\s+){2,}", text)
  if not words or _HEDGED.search(text):
    return text
  found = _unmarked(text) or ""
  return found if re.search(r"\d", found) else text


def _is_remark(text: str, marker: re.Match) -> bool:
  """Whether a marker begins a remark, as in "The answer is not unique"."""
  after = text[marker.end() : marker.end() + 80]
  denial = re.match(r"\s*(?:not|never)\b", after, re.IGNORECASE)
  return bool(denial) and not _VALUE.match(after)


def _enclosed(text: str, markers) -> str | None:
  """The content of the last box or tag, and of the boxes joined to it."""
  found, start, end = _content(text, markers[-1])
  if found is None:
    return None
  after = text[end : end + 80]
  for marker in markers[-2::-1]:
    earlier, begin, stop = _content(text, marker)
    between = text[stop : min(start, stop + 80)]
    if not earlier or stop > start or not _JOINT.fullmatch(between):
      break
    if len(found) > MAX_ANSWER:
      return None
    found, start = f"{earlier}, {found}", begin
  if _DENIAL.match(after) or _BEFORE.search(text[max(0, start - 80) : start]):
    return _unmarked(text[end:])
  return _tidy(found)


def _content(text: str, marker) -> tuple[str | None, int, int]:
  """Content, start and end of a box or tag; the content is None if unclosed."""
  start, at = marker.span()
  if marker[0][0] == "\\":
    found = box(text, start)
    end = at if found is None else text.index(found, at) + len(found) + 1
    return found, start, end
  end = text.find("</", at)
  if end < 0:
    return None, start, at
  return text[at:end], start, text.find(">", end) + 1 or len(text)


def _announced(text: str, marker) -> str | None:
  """The answer after words such as "Answer:"."""
  line = _line(text[marker.end() :])
  before = text[max(0, marker.start() - 80) : marker.start()]
  sentence = _SENTENCE.split(line, maxsplit=1)[0]
  if (
      _DENIED.search(marker[0])
      or _VALUE.match(" " + sentence[:80])
      or _BEFORE.search(before)
  ):
    rather = _RATHER.search(sentence)
    if rather:
      return None if _DENIED.search(rather[1]) else _phrase(rather[1])
    at = text.find(sentence, marker.end()) + len(sentence)
    return _unmarked(text[at:])
  rest = text[text.find(sentence, marker.end()) + len(sentence) :]
  confirmed = _CONFIRMED.search(rest) and not _DENIED.search(rest)
  if _TAKEN_BACK.match(rest) and not confirmed:
    return _unmarked(rest)
  found = _phrase(line.partition("</")[0])
  if not found or _words(found) < 2:
    return found
  verb = re.match(r".*\b(?:is|are|equals)\s+(.+)", found, re.DOTALL)
  if not verb:  # `x is 5` is 5, but a formula stays
    return sentences.value(found) or found
  return None if _DENIED.search(found) else _tidy(verb[1])


def _words(text: str) -> int:
  return len(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", text))


def _unmarked(text: str) -> str | None:
  """The answer of a response without markers."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if not lines:
    return None
  if len(lines[-1]) <= MAX_ANSWER and (arrow := _ARROW.match(lines[-1])):
    text = lines[-1][arrow.end() :].removesuffix("\\)").removesuffix("\\]")
    text = f"${text}" if text.count("$") % 2 else text
    lines = [text]
  words = _words(text)
  if not words or (words < 5 and not _VERB.fullmatch(text)):
    so = _SO.match(lines[-1])
    found = lines[-1][so.end() if so else 0 :]
    if words < 2 or sentences.denied(found) or sentences.told(found):
      return _tidy(found)
    return _tidy(sentences.value(found) or found)
  last = _TAIL.sub("", _SENTENCE.split(lines[-1])[-1])
  if len(last) > MAX_ANSWER or sentences.denied(last) or sentences.told(last):
    return None
  clause = sentences.clause(sentences.without_remark(last))
  if clause is None:
    return None
  if sentences.unsolved(clause):
    return _tidy(clause)
  several = _LIST.search(clause)
  if several:
    return _tidy(several[0])
  match = _FORMULA.fullmatch(clause) or _VERB.fullmatch(clause)
  if match and _EITHER.search(clause[: match.start(1)]):
    return None
  found = match[1] if match and re.search(r"\w", match[1]) else clause
  curve = _CURVE.search(clause)
  if match and curve and _EQUATION.match(match[1]):
    return _tidy(clause[curve.start() :])
  cut = found.count("$") % 2 or "\\)" in found or "\\]" in found
  if _words(found) or "=" in found or cut:  # words, or a part of a formula
    found = sentences.value(clause) or found
  return _tidy(found)
