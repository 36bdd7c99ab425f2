"""Rules that withhold responses, from a file or a function of the user."""

import json
import pathlib
import re
from collections.abc import Callable

from rl_reason.base import errors, functions

# Rule(prompt, text) -> name under which a refusal is counted; '' to accept.
Rule = Callable[[str, str], str]


def load(text: str) -> list[Rule]:
  """The rules of `serve.filter`.

  Args:
    text: 'rules.json,my_rules:too_long': files with a list of rules, which have
      a `name` and one of `forbid` (a regular expression that must not match)
      or `require` (one that must); and functions (prompt, text), which return
      whether to withhold the response, or a name for the reason.

  Raises:
    ValueError: there is no such file or function, or it holds no rules.
  """
  rules: list[Rule] = []
  for item in filter(None, (x.strip() for x in text.split(","))):
    rules += [_own(item)] if ":" in item else _of_file(pathlib.Path(item))
  return rules


def refusal(rules: list[Rule], prompt: str, text: str) -> str:
  """The name of the first rule that refuses a response, or ''."""
  return next(filter(None, (rule(prompt, text) for rule in rules)), "")


def _own(item: str) -> Rule:
  function = functions.load(item)
  if not callable(function):
    raise ValueError(f"{item} is not a function")
  name = item.rpartition(":")[2]

  def rule(prompt: str, text: str) -> str:
    found = function(prompt, text)
    return found if isinstance(found, str) else name if found else ""

  return rule


def _of_file(path: pathlib.Path) -> list[Rule]:
  try:
    return [_rule(**x) for x in json.loads(path.read_text(encoding="utf-8"))]
  except (OSError, TypeError, re.error, ValueError) as e:
    raise ValueError(
        f"{path}: is not a list of rules, each with a name, and forbid or"
        f" require ({errors.one_line(e)})"
    ) from None


def _rule(name: str, forbid: str = "", require: str = "") -> Rule:
  if bool(forbid) == bool(require) or not name:
    raise ValueError(f"rule {name!r}: needs forbid or require")
  pattern = re.compile(forbid or require)
  return lambda _, text: (
      name if bool(pattern.search(text)) == bool(forbid) else ""
  )
