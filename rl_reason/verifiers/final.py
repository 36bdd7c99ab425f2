r"""The final answer of a response: what stands behind its last marker.

Markers are a box (`\boxed{...}`), tags (`<answer>...</answer>`), "Answer:",
"the answer is", and `####`. The last one in the text wins, whichever kind it
is, and decides alone: an earlier answer does not count if the last one is
empty, unfinished, or taken back ("it is not \boxed{5}"). Boxes with a comma,
"and" or "or" between are one list. A response without markers is read as a
whole, or by the end of its last sentence.
"""

import re

# Longer texts are cut from the left: an answer is at the end.
MAX_TEXT = 200_000
MAX_ANSWER = 2_000

_MARKER = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])"
    r"|<(?:final_)?answer>"
    r"|(?<![a-zA-Z])answers?(?![a-zA-Z])\W{0,4}(?:is|are)?[\W_]{0,4}:"
    r"|\banswers?\s+(?:(?:is|are)(?:n't)?|can(?:not|'t)\s+be)\b"
    r"|^####"
    r"|^A:",
    re.IGNORECASE | re.MULTILINE,
)
_SPECIAL = re.compile(r"<\|\w{1,40}\|>|</s>|<eos>")
_SENTENCE = re.compile(r"(?<=[.?])\s+(?=[A-Z*$])")
# What may follow an answer on its line, or end one, and is not part of it.
_AFTER = re.compile(
    r"(?:[,;\u2014]|--?|(?<!\s))\s+(?:"
    r"(?:because|since|as|which|where|so|when)\b.*"
    r"|\((?:because|since|as|i\.e\.|that is)(?![a-z]).*"
    r"|\([a-z]+(?: [a-z]+)+\)$)",
    re.DOTALL | re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:[,;\u2014]|--?|(?<!\s))\s+(?:"
    r"(?:in (?:total|all)|altogether|overall|left|remaining)[.!]*$"
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
# An equation that is the whole answer: "so the line is $x + y = 3$".
_FORMULA = re.compile(
    r".*\b(?:is|are|equals|get|have|obtain)\s+"
    r"((?:(?<![a-zA-Z])[a-zA-Z]{1,2}(?![a-zA-Z])"
    r"|\\[a-zA-Z]+(?![a-zA-Z])|\\[^a-zA-Z]|[^a-zA-Z,\\])*)",
    re.DOTALL | re.IGNORECASE,
)
_DENIED = re.compile(r"\bnot\b|n't\b|\b(?:never|cannot|can't)\b", re.IGNORECASE)

# --- words around an answer that take it back --------------------------------

_NO = r"(?:\b(?:not|never|nobody|cannot)|n't)"
# "It is not \boxed", "I do not think the answer is", "if the answer is", "or".
_BEFORE = re.compile(
    rf"(?:{_NO}(?:\s+(?:be|equal|equals|to|is|\w{{1,20}}ly))*"
    rf"|{_NO}(?:\s+\w{{1,20}}){{0,2}}?\s+(?:think|believe|say|said|claim|sure"
    r"|certain|knows?|true|mean|case)"
    r"|\b(?:if|whether|unless|suppose|assum\w{1,4}|doubts?|imagine|false|untrue"
    r"|wrong|incorrect|or(?:\s+(?:maybe|perhaps|possibly|else))?))"
    r"(?:\s+(?:that|the|an?|my|your|final|correct|right|answer|is))*"
    r"[\s$*:(\\\[]*$",
    re.IGNORECASE,
)
# "\boxed{5} is wrong", "\boxed{5}. That cannot be right", "\boxed{5} or 6".
_BEHIND = re.compile(
    r"[\s$*.)\]\\?!,]*(?:(?:(?:this|that|it|which)\s+)?(?:(?:is|was)\s+"
    r"(?:\w{1,20}ly\s+)?(?:wrong|incorrect|false"
    r"|not\s+(?:the|my|right|correct|true|valid|it)\b)"
    r"|(?:is|was)n't\b|(?:cannot|can't)\s+be\s+(?:right|correct|true)\b)"
    r"|or\s+(?:maybe\s+|perhaps\s+|possibly\s+)?[$\\(]*-?(?:\d|frac|sqrt))",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\s*(?:not|never)\s+(?:\w+\s+){0,2}[$\\(*]*-?(?:\d|\\|(?-i:[A-J])\b)",
    re.IGNORECASE,
)
# "not 5 but 6", "not 5, it is 6"; "x = 5 or x = 6"; "\boxed{5} or \boxed{6}".
_RATHER = re.compile(r"(?:\bbut|[,;]\s*it(?:'s|\s+is))\s+(.+)", re.DOTALL)
_EITHER = re.compile(r"\bor\b[^,;:]*$", re.IGNORECASE)
_LIST = re.compile(
    r"\$?[a-z]\w{0,3}\s*=[^=]+\b(?:or|and)\s+\$?[a-z]\w{0,3}\s*=[^=]+$"
)
_JOINT = re.compile(
    r"[\s$\\)\]]*(?:,|,?\s*(?:\\text\s*\{)?\s*(?:and|or)\b\s*\}?)[\s$\\(\[]*"
    r"(?:(?:maybe|perhaps|possibly)\s+)?[\s$\\(\[]*(?:[a-zA-Z]\w{0,3}\s*=)?\s*",
    re.IGNORECASE,
)


def box(text: str, start: int = 0) -> str | None:
  r"""The content of the box at `start`; None if it never closes.

  Args:
    text: where the box stands.
    start: the index of `\boxed` or `\fbox`.
  """
  at = text.find("boxed" if text[start + 1] == "b" else "fbox", start)
  at += 5 if text[start + 1] == "b" else 4
  while at < len(text) and text[at] in " \n\t":
    at += 1
  if text[at : at + 1] != "{":
    bare = re.match(r"[^\s$\\{}]+", text[at:])  # \boxed 5
    return bare[0] if bare else None
  depth, skip = 0, False
  for index in range(at, len(text)):
    char = text[index]
    if skip:
      skip = False
    elif char == "\\":  # \{ and \} do not nest
      skip = True
    elif char == "{":
      depth += 1
    elif char == "}":
      depth -= 1
      if not depth:
        return text[at + 1 : index]
  return None


def _line(text: str) -> str:
  """The first line that is not empty; a displayed formula is one line."""
  text = text.lstrip("\\*_ \t\r\n" if text[:2] == "\\ " else "*_ \t\r\n")
  for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
    if text.startswith(opening):
      end = text.find(closing, 2)
      return text[2:end] if end > 0 else ""
  return text.partition("\n")[0]


def _tidy(text: str) -> str | None:
  """Without Markdown, quotes and a full stop around it."""
  text = text.strip()
  if len(text) > MAX_ANSWER:  # before the loop, which is quadratic
    return None
  text = _STRONG.sub(r"\1", text)
  while True:
    shorter = re.sub(r"^\*\*|\*\*$|\.$|^=(?![=>])", "", text).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "*_`\"'":
      shorter = text[1:-1].strip()
    if shorter == text:  # a "!" stays: it may be a factorial
      return text or None
    text = shorter


def _phrase(text: str) -> str | None:
  """The answer at the start of a line: "42, because 6 times 7 is 42."."""
  text = _SENTENCE.split(text.strip(), maxsplit=1)[0]
  return _tidy(_TAIL.sub("", _AFTER.sub("", text)))


def final(text: str) -> str | None:
  """The final answer of a response, as written; None if it gives none.

  What stands in a finished `<think>...</think>` is no answer, nor is what the
  words around it take back.
  """
  text = text[-MAX_TEXT:].rpartition("</think>")[2]
  text = _SPECIAL.sub("\n", text).rstrip()
  options = text.rfind("\nB:")  # behind it "A:" is an option, no answer
  markers = [
      m
      for m in _MARKER.finditer(text)
      if not (_aside(text, m) or m[0] == "A:" and m.start() < options)
  ]
  if not markers:
    found = _bare(text)
  elif markers[-1][0][0] in "\\<":
    found = _enclosed(text, markers)
  else:
    found = _announced(text, markers[-1])
  return found if found and len(found) <= MAX_ANSWER else None


def _aside(text: str, marker: re.Match) -> bool:
  """Whether a marker opens a remark: "The answer is not unique"."""
  behind = text[marker.end() : marker.end() + 80]
  return bool(re.match(r"\s*(?:not|never)\b", behind, re.IGNORECASE)) and (
      not _VALUE.match(behind)
  )


def _enclosed(text: str, markers) -> str | None:
  """What stands in the last box or tag; boxes with "or" between are a list."""
  found, start, end = _content(text, markers[-1])
  if found is None:
    return None
  behind = text[end : end + 80]
  for marker in markers[-2::-1]:
    earlier, begin, stop = _content(text, marker)
    between = text[stop : min(start, stop + 80)]
    if not earlier or stop > start or not _JOINT.fullmatch(between):
      break
    if len(found) > MAX_ANSWER:
      return None
    found, start = f"{earlier}, {found}", begin
  if _BEHIND.match(behind) or _BEFORE.search(text[max(0, start - 80) : start]):
    return _bare(text[end:])
  return _tidy(found)


def _content(text: str, marker) -> tuple[str | None, int, int]:
  """What a box or tag holds, its start and its end; None if it never ends."""
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
  """What stands behind words such as "Answer:"."""
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
    return _bare(text[at:])
  found = _phrase(line.partition("</")[0])
  return found and _after_verb(found)


def _after_verb(text: str) -> str | None:
  """`x is 5` -> `5`; formulas stay whole."""
  if len(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", text)) < 2:
    return text
  match = re.match(r".*\b(?:is|are|equals)\s+(.+)", text, re.DOTALL)
  if not match:
    return text
  return None if _DENIED.search(text) else _tidy(match[1])


def _bare(text: str) -> str | None:
  """The answer of a response without markers."""
  lines = [line for line in text.strip().splitlines() if line.strip()]
  if not lines:
    return None
  words = len(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", text))
  if not words or (words < 5 and not _VERB.fullmatch(text)):
    so = _SO.match(lines[-1].strip())
    return _tidy(lines[-1].strip()[so.end() if so else 0 :])
  last = _TAIL.sub("", _SENTENCE.split(lines[-1].strip())[-1])
  if len(last) > MAX_ANSWER or _DENIED.search(last):
    return None
  several = _LIST.search(last)
  if several:
    return _tidy(several[0])
  match = _FORMULA.fullmatch(last) or _VERB.fullmatch(last)
  if match and _EITHER.search(last[: match.start(1)]):
    return None
  return _tidy(match[1] if match else last)
