"""Multiple choice, and yes or no: the letter or word that is chosen."""

import re

from rl_reason.verifiers import final_answer

_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s+)?"
    r"(?:\(([A-Ja-j])\)|\[([A-Ja-j])\]|([A-J])[.):]|([A-Ja-j])(?=\s*$))",
    re.IGNORECASE,
)
_WORD = re.compile(r"(yes|no|true|false)\b", re.IGNORECASE)
_SAME = {"true": "yes", "false": "no"}
# The text of a choice may follow its letter; another choice may not.
_OTHER = re.compile(
    r"\b(?:or|and|not|either|neither|both)\b|[,/&]\s*\(?[A-J]\b"
    r"|\([A-J]\)|\b(?:yes|no|true|false)\b",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathbf|mathrm|mbox)\s*\{([^{}]*)\}")


def _read(text: str) -> str | None:
  """'A' to 'J', 'yes' or 'no'; None unless the text is exactly one choice."""
  text = _WRAPPED.sub(r"\1", text).replace("$", "").replace("\\", " ")
  text = text.strip(" \t\n*_`\"'{}")
  for pattern in (_LETTER, _WORD):
    match = pattern.match(text)
    if match and text.isprintable():
      if _OTHER.search(text, match.end()):
        return None
      chosen = next(filter(None, match.groups()))
      if pattern is _LETTER:
        return chosen.upper()
      return _SAME.get(chosen.casefold(), chosen.casefold())
  return None


def answer(text: str) -> str | None:
  """The choice of a response: 'A' to 'J', 'yes' or 'no'; None if none."""
  found = final_answer.final(text)
  return found and _read(found)


def verify(text: str, reference: str) -> bool:
  """Whether the final answer of a response is the reference answer.

  Choices are letters A to J in any usual form, and yes, no, true, false.
  """
  found = answer(text)
  return found is not None and found == _read(reference)


def usable(reference: str) -> bool:
  """Whether a reference answer is a choice."""
  return _read(reference) is not None
