"""Terms of the reward: how the config names functions and reward models.

The config lists the terms that are added to the verdict of the verifier:

  reward.functions = "my_rewards:score,my_rewards:judge(limit=9)*0.5,length*-1"

A term is a function of `reward_functions.py`, a function of the user
(`my_rewards:judge`), a JSON file of rules, a constitution (`rules.json`), or a
reward model (`DIR`, `OWNER/REPOSITORY`), see `stages/scorer.py`.
Arguments are literals in parentheses. The weight follows an asterisk, and is 1
without one; `*W0..W1` moves it linearly from W0 to W1 over the run.
"""

import ast
import asyncio
import functools
import json
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_reason.base import fields, functions
from rl_reason.tasks import Row, reward_functions
from rl_reason.tasks.reward_functions import (
    NAMES,
    RewardBatch,
    RewardFunction,
    Score,
    form_of,
)


def is_model(name: str) -> bool:
  """Whether a name is a reward model: a directory, or an id on the hub."""
  hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
  return pathlib.Path(name).is_dir() or bool(hub and name[-5:] != ".json")


def find(text: str) -> RewardFunction:
  """Returns the function of a term of the config, with its arguments bound.

  Raises:
    ValueError: there is no such function, it does not take the arguments, or
      its signature has none of the forms of `reward_functions`.
  """
  if text.endswith(".json"):
    rules = constitution(pathlib.Path(text))
    return RewardFunction(text, rules, "response")
  name, mark, arguments = text.partition("(")
  if name not in NAMES and ":" not in name:
    raise ValueError(
        f"{name!r} is none of {', '.join(NAMES)}, no 'module:function', no"
        " .json file, and no directory or hub id of a reward model"
    )
  function = (
      getattr(reward_functions, name) if name in NAMES else functions.load(name)
  )
  if not callable(function):
    raise ValueError(f"{name!r} is not a function")
  form, given = form_of(name, function), keywords(text) if mark else {}
  found = functions.signature_of(function)
  if form == "completions":  # columns of the data look like arguments
    takes = dict.fromkeys((*found.inputs, *found.arguments), fields.Spec(None))
    found = found._replace(arguments=takes)
  functions.check_arguments(name, name, found, given)
  bound = functools.partial(function, **given) if given else function
  return RewardFunction(text, bound, form)


def constitution(path: pathlib.Path) -> Callable:
  """A reward function: the weighted share of rules that a response satisfies.

  The file is a JSON list of rules, each with a `name`, a `weight`, and one of
  `require` (a regular expression that must match), `forbid` (one that must not)
  or `function` (of one response, as in the config).

  Raises:
    ValueError: the file is no list of such rules; the text names the rule.
  """
  try:
    rules = json.loads(path.read_text(encoding="utf-8"))
    parts = [(float(rule["weight"]), _rule(rule)) for rule in rules]
  except (OSError, KeyError, TypeError, re.error, ValueError) as e:
    raise ValueError(f"{path}: is not a list of rules ({e!r})") from None
  total = sum(weight for weight, _ in parts)
  if total <= 0 or any(weight < 0 for weight, _ in parts):
    raise ValueError(f"{path}: weights must be positive")
  return lambda response, row: (
      sum(weight * part(response, row) for weight, part in parts) / total
  )


def _rule(rule: dict) -> Callable:
  kind = next((x for x in ("require", "forbid", "function") if x in rule), "")
  if set(rule) != {"name", "weight", kind}:
    raise ValueError(
        f"rule {rule.get('name')!r}: needs name, weight, and one of require,"
        " forbid, function"
    )
  if kind == "function":
    found = find(rule["function"])
    if found.form != "response":
      raise ValueError(f"{found.name}: a rule needs (response, row)")
    function = found.function
    return lambda response, row: reward_functions.number(
        function(response, row)
    )
  pattern, wanted = re.compile(rule[kind]), kind == "require"
  return lambda response, row: float(
      bool(pattern.search(response.text)) == wanted
  )


def keywords(text: str) -> dict[str, Any]:
  """The keywords of 'name(keyword=literal, ...)'."""
  call = "f" + text[text.index("(") :]
  try:
    node = ast.parse(call, mode="eval").body
    if isinstance(node, ast.Call) and not node.args:
      return {str(x.arg): ast.literal_eval(x.value) for x in node.keywords}
  except (SyntaxError, ValueError):
    pass
  raise ValueError(f"{text!r}: must look like 'name(keyword=1)'")


@functools.cache
def _loaded(text: str) -> RewardFunction:
  return find(text)


def scores_in_worker(text: str, batch: list) -> list[Score]:
  """Returns the scores of a batch; runs in a worker of `workers.Pool`."""
  found = RewardBatch(*batch)
  rows = [Row(*row) for row in found.rows]
  function = _loaded(text)
  started = function.start(found._replace(rows=rows))
  return asyncio.run(function.finish(started, len(rows)))


class Term(NamedTuple):
  """A term, with its weight at the first step and after the last step."""

  name: str
  first: float
  last: float

  @property
  def label(self) -> str:
    """Name in metrics: without directories and suffix."""
    name, mark, arguments = self.name.partition("(")
    return pathlib.PurePath(name).name.removesuffix(".json") + mark + arguments


def term(text: str) -> Term:
  """Parses 'steps', 'steps*0.5' or 'length*-0.3..0'.

  Raises:
    ValueError: the text has another form.
  """
  call = re.match(r"[^(]*\(.*\)", text)  # literals may contain asterisks
  end = call.end() if call else 0
  rest, mark, weights = text[end:].rpartition("*")
  if not mark:
    rest, weights = weights, "1"
  name = (text[:end] + rest).strip()
  first, range_mark, last = weights.partition("..")
  try:
    out = Term(name, float(first), float(last if range_mark else first))
  except ValueError:
    out = Term("", 0, 0)
  readable = out.name and all(map(math.isfinite, out[1:]))
  # Without an asterisk, what looks like a weight must not become the name.
  if readable and (mark or _NAME.fullmatch(name) or os.path.exists(name)):
    return out
  form = "must look like 'steps', 'steps*0.5' or 'steps*0.5..0'"
  if re.search(r"\s[+]|[+]\s|\w\s+\w", text):
    form = "commas separate terms, as in 'steps,length*-0.3'"
  elif re.fullmatch(r"[-+]?[\d.]+\*?[^*]+", text) or not mark:
    form = "a weight follows the function after an asterisk, as in 'steps*0.5'"
  raise ValueError(f"{text!r}: {form}")


# A function with or without arguments, a file, a directory, an id on the hub.
_NAME = re.compile(r"[\w./][\w./-]*(:[\w.]+)?(\(.*\))?")


def parts(text: str) -> list[str]:
  """Splits a text at commas outside of parentheses, without empty parts."""
  out = [""]
  for piece in text.split(","):
    if out[-1].count("(") > out[-1].count(")"):  # a comma of the keywords
      out[-1] += f",{piece}"
    else:
      out.append(piece)
  return [x.strip() for x in out if x.strip()]


def terms(text: str) -> tuple[Term, ...]:
  """Parses 'steps*0.5,mine:f(low=1,high=2)*-0.3': commas separate the terms.

  Raises:
    ValueError: a term has another form.
  """
  return tuple(map(term, parts(text)))
