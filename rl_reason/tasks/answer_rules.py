"""Rules of answers: functions of one response, 1 where it keeps the rule.

They need no verifier and no reference answer, so that they fit rows of any
kind; `constitution.json`, the constitution of the package, names them. The form
that a prompt asks for is recognized by the words of the templates of prompts
(`data/templates.py`).
"""

import re
import unicodedata
from collections.abc import Iterator

from rl_reason.tasks import Row
from rl_reason.tasks.reward_functions import Response, boxed, repetition, tags

_ANSWER_LINE = re.compile(r"^.*\bAnswer:[ \t]*\S.*$", re.MULTILINE)
_COMMAND = re.compile(r"\\[A-Za-z]+")
# Symbols of mathematics are letters of no language.
_SYMBOL = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_SYMBOLS = ("GREEK", "MATHEMATICAL")
# A script of which a prompt has less is a quotation.
_SHARE = 0.1


def asked_format(response: Response, row: Row) -> float:
  """1 if the answer has the form that the prompt asks for, or it asks for none.

  The forms are a box, think and answer tags, and a last line "Answer: ...".
  """
  if "\\boxed" in row.prompt:
    return boxed(response, row)
  if "<answer>" in row.prompt:
    return tags(response, row)
  if "Answer:" in row.prompt:
    lines = response.text.strip().splitlines()
    return float(bool(lines) and bool(_ANSWER_LINE.fullmatch(lines[-1])))
  return 1.0


def ends_with_answer(response: Response, row: Row) -> float:
  """1 if no word follows the answer; 1 without an answer that is marked."""
  text = response.text
  if "</answer>" in text:
    rest = text.rpartition("</answer>")[2]
  elif "\\boxed{" in text:
    rest = _after_box(text.rpartition("\\boxed{")[2])
  elif lines := list(_ANSWER_LINE.finditer(text)):
    rest = text[lines[-1].end() :]
  else:
    return 1.0
  return float(not re.search(r"\w", rest))


def _after_box(text: str) -> str:
  """What follows a box whose first brace is open; '' if it does not close."""
  depth = 1
  for index, symbol in enumerate(text):
    depth += (symbol == "{") - (symbol == "}")
    if not depth:
      return text[index + 1 :]
  return ""


def few_repetitions(
    response: Response, row: Row, *, run: int = 4, most: float = 0.2
) -> float:
  """1 if at most the share `most` of `run`-grams of words is repeated."""
  return float(repetition(response, row, run=run) <= most)


def in_time(response: Response, row: Row, *, share: float = 1.0) -> float:
  """1 if the response has ended, within `share` of rollout.max_tokens."""
  return float(not response.truncated and response.share <= share)


def same_script(response: Response, row: Row) -> float:
  """The share of letters whose script is one of the prompt's.

  The language consistency of DeepSeek-R1 (arXiv:2501.12948, sec 2.3.2) counts
  words of the target language; a script is known without a model of languages,
  but French and English have the same. Commands of LaTeX, Greek letters and
  single Latin letters do not count.
  """
  asked = list(_scripts(row.prompt))
  found = list(_scripts(response.text))
  known = {x for x in {*asked} if asked.count(x) >= _SHARE * len(asked)}
  return sum(x in known for x in found) / len(found) if asked and found else 1.0


def _scripts(text: str) -> Iterator[str]:
  """The script of each letter, such as LATIN, CYRILLIC or CJK."""
  text = _SYMBOL.sub(" ", _COMMAND.sub(" ", text))
  for letter in filter(str.isalpha, text):
    script = unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
    if script not in _SYMBOLS:
      yield script


NAMES = (
    "asked_format",
    "ends_with_answer",
    "few_repetitions",
    "in_time",
    "same_script",
)
