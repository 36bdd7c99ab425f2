"""Scores of a response's text beside right and wrong: what a reward may add.

A scorer is a function of (response, row) that returns a number. The config
lists them with their weights:

  reward.scorers = "boxed*0.1,steps*0.5,length*-0.3..0"

Each is a function of this file, a function of yours by its import path
(`my_rewards:politeness*1`), a JSON file of rules, a constitution
(`rules.json*0.2`), or a reward model (`DIR*0.5`, `OWNER/REPOSITORY*0.5`), which
reads tokens and is none of this file's. `W0..W1` moves the weight from W0 to W1
over the run. A scorer that fails gives 0 and is counted; the run goes on.
"""

import importlib
import json
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_reason.tasks import Row
from rl_reason.verifiers.steps import verdicts as step_verdicts


class Response(NamedTuple):
  """What a scorer may look at.

  Attributes:
    text: without its EOS.
    share: its tokens over the most that are allowed, up to 1.
    truncated: it did not end.
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
  """1 for <think>...</think> <answer>...</answer> and nothing else, else 0.

  The format reward of R1-Zero (arXiv:2501.12948, sec 2.2.2). A prompt that
  ends in <think> has opened the first tag already.
  """
  text = response.text
  if row.prompt.rstrip().endswith("<think>"):
    text = "<think>" + text
  match = _TAGS.fullmatch(text)
  inner = match["think"] + match["answer"] if match else ""
  return float(bool(match) and not _TAG.search(inner))


def length(response: Response, row: Row) -> float:
  """The share of the allowed tokens that it takes."""
  return response.share


def steps(response: Response, row: Row) -> float:
  """The share of its arithmetic steps that hold; 0 of none.

  Plain or LaTeX; `verifiers/steps.py` says what a step is.
  """
  found = step_verdicts(response.text)
  return sum(found) / len(found) if found else 0.0


def repetition(response: Response, row: Row) -> float:
  """The share of its runs of four words that stood in it before."""
  return repeated(response.text.split())


def repeated(items: Sequence, *, run: int = 4) -> float:
  """The share of the runs of so many items that were there before."""
  runs = [tuple(items[i : i + run]) for i in range(len(items) - run + 1)]
  return 1 - len(set(runs)) / len(runs) if runs else 0.0


def constitution(path: pathlib.Path) -> Score:
  """The weighted share of rules that a response keeps.

  Args:
    path: a JSON list of rules, each with a `name`, a `weight`, and one of
      `require` (a regular expression that must be found), `forbid` (one that
      must not be) or `scorer` (as in the config).

  Raises:
    ValueError: it is not such a list; the text names the rule.
  """
  try:
    rules = json.loads(path.read_text(encoding="utf-8"))
    parts = [(float(rule["weight"]), _rule(rule)) for rule in rules]
  except (OSError, KeyError, TypeError, re.error, ValueError) as e:
    raise ValueError(f"{path}: is no list of rules ({e!r})") from None
  total = sum(weight for weight, _ in parts)
  if not parts or min(weight for weight, _ in parts) < 0 or total <= 0:
    raise ValueError(f"{path}: weights must be positive")

  def score(response: Response, row: Row) -> float:
    return sum(w * part(response, row) for w, part in parts) / total

  return score


def _rule(rule: dict) -> Score:
  kinds = [kind for kind in ("require", "forbid", "scorer") if kind in rule]
  if len(kinds) != 1 or set(rule) != {"name", "weight", *kinds}:
    raise ValueError(
        f"rule {rule.get('name')!r}: needs name, weight, and one of require,"
        " forbid, scorer"
    )
  if kinds == ["scorer"]:
    return find(rule["scorer"])
  pattern, wanted = re.compile(rule[kinds[0]]), kinds == ["require"]
  return lambda response, row: float(
      bool(pattern.search(response.text)) == wanted
  )


NAMES = ("boxed", "tags", "length", "steps", "repetition")


def is_model(name: str) -> bool:
  """Whether a reward model is meant: a directory, or a hub id."""
  hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
  return pathlib.Path(name).is_dir() or bool(hub and name[-5:] != ".json")


def find(name: str) -> Score:
  """The scorer of a name, an import path or a file.

  Raises:
    ValueError: there is none; the text says why.
  """
  if name in NAMES:
    return globals()[name]
  if name.endswith(".json"):
    return constitution(pathlib.Path(name))
  module, mark, function = name.partition(":")
  if not mark:
    raise ValueError(
        f"{name!r} is none of {', '.join(NAMES)}, no 'module:function', no"
        " .json file, and no directory or hub id of a reward model"
    )
  try:
    score = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError) as e:
    raise ValueError(f"{name!r}: {e}") from None
  if not callable(score):
    raise ValueError(f"{name!r} is not a function")
  return score


class Term(NamedTuple):
  """A scorer with its weight at the first and after the last step."""

  name: str
  first: float
  last: float

  @property
  def label(self) -> str:
    """The last part of its name, for metrics."""
    return pathlib.PurePath(self.name).name.removesuffix(".json")


def term(text: str) -> Term:
  """'steps*0.5' or 'length*-0.3..0'.

  Raises:
    ValueError: it looks otherwise.
  """
  name, mark, weights = text.rpartition("*")
  first, between, last = weights.partition("..")
  try:
    out = Term(name, float(first), float(last if between else first))
  except ValueError:
    mark = ""
  if not mark or not name or not all(map(math.isfinite, out[1:])):
    raise ValueError(f"{text!r}: must look like 'steps*0.5' or 'steps*0.5..0'")
  return out


def terms(text: str) -> tuple[Term, ...]:
  """'steps*0.5,length*-0.3' -> its terms.

  Raises:
    ValueError: one looks otherwise.
  """
  return tuple(term(x.strip()) for x in text.split(",") if x.strip())


def apply(score: Score, response: Response, row: Row) -> float | None:
  """The score, or None if it fails or is no finite number."""
  try:
    value = float(score(response, row))
  except Exception:  # whatever it is, the run goes on
    return None
  return value if math.isfinite(value) else None
