"""Multiple choice, yes or no, true, false or uncertain: what is chosen."""

import re

from rl_reason.verifiers import final_answer

_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s+)?"
    r"(?:\(([A-Ja-j])\)|\[([A-Ja-j])\]|([A-J])[.):]|([A-Ja-j])(?=\s*$))",
    re.IGNORECASE,
)
_WORD = re.compile(r"(yes|no|true|false|uncertain|unknown)\b", re.IGNORECASE)
_SAME = {"true": "yes", "false": "no", "unknown": "uncertain"}  # FOLIO has both
# The text of a choice may follow its letter; another choice may not.
_OTHER = re.compile(
    r"\b(?:or|and|not|either|neither|both)\b|[,/&]\s*\(?[A-J]\b"
    r"|\([A-J]\)|\b(?:yes|no|true|false)\b",
    re.IGNORECASE,
)
# The text of a choice may be one of the words: "A) True".
_TEXT = re.compile(rf"\s*{_WORD.pattern}\W*", re.IGNORECASE)
# Words that may occur in the reason of a choice, but not in a list of choices.
_NEXT = re.compile(r"[\s,;/|&]*(?:uncertain|unknown)\b", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathbf|mathrm|mbox)\s*\{([^{}]*)\}")


def _read(text: str) -> str | None:
  """A letter or a word; None unless the text is exactly one choice."""
  text = _WRAPPED.sub(r"\1", text).replace("$", "").replace("\\", " ")
  text = text.strip(" \t\n*_`\"'{}")
  for pattern in (_LETTER, _WORD):
    match = pattern.match(text)
    if match and text.isprintable():
      named = pattern is _LETTER and _TEXT.fullmatch(text, match.end())
      if not named and _OTHER.search(text, match.end()):
        return None
      chosen = next(filter(None, match.groups()))
      if pattern is _LETTER:
        return chosen.upper()
      if _NEXT.match(text, match.end()):
        return None
      return _SAME.get(chosen.casefold(), chosen.casefold())
  return None


def answer(text: str) -> str | None:
  """The choice of a response; None if there is none.

  It is 'A' to 'J', 'yes' or 'no' (also for true and false), or 'uncertain'.
  """
  found = final_answer.final(text)
  chosen = _read(found) if found else None
  last = [line for line in text.split("\n") if line.strip()][-2:]
  # Choices one below the other are a copy of the question.
  if chosen and [_read(x) for x in last[1:]] == [chosen]:
    return chosen if _read(last[0]) in (None, chosen) else None
  return chosen


def verify(text: str, reference: str) -> bool:
  """Whether the final answer of a response is the reference answer.

  Choices are letters A to J in any usual form, and the words yes, no, true,
  false, uncertain and unknown.
  """
  found = answer(text)
  return found is not None and found == _read(reference)


def usable(reference: str) -> bool:
  """Whether a reference answer is a choice."""
  return _read(reference) is not None
