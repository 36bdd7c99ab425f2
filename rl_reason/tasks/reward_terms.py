"""Terms of the reward: functions in three forms, and reward models.

The config lists the terms of the reward beside the verdict of the verifier:

  reward.functions = "boxed*0.1,my_rewards:judge(limit=9)*0.5,length*-0.3..0"

Each is a function of `reward_functions.py`, one of the user
(`my_rewards:judge`), a JSON file of rules, a constitution (`rules.json`), or a
reward model (`DIR`, `OWNER/REPOSITORY`), which reads tokens and is in
`reward_models/`. `W0..W1` moves the weight linearly from W0 to W1 over the run.
The signature of a function says which form it has; each may be `async def`:

  f(response, row) -> float                    of one response
  f(batch) -> floats                           of a `RewardBatch`
  f(completions, prompts, **columns) -> floats the one of TRL, as it is

Keyword-only parameters of the first two are set in parentheses, as literals.
`collect/reward_runner.py` calls the functions; nothing here imports jax, so
that worker processes start quickly.
"""

import ast
import asyncio
import functools
import inspect
import json
import math
import pathlib
import re
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_reason.base import fields, functions
from rl_reason.tasks import Row, reward_functions
from rl_reason.tasks.reward_functions import NAMES, Response

# --- the three forms of a function -------------------------------------------


class RewardBatch(NamedTuple):
  """What a function of a batch may look at: all responses to one prompt.

  Each attribute but the last is a list with one item for each response.

  Attributes:
    prompts: as the model reads them.
    texts: the responses, without their EOS.
    token_ids: their tokens, EOS included, observations left out.
    truncated: whether they have no EOS.
    rows: their rows; `row.messages` are the turns of a chat prompt, and
      `row.columns` all columns of the data.
    max_tokens: rollout.max_tokens.
  """

  prompts: list[str]
  texts: list[str]
  token_ids: list[list[int]]
  truncated: list[bool]
  rows: list[Row]
  max_tokens: int


class Failed(str):
  """Why a function gave a response no reward: a traceback, or a sentence."""


# None: the function does not apply to the response, as TRL has it.
Score = float | None | Failed

_OF_TRL = ("prompts", "completions", "completion_ids")


def _attempt(function: Callable, *args, **keywords) -> Any:
  try:
    return function(*args, **keywords)
  except BaseException:  # the user's code may raise anything, and may exit
    return Failed(traceback.format_exc())


async def _awaited(value: Any) -> Any:
  """What a function returned; the exception of an async one as `Failed`."""
  try:
    return await value if inspect.isawaitable(value) else value
  except asyncio.CancelledError:  # it took too long
    raise
  except BaseException:  # the user's code may raise anything, and may exit
    return Failed(traceback.format_exc())


class RewardFunction(NamedTuple):
  """A reward function that a term of the config names.

  Attributes:
    name: as in the config.
    function: with its keywords bound.
    form: 'response', 'batch', or 'completions' (TRL's).
  """

  name: str
  function: Callable
  form: str

  def start(self, batch: RewardBatch) -> list[Any]:
    """Calls the function; `finish` awaits what an async one returns."""
    if self.form == "batch":
      return [_attempt(self.function, batch)]
    if self.form == "completions":
      return [_attempt(self._call_of_trl, batch)]
    responses = [
        Response(text, len(ids) / batch.max_tokens, truncated)
        for text, ids, truncated in zip(
            batch.texts, batch.token_ids, batch.truncated, strict=True
        )
    ]
    return [
        _attempt(self.function, *pair)
        for pair in zip(responses, batch.rows, strict=True)
    ]

  async def finish(self, started: list[Any], count: int) -> list[Score]:
    """The scores of the `count` responses of what `start` returned."""
    values = await asyncio.gather(*map(_awaited, started))
    if self.form != "response":
      [found] = values
      if isinstance(found, Failed):
        return [found] * count
      values = _attempt(list, found)
      if isinstance(values, Failed) or len(values) != count:
        shown = repr(found)[:200]
        problem = f"returned {shown} for {count} responses: one number each"
        return [Failed(problem)] * count
    return [self._score(x) for x in values]

  def _score(self, value: Any) -> Score:
    if isinstance(value, Failed):
      return value
    if value is None and self.form == "completions":
      return None
    number = _attempt(float, value)
    if isinstance(number, Failed) or not math.isfinite(number):
      return Failed(f"returned {value!r}, which is no finite number")
    return number

  def _call_of_trl(self, batch: RewardBatch) -> Any:
    """Calls the function as TRL does: columns are keywords, as lists.

    A prompt of turns has completions of turns, and a text has texts.

    Raises:
      TypeError: it takes a column that the data do not have.
    """
    columns = [dict(x.columns) or {"answer": x.answer} for x in batch.rows]
    texts: list[Any] = batch.texts
    prompts: list[Any] = batch.prompts
    if batch.rows[0].messages:
      texts = [[dict(role="assistant", content=text)] for text in texts]
      prompts = [list(row.messages) for row in batch.rows]
    inputs: dict[str, Any] = {
        name: [x.get(name) for x in columns] for name in columns[0]
    }
    for name in ("prompt", "completion"):  # TRL gives these as lists only
      inputs.pop(name, None)
    ids = batch.token_ids
    inputs |= dict(prompts=prompts, completions=texts, completion_ids=ids)
    bound = getattr(self.function, "keywords", {})
    parameters = inspect.signature(self.function).parameters.values()
    missing = [
        x.name
        for x in parameters
        if x.name not in inputs
        and x.default is x.empty
        and x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)
    ]
    if missing:
      known = ", ".join(x for x in inputs if x not in _OF_TRL)
      raise TypeError(
          f"{self.name} takes {', '.join(missing)}, which the data do not have:"
          f" their columns are {known}"
      )
    named = {x.name for x in parameters}
    everything = any(x.kind is x.VAR_KEYWORD for x in parameters)
    return self.function(
        **{
            k: x
            for k, x in inputs.items()
            if k not in bound and (everything or k in named)
        }
    )


