"""Reward functions: their three forms, and the functions of the package.

The signature of a function says which form it has; each may be `async def`:

  f(response, row) -> float                     of one response
  f(batch) -> floats                            of a `RewardBatch`
  f(completions, prompts, **columns) -> floats  as in TRL

In place of a number, a function may return the steps of a response: a list of
(end, reward), where end is the number of characters of the text up to the end
of the step. The score of the response is then the sum of these rewards, and
`reward.process` says whether it is rewarded by step.

Keyword-only parameters of the first two forms are arguments in the config. The
config names the functions as terms of the reward (`reward_terms.py`), and
`collect/reward_runner.py` calls them. Worker processes import this module, so
it does not import JAX.
"""

import asyncio
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Literal, NamedTuple

from rl_reason.base import own_code
from rl_reason.tasks import Row
from rl_reason.verifiers import arithmetic_steps, thoughts


class Response(NamedTuple):
  """The input of a function of one response.

  Attributes:
    text: the response without the token that ended it.
    share: number of tokens of the response divided by rollout.max_tokens.
    truncated: whether the response reached its limit without an end.
  """

  text: str
  share: float
  truncated: bool


class RewardBatch(NamedTuple):
  """The input of a function of a batch: all responses to one prompt.

  Each attribute except the last is a list with one item for each response.

  Attributes:
    prompts: the prompts as the model reads them.
    texts: the responses without the tokens that ended them.
    token_ids: tokens of the responses, with what ended them and without
      observations.
    truncated: whether a response reached its limit without an end.
    rows: the rows of the prompts; `row.messages` are the turns of a chat,
      `row.columns` are all columns of the data.
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


# (end, reward) of each step; ends increase.
Steps = list[tuple[int, float]]
# None, as in TRL: the function does not apply to the response.
# A dict is of a constitution: the score, and how far each rule is kept.
Score = float | None | Failed | Steps | dict[str, Any]
LARGEST = 3e38  # beyond, a float32 is infinite, or means that there is no score
# Inputs of a function in TRL's form that are no columns of the data.
_OF_TRL = ("prompts", "completions", "completion_ids")


def _attempt(function: Callable, *args, **keywords) -> Any:
  try:
    return function(*args, **keywords)
  except BaseException as e:  # the user's code may raise, or exit
    return Failed(own_code.report(e))


async def _awaited(value: Any) -> Any:
  """The value of a function, awaited if it is async; `Failed` if it raises."""
  try:
    return await value if inspect.isawaitable(value) else value
  except asyncio.CancelledError:  # it took too long
    raise
  except BaseException as e:  # the user's code may raise, or exit
    return Failed(own_code.report(e))


class RewardFunction(NamedTuple):
  """A reward function that a term of the config names.

  Attributes:
    name: name in the config.
    function: the function with its keywords bound.
    form: 'response', 'batch', or 'completions' (TRL's).
  """

  name: str
  function: Callable
  form: str

  def start(self, batch: RewardBatch) -> list[Any]:
    """Calls the function; `finish` awaits the result of an async function."""
    if self.form == "batch":
      return [_attempt(self.function, batch)]
    if self.form == "completions":
      return [_attempt(self._call_of_trl, batch)]
    return [
        _attempt(self.function, *pair)
        for pair in zip(responses(batch), batch.rows, strict=True)
    ]

  async def finish(self, started: list[Any], count: int) -> list[Score]:
    """Returns `count` scores, one a response, from the result of `start`."""
    values = await asyncio.gather(*map(_awaited, started))
    if self.form != "response":
      [found] = values
      if isinstance(found, Failed):
        return [found] * count
      # The order of a set is not that of the responses, and a dict is its keys.
      ordered = not isinstance(found, str | bytes | dict | Set)
      values = _attempt(list, found)
      if not ordered or isinstance(values, Failed) or len(values) != count:
        shown = repr(found)[:200]
        problem = f"returned {shown} for {count} responses: one number each"
        return [Failed(problem)] * count
    return [self._score(x) for x in values]

  def _score(self, value: Any) -> Score:
    if isinstance(value, Failed):
      return value
    if value is None and self.form == "completions":
      return None
    if isinstance(value, dict) and value.keys() == {"score", "rules"}:
      number = self._score(value["score"])  # of a constitution
      return number if isinstance(number, Failed) else value
    if isinstance(value, list | tuple):
      found = _attempt(_steps, value)
      return Failed(f"returned {found}") if isinstance(found, str) else found
    number = _attempt(float, value)
    if isinstance(number, Failed) or not _is_finite(number):
      shown = repr(value)[:200]
      return Failed(f"returned {shown}, which is no finite number")
    return number

  def _call_of_trl(self, batch: RewardBatch) -> Any:
    """Calls the function as TRL does: each column is a keyword, a list.

    The completions of a chat prompt are lists of messages, of other prompts
    texts.

    Raises:
      TypeError: the function takes a column that the data do not have.
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
    if problem := missing_columns(self, inputs):
      raise TypeError(problem)
    bound = getattr(self.function, "keywords", {})
    parameters = inspect.signature(self.function).parameters.values()
    named = {x.name for x in parameters}
    everything = any(x.kind is x.VAR_KEYWORD for x in parameters)
    return self.function(
        **{
            k: x
            for k, x in inputs.items()
            if k not in bound and (everything or k in named)
        }
    )


def _is_finite(number: float) -> bool:
  """Whether a number stays finite, and a number, as float32."""
  return abs(number) < LARGEST


def _steps(value: Sequence) -> Steps | str:
  """The steps that a function has returned, or what is wrong with them."""
  try:
    out = [(operator.index(end), float(reward)) for end, reward in value]
  except (TypeError, ValueError):
    out = [(0, 0.0)]
  before = 0
  for end, reward in out:
    if end <= before or not _is_finite(reward):
      return (
          f"{str(value)[:200]}: steps are (end, reward), increasing numbers of"
          " characters and finite numbers"
      )
    before = end
  return out


def responses(batch: RewardBatch) -> list[Response]:
  """The inputs of a function of one response."""
  return [
      Response(text, len(ids) / batch.max_tokens, truncated)
      for text, ids, truncated in zip(
          batch.texts, batch.token_ids, batch.truncated, strict=True
      )
  ]


def number(score: float | Steps | dict[str, Any]) -> float:
  """The number of a response: its steps count with the sum of their rewards."""
  if isinstance(score, dict):
    return score["score"]
  if isinstance(score, list | tuple):
    return math.fsum(reward for _, reward in score)
  return score


def missing_columns(function: RewardFunction, columns: Iterable[str]) -> str:
  """Which columns a function in TRL's form takes that data lack; '' if none."""
  known = [x for x in columns if x not in (*_OF_TRL, "prompt", "completion")]
  missing = [
      x.name
      for x in inspect.signature(function.function).parameters.values()
      if x.name not in (*known, *_OF_TRL)
      and x.default is x.empty
      and x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)
  ]
  if not missing:
    return ""
  return (
      f"{function.name} takes {', '.join(missing)}, which the data do not have:"
      f" their columns are {', '.join(known)}"
  )


