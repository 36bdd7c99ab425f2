"""Terms of the reward: how the config names functions and reward models.

The config lists the terms that are added to the verdict of the verifier:

  reward.functions = "my_rewards:score,my_rewards:judge(limit=9)*0.5,length*-1"

A term is a function of `reward_functions.py` or `answer_rules.py`, a function
of the user (`my_rewards:judge`), a JSON file of rules (`rules.json`, or
`constitution` of the package), see `constitutions.py`, or a reward model
(`DIR`, `OWNER/REPOSITORY`), see `stages/scorer.py`.
Arguments are literals in parentheses. The weight follows an asterisk, and is 1
without one; `*W0..W1` moves it linearly from W0 to W1 over the run.
"""

import ast
import asyncio
import functools
import inspect
import math
import os
import pathlib
import re
from typing import Any, NamedTuple

from rl_reason.base import fields, functions
from rl_reason.tasks import (
    Row,
    answer_rules,
    constitutions,
    judge as judges,
    reward_functions,
)
from rl_reason.tasks.reward_functions import (
    RewardBatch,
    RewardFunction,
    Score,
    form_of,
)

NAMES = (*reward_functions.NAMES, *answer_rules.NAMES)


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
  if rules := rules_of(text):
    return RewardFunction(text, rules, "batch")
  name, mark, arguments = text.partition("(")
  if name not in NAMES and ":" not in name:
    raise ValueError(
        f"{name!r} is none of {', '.join(NAMES)}, no 'module:function', not"
        " 'constitution', no .json file, and no directory or hub id of a reward"
        " model"
    )
  place = answer_rules if name in answer_rules.NAMES else reward_functions
  function = getattr(place, name) if name in NAMES else functions.load(name)
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


def rules_of(text: str) -> constitutions.Constitution | None:
  """The constitution of a term of the config; None of other terms.

  Raises:
    ValueError: its file is no list of rules, or its arguments are not those of
      a judge.
  """
  path = constitutions.of_term(text)
  if path is None:
    return None
  given = keywords(text) if "(" in text else {}
  judge = None
  if given:
    known = inspect.signature(judges.Judge).parameters
    try:
      judge = judges.Judge(given.pop("judge"), **given)
    except (KeyError, TypeError):
      raise ValueError(
          f"{text}: the arguments of a constitution are judge, the address of a"
          f" server, and {', '.join([*known][1:])}"
      ) from None
  return constitutions.Constitution(path, judge, find)


def models_of(text: str) -> list[str]:
  """The reward models of a term: the term itself, or of its rules."""
  if is_model(text):
    return [text]
  try:
    rules = rules_of(text)
  except ValueError:  # refused where the term is found
    return []
  return [x.model for x in rules.models] if rules else []


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
    if constitutions.of_term(self.name):
      mark = arguments = ""  # the address of a judge
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
