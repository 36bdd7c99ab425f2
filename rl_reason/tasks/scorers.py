"""Scorers: numbers from the text of a response that a reward may add.

A scorer is a function of (response, row) that returns a number. The config
lists scorers with their weights:

  reward.scorers = "boxed*0.1,steps*0.5,length*-0.3..0"

Each is a function of this file, a function of the user (`my_rewards:brevity`),
a JSON file of rules, a constitution (`rules.json`), or a reward model
(`DIR`, `OWNER/REPOSITORY`), which reads tokens and is in `reward_models/`.
Keyword-only parameters of a function are set in parentheses:
`my_rewards:brevity(limit=40)*0.1`. `W0..W1` moves the weight linearly from W0
to W1 over the run. A scorer that fails gives 0 and is counted.
"""

import ast
import functools
import json
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason import functions, tasks
from rl_reason.tasks import Row
from rl_reason.verifiers.steps import verdicts as step_verdicts


class Response(NamedTuple):
  """What a scorer may look at.

  Attributes:
    text: without its EOS.
    share: its number of tokens divided by rollout.max_tokens.
    truncated: whether it has no EOS.
  """

  text: str
  share: float
  truncated: bool


Score = Callable[[Response, Row], float]


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
  text = response.text
  if row.prompt.rstrip().endswith("<think>"):
    text = "<think>" + text
  match = _TAGS.fullmatch(text)
  inner = match["think"] + match["answer"] if match else ""
  return float(bool(match) and not _TAG.search(inner))


def length(response: Response, row: Row) -> float:
  """The share of the allowed tokens that the response has."""
  return response.share


def steps(response: Response, row: Row) -> float:
  """The share of correct arithmetic steps (`verifiers/steps.py`), or 0."""
  correct = step_verdicts(response.text)
  return sum(correct) / len(correct) if correct else 0.0


def repetition(response: Response, row: Row, *, run: int = 4) -> float:
  """The share of n-grams of words, n = `run`, that are repeated."""
  return repeated(response.text.split(), run=run)


def repeated(items: Sequence, *, run: int = 4) -> float:
  """The share of n-grams, n = `run`, that occur earlier in the sequence."""
  ngrams = [tuple(items[i : i + run]) for i in range(len(items) - run + 1)]
  return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def constitution(path: pathlib.Path) -> Score:
  """A scorer: the weighted share of rules that a response satisfies.

  Args:
    path: a JSON list of rules, each with a `name`, a `weight`, and one of
      `require` (a regular expression that must match), `forbid` (one that
      must not) or `scorer` (as in the config).

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


def _rule(rule: dict) -> Score:
  kind = next((x for x in ("require", "forbid", "scorer") if x in rule), "")
  if set(rule) != {"name", "weight", kind}:
    raise ValueError(
        f"rule {rule.get('name')!r}: needs name, weight, and one of require,"
        " forbid, scorer"
    )
  if kind == "scorer":
    return find(rule["scorer"])
  pattern, wanted = re.compile(rule[kind]), kind == "require"
  return lambda response, row: float(
      bool(pattern.search(response.text)) == wanted
  )


NAMES = ("boxed", "tags", "length", "steps", "repetition")


def is_model(name: str) -> bool:
  """Whether a name is that of a reward model: a directory, or a hub id."""
  hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
  return pathlib.Path(name).is_dir() or bool(hub and name[-5:] != ".json")


def find(text: str) -> Score:
  """The scorer of a term of the config, with its keywords bound.

  Raises:
    ValueError: there is no such scorer, or it does not take the keywords.
  """
  if text.endswith(".json"):
    return constitution(pathlib.Path(text))
  name, mark, arguments = text.partition("(")
  if name not in NAMES and ":" not in name:
    raise ValueError(
        f"{name!r} is none of {', '.join(NAMES)}, no 'module:function', no"
        " .json file, and no directory or hub id of a reward model"
    )
  score = globals()[name] if name in NAMES else functions.load(name)
  if not callable(score):
    raise ValueError(f"{name!r} is not a function")
  keywords = _keywords(text) if mark else {}
  found = functions.signature_of(score)
  functions.check_arguments(name, name, found, keywords)
  return functools.partial(score, **keywords)


def _keywords(text: str) -> dict[str, Any]:
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
  """A scorer with its weight at the first and after the last step."""

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


def terms(text: str) -> tuple[Term, ...]:
  """Parses 'steps*0.5,mine:f(low=1,high=2)*-0.3': commas separate the terms.

  Raises:
    ValueError: a term looks otherwise.
  """
  parts = [""]
  for piece in text.split(","):
    if parts[-1].count("(") > parts[-1].count(")"):  # a comma of the keywords
      parts[-1] += f",{piece}"
    else:
      parts.append(piece)
  return tuple(term(x.strip()) for x in parts if x.strip())


def apply(
    score: Score,
    response: Response,
    row: Row,
    failures: tasks.Failures | None = None,
) -> float | None:
  """The score; None, and a failure, if it raises or is no finite number."""
  try:
    value = float(score(response, row))
    if not math.isfinite(value):
      raise ValueError(f"{value} is no finite number")
  except Exception:  # the user's code may raise anything; the run continues
    if failures:
      failures.add()
    return None
  return value