def form_of(name: str, function: Callable) -> str:
  """Returns the form of a function by its signature, see `RewardFunction`.

  Raises:
    ValueError: the signature has none of the three forms.
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
      " **columns); your own parameters are keyword-only, after a *"
  )


# --- the functions of the package ---------------------------------------------


def boxed(response: Response, row: Row) -> float:
  r"""1 if there is one \boxed{...} and it closes, else 0."""
  before, mark, rest = response.text.partition("\\boxed{")
  depth = 1
  for symbol in rest:
    depth += (symbol == "{") - (symbol == "}")
    if not depth:
      break
  return float(bool(mark) and not depth and "\\boxed{" not in rest)


_TAG = re.compile(r"</?(think|answer)>")
_TAGS = re.compile(
    r"\s*<think>(?P<think>.+?)</think>\s*<answer>(?P<answer>.+?)</answer>\s*",
    re.DOTALL,
)


def tags(response: Response, row: Row) -> float:
  """1 for exactly <think>...</think> <answer>...</answer>, else 0.

  The format reward of R1-Zero (arXiv:2501.12948, sec 2.2.2). The first tag may
  be the end of the prompt.
  """
  match = _TAGS.fullmatch(thoughts.whole(row.prompt, response.text))
  inner = match["think"] + match["answer"] if match else ""
  return float(bool(match) and not _TAG.search(inner))


def length(response: Response, row: Row) -> float:
  """Length of the response as a share of rollout.max_tokens."""
  return response.share


def steps(
    response: Response,
    row: Row,
    *,
    by: Literal["equation", "line"] = "equation",
) -> Steps:
  """The share of arithmetic steps that are correct; 0 without any step.

  Keyword: by "line", the equations of a line are one step, which is correct if
  all of them are.
  """
  found = arithmetic_steps.steps(response.text)
  if by == "line":
    lines: dict[int, tuple[int, bool]] = {}
    for end, correct in found:
      line = response.text.count("\n", 0, end)
      _, so_far = lines.get(line, (0, True))
      lines[line] = end, so_far and correct
    found = list(lines.values())
  return [(end, correct / len(found)) for end, correct in found]


def repetition(response: Response, row: Row, *, run: int = 4) -> float:
  """The share of n-grams of words, n = `run`, that are repeated."""
  return repeated(response.text.split(), run=run)


def repeated(items: Sequence, *, run: int = 4) -> float:
  """The share of n-grams, n = `run`, that occur earlier in the sequence."""
  ngrams = [tuple(items[i : i + run]) for i in range(len(items) - run + 1)]
  return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


NAMES = ("boxed", "tags", "length", "steps", "repetition")
