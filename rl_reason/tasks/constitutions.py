"""Constitutions: rules of responses in a JSON file, and what keeps them.

A rule has a `name`, a `weight`, and one of

  require   a regular expression that must match
  forbid    one that must not
  function  of one response, as in reward.functions
  judge     a question, which a language model on a server answers (`judge.py`)
  model     a reward model, a directory or an id on the hub: the probability by
            Bradley-Terry that the response is preferred to a response of the
            score `threshold` (0), sigmoid(score - threshold)

The score is the weighted mean of how far each rule is kept, from 0 to 1. A rule
of a judge is left out without a server. Worker processes import this module, so
it does not import JAX.
"""

import asyncio
import inspect
import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

from rl_reason.base import own_code
from rl_reason.tasks import reward_functions
from rl_reason.tasks.judge import Judge
from rl_reason.tasks.reward_functions import (
    Failed,
    Response,
    RewardBatch,
    RewardFunction,
)

NAME = "constitution"  # of the constitution of the package
KINDS = ("require", "forbid", "function", "judge", "model")


class Model(NamedTuple):
  """A rule that a reward model judges.

  Attributes:
    rule: its name.
    model: the directory or the id on the hub.
    share: of the rule in the score of the constitution.
    threshold: the score that counts half.
  """

  rule: str
  model: str
  share: float
  threshold: float


class Constitution:
  """The rules of a file, as a reward function of a batch.

  Args:
    path: the file.
    judge: server of the rules that ask a judge; None leaves them out.
    find: returns the reward function of a name.

  Attributes:
    rules: names of the rules that functions and judges keep.
    models: the rules that reward models keep.
    left_out: names of the rules that have no judge.

  Raises:
    ValueError: the file is no list of such rules; the text names the rule.
  """

  def __init__(
      self,
      path: pathlib.Path,
      judge: Judge | None,
      find: Callable[[str], RewardFunction],
  ):
    try:
      rules = json.loads(path.read_text(encoding="utf-8"))
      weights = [float(rule["weight"]) for rule in rules]
      kinds = [_kind(rule) for rule in rules]
      self.left_out = [
          str(rule["name"])
          for rule, kind in zip(rules, kinds, strict=True)
          if kind == "judge" and judge is None
      ]
      asked = [
          (str(rule["name"]), weight, kind, rule)
          for rule, weight, kind in zip(rules, weights, kinds, strict=True)
          if str(rule["name"]) not in self.left_out
      ]
      self._parts = [
          (weight, _part(rule, kind, judge, find))
          for _, weight, kind, rule in asked
          if kind != "model"
      ]
    except (OSError, KeyError, TypeError, re.error, ValueError) as e:
      raise ValueError(f"{path}: is not a list of rules ({e!r})") from None
    names = [name for name, *_ in asked]
    if len({*names}) < len(names):
      raise ValueError(f"{path}: two rules have one name: {', '.join(names)}")
    self._total = sum(weight for _, weight, _, _ in asked)
    if not asked and self.left_out:
      raise ValueError(
          f"{path}: all rules ask a judge: name a server, as in"
          f" {path}(judge='http://localhost:8000/v1')"
      )
    if self._total <= 0 or any(weight < 0 for weight in weights):
      raise ValueError(f"{path}: weights must be positive")
    self.rules = tuple(name for name, _, kind, _ in asked if kind != "model")
    self.models = tuple(
        Model(
            name,
            str(rule["model"]),
            weight / self._total,
            float(rule.get("threshold", 0)),
        )
        for name, weight, kind, rule in asked
        if kind == "model"
    )

  async def __call__(self, batch: RewardBatch) -> list[dict | Failed]:
    """The score of each response without reward models, and of each rule."""
    triples = zip(
        reward_functions.responses(batch),
        batch.rows,
        batch.prompts,
        strict=True,
    )
    return await asyncio.gather(*[self._score(*x) for x in triples])

  async def _score(self, response: Response, row, prompt) -> dict | Failed:
    try:
      found = [part(response, row, prompt) for _, part in self._parts]
      kept = [
          reward_functions.number(await x if inspect.isawaitable(x) else x)
          for x in found
      ]
    except Exception as e:  # the user's code may raise, or the judge be gone
      return Failed(own_code.report(e))
    weighted = zip(self._parts, kept, strict=True)
    score = math.fsum(weight * x for (weight, _), x in weighted) / self._total
    return dict(score=score, rules=dict(zip(self.rules, kept, strict=True)))


def of_term(name: str) -> pathlib.Path | None:
  """The file of a term 'rules.json(judge=...)' or 'constitution', or None."""
  name = name.partition("(")[0]
  if name == NAME:
    return pathlib.Path(__file__).with_name(f"{NAME}.json")
  return pathlib.Path(name) if name.endswith(".json") else None


def _kind(rule: dict) -> str:
  """What judges a rule: one of KINDS.

  Raises:
    ValueError: it has none, several, or further entries.
  """
  kind = next((x for x in KINDS if x in rule), "")
  more = {"threshold"} & {*rule} if kind == "model" else set()
  if {*rule} - more != {"name", "weight", kind}:
    raise ValueError(
        f"rule {rule.get('name')!r}: needs name, weight, and one of"
        f" {', '.join(KINDS)}; with model, perhaps threshold"
    )
  return kind


def _part(
    rule: dict,
    kind: str,
    judge: Judge | None,
    find: Callable[[str], RewardFunction],
) -> Callable:
  """(response, row, prompt) -> how far a rule is kept, perhaps awaitable."""
  if kind == "judge":
    assert judge is not None, "left out"
    question = str(rule["judge"])
    return lambda response, row, prompt: judge.score(
        question, prompt, response.text
    )
  if kind == "function":
    if of_term(rule["function"]):  # before it is read: it may name code
      raise ValueError(f"{rule['function']}: rules of a rule")
    found = find(rule["function"])
    if found.form != "response":
      raise ValueError(f"{found.name}: a rule needs (response, row)")
    function = found.function
    return lambda response, row, prompt: function(response, row)
  pattern, wanted = re.compile(rule[kind]), kind == "require"
  return lambda response, row, prompt: float(
      bool(pattern.search(response.text)) == wanted
  )
