r"""The final answer of a response: what stands behind its last marker.

Markers are a box (`\boxed{...}`), tags (`<answer>...</answer>`), "Answer:",
"the answer is", and `####`. The last one in the text wins, whichever kind it
is, and decides alone: an earlier answer does not count if the last one is
empty or unfinished. A response without markers is read as a whole, or by the
end of its last sentence.
"""

import re

# Longer texts are cut from the left: an answer is at the end.
MAX_TEXT = 200_000
MAX_ANSWER = 2_000

_MARKER = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])"
    r"|<answer>"
    r"|\banswers?\b\W{0,4}(?:is|are)?\W{0,4}:"
    r"|\banswers?\s+(?:is|are)\b(?!\s*(?:not|n't|never)\b)"
    r"|^####"
    r"|^A:",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(r"(?<=[.?])\s+(?=[A-Z*$])")
# What may follow an answer on its line without being part of it.
_AFTER = re.compile(
    r"(?:,|;|--?|\u2014)?\s+(?:because|since|as|which|where|so|when)\b.*"
    r"|\s+\((?:[a-z]+ ?){2,}\)$",
    re.DOTALL | re.IGNORECASE,
)
_VERB = re.compile(
    r".*(?:\b(?:is|are|equals|be|get|have|obtain|choose|pick)|=)(?![a-z<>=])[\s:]*(.+)",
    re.DOTALL | re.IGNORECASE,
)
_DENIED = re.compile(r"\bnot\b|n't\b|\bnever\b", re.IGNORECASE)


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
  text = text.lstrip("\\* \t\r\n" if text[:2] == "\\ " else "* \t\r\n")
  for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
    if text.startswith(opening):
      end = text.find(closing, 2)
      return text[2:end] if end > 0 else ""
  return text.partition("\n")[0]


def _tidy(text: str) -> str | None:
  """Without Markdown, quotes and a full stop around it."""
  text = text.strip()
  while True:
    shorter = re.sub(r"^\*\*|\*\*$|\.$", "", text).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "*_`\"'":
      shorter = text[1:-1].strip()
    if shorter == text:  # a "!" stays: it may be a factorial
      return text or None
    text = shorter


def _phrase(text: str) -> str | None:
  """The answer at the start of a line: "42, because 6 times 7 is 42."."""
  text = _SENTENCE.split(text.strip(), maxsplit=1)[0]
  return _tidy(_AFTER.sub("", text))


def final(text: str) -> str | None:
  """The final answer of a response, as written; None if it gives none.

  What stands in a finished `<think>...</think>` is no answer.
  """
  text = text[-MAX_TEXT:].rpartition("</think>")[2]
  markers = list(_MARKER.finditer(text))
  marker = markers[-1] if markers else None
  if marker is None:
    found = _bare(text)
  elif marker[0][0] == "\\":
    found = box(text, marker.start())
    found = found and _tidy(found)
  elif marker[0][0] == "<":
    inside, closed, _ = text[marker.end() :].partition("</")
    found = _tidy(inside) if closed else None
  else:
    found = _phrase(_line(text[marker.end() :]))
    found = found and _after_verb(found)
  return found if found and len(found) <= MAX_ANSWER else None


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
    return _tidy(lines[-1])
  last = _SENTENCE.split(lines[-1].strip())[-1]
  if _DENIED.search(last):
    return None
  match = _VERB.fullmatch(last)
  return _tidy(match[1] if match else last)