def _form(name: str, function: Callable) -> str:
  """Which form a function has, by its signature.

  Raises:
    ValueError: it has none of the three.
  """
  parameters = inspect.signature(function).parameters.values()
  positional = (
      inspect.Parameter.POSITIONAL_ONLY,
      inspect.Parameter.POSITIONAL_OR_KEYWORD,
  )
  inputs = [x.name for x in parameters if x.kind in positional]
  needed = [
      x.name for x in parameters if x.name in inputs and x.default is x.empty
  ]
  if any(x.name == "completions" for x in parameters):
    return "completions"
  if "batch" in inputs and len(needed) <= 1:
    return "batch"
  if len(needed) <= 2 <= len(inputs):
    return "response"
  raise ValueError(
      f"{name} takes ({', '.join(x.name for x in parameters)}): a reward"
      " function takes (response, row), or (batch), or as in TRL (completions,"
      " **columns); parameters of your own are keyword-only, behind a *"
  )


@functools.cache
def _loaded(text: str) -> RewardFunction:
  return find(text)


def scores_in_worker(text: str, batch: list) -> list[Score]:
  """The scores of a function of the config; runs in `workers.Pool`.

  Args:
    text: the term without its weight.
    batch: a `RewardBatch` that went through JSON.
  """
  found = RewardBatch(*batch)
  rows = [Row(*row) for row in found.rows]
  function = _loaded(text)
  started = function.start(found._replace(rows=rows))
  return asyncio.run(function.finish(started, len(rows)))


# --- the terms of the config -------------------------------------------------


def is_model(name: str) -> bool:
  """Whether a name is that of a reward model: a directory, or a hub id."""
  hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
  return pathlib.Path(name).is_dir() or bool(hub and name[-5:] != ".json")


def find(text: str) -> RewardFunction:
  """The function of a term of the config, with its keywords bound.

  Raises:
    ValueError: there is no such function, it does not take the keywords, or it
      has another form.
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
  form, given = _form(name, function), keywords(text) if mark else {}
  found = functions.signature_of(function)
  if form == "completions":  # its columns look like keywords
    takes = dict.fromkeys((*found.inputs, *found.arguments), fields.Spec(None))
    found = found._replace(arguments=takes)
  functions.check_arguments(name, name, found, given)
  bound = functools.partial(function, **given) if given else function
  return RewardFunction(text, bound, form)


def constitution(path: pathlib.Path) -> Callable:
  """A reward function: the weighted share of rules that a response satisfies.

  Args:
    path: a JSON list of rules, each with a `name`, a `weight`, and one of
      `require` (a regular expression that must match), `forbid` (one that
      must not) or `function` (of a response, as in the config).

  Raises:
    ValueError: it is not such a list; the text names the rule.
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
    return found.function
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


class Term(NamedTuple):
  """A term with its weight at the first and after the last step."""

  name: str
  first: float
  last: float

  @property
  def label(self) -> str:
    """The name in metrics: without directories and suffix."""
    name, mark, arguments = self.name.partition("(")
    return pathlib.PurePath(name).name.removesuffix(".json") + mark + arguments


def term(text: str) -> Term:
  """Parses 'steps*0.5' or 'length*-0.3..0'.

  Raises:
    ValueError: it looks otherwise.
  """
  name, _, weights = text.rpartition("*")
  first, range_mark, last = weights.partition("..")
  try:
    out = Term(name, float(first), float(last if range_mark else first))
  except ValueError:
    out = Term("", 0, 0)
  if not out.name or not all(map(math.isfinite, out[1:])):
    raise ValueError(f"{text!r}: must look like 'steps*0.5' or 'steps*0.5..0'")
  return out


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
    ValueError: a term looks otherwise.
  """
  return tuple(map(term, parts(text)))
