"""Data sets of the package reasoning_gym (arXiv:2505.24760), as one task.

  task.name = "reasoning_gym:chain_sum*2,gcd(max_value=100)"

draws two of three problems from chain_sum, and sets a field of gcd. Difficulty
0 is the default of the set; difficulty n is the n-th level of its curriculum,
or the last level. The worker process that scores a response generates the
problem again, from its set, difficulty and seed.
"""

import copy
import dataclasses
import functools
import os
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import reasoning_gym
from reasoning_gym import factory
from reasoning_gym.coaching import base_curriculum

from rl_reason import tasks
from rl_reason.base import errors
from rl_reason.tasks import Row, files, reward_terms
from rl_reason.tasks.reward_functions import Response

_SET = re.compile(r"(\w+)(\(.*\))?\s*(?:\*\s*(\d+\.?\d*|\.\d+))?", re.DOTALL)
_OF_A_PROBLEM = ("seed", "size")  # fields that every set has
# Sets whose problems depend on the hash seed of Python.
_BY_HASH = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
_LEVEL = base_curriculum.DefaultCurriculumContext(
    base_curriculum.RangeAttributeMode.UPPER_BOUND  # no easier problems
)
TRIES = 10  # seeds that are tried for a problem
_FIELDS = ("field_name", "lower_field_name", "upper_field_name")
_OWN = dict(seed=0, config=None)  # attributes that depend on the seed
_lock = threading.Lock()  # some sets draw from the global generators


def weights(text: str) -> dict[str, float]:
  """'chain_sum*2,gcd(max_value=100)' -> {'chain_sum': 2.0, 'gcd(...)': 1.0}.

  Raises:
    ValueError: there is no such set, or it has no such field.
  """
  out: dict[str, float] = {}
  for part in reward_terms.parts(text):
    match = _SET.fullmatch(part)
    if not match or not float(match[3] or 1):
      raise ValueError(f"{part!r}: must look like 'gcd(max_value=100)*2'")
    source = match[1] + (match[2] or "")
    _config(source, 0, 0)
    out[source] = out.get(source, 0.0) + float(match[3] or 1)
  if not out:
    raise ValueError("name a set, as in 'reasoning_gym:chain_sum'")
  return out


def _config(source: str, level: int, seed: int) -> Any:
  """The config of a set with one problem; `source` has fields in parentheses.

  Raises:
    ValueError: there is no such set, or it has no such field.
  """
  name, mark, _ = source.partition("(")
  if name not in factory.DATASETS:
    near = errors.did_you_mean(name, sorted(factory.DATASETS))
    raise ValueError(f"{name!r} is no data set of reasoning_gym{near}")
  if (
      name in _BY_HASH
      and os.environ.get("PYTHONHASHSEED", "random") == "random"
  ):
    raise ValueError(
        f"{name} has other problems in each process: set the environment"
        " variable PYTHONHASHSEED to 0, or leave the set out"
    )
  keywords = reward_terms.keywords(source) if mark else {}
  kind = factory.DATASETS[name][1]
  fields = {x.name for x in dataclasses.fields(kind)} - {*_OF_A_PROBLEM}
  for field in keywords:
    if field not in fields:
      raise ValueError(
          f"{name} has no field {field}: it has {', '.join(sorted(fields))}"
      )
  config = kind(seed=seed, size=1)
  if level and factory.has_curriculum(name):
    curriculum = factory.create_curriculum(name)
    for attribute in list(curriculum.attributes.values()):
      # The user's fields replace the ranges of the curriculum.
      if any(getattr(attribute, x, "") in keywords for x in _FIELDS):
        del curriculum.attributes[attribute.name]
    curriculum.set_global_level(level - 1)
    config = curriculum.generate_configuration(dict(seed=seed, size=1), _LEVEL)
  config = dataclasses.replace(config, **keywords)
  try:
    getattr(config, "validate", bool)()
  except (AssertionError, ValueError) as e:
    raise ValueError(f"{source}: {e}") from None
  return config


def _made(source: str, config: Any) -> Any:
  return factory.DATASETS[source.partition("(")[0]][0](config=config)


@functools.lru_cache(maxsize=64)
def _any_seed(source: str, level: int) -> Any:
  """A set that can be reused for other seeds; None if it has other state.

  Creating a set may be slow, since many sets read files.
  """
  one, two = (_made(source, _config(source, level, x)) for x in (0, 1))
  try:
    same = vars(one) | _OWN == vars(two) | _OWN
  except ValueError:  # of arrays
    same = False
  return one if same else None


@functools.lru_cache(maxsize=64)
def problem(source: str, level: int, seed: int) -> tuple[Any, dict]:
  """A set, as in `_config`, and its problem: question, answer and metadata."""
  config = _config(source, level, seed)
  with _lock:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
      if any_seed := _any_seed(source, level):
        data_set = copy.copy(any_seed)
        data_set.seed, data_set.config = seed, config
      else:
        data_set = _made(source, config)
      return data_set, data_set[0]
    finally:
      random.setstate(states[0])
      np.random.set_state(states[1])  # noqa: NPY002


def answer(text: str) -> str:
  """The text between the last answer tags of a response, or all of it."""
  found = reasoning_gym.utils.extract_answer(text)
  return text.strip() if found is None else found


def item(text: str, row: Row) -> tuple[str, str, dict]:
  """The arguments of `points`, which JSON can represent."""
  return text, row.prompt, dict(row.columns)


def points(text: str, prompt: str, columns: dict) -> float:
  """The score of a response by the set's `score_answer`, usually from 0 to 1.

  Args:
    text: the response.
    prompt: the question.
    columns: columns of the row: source, level and seed.

  Raises:
    ValueError: the set generates a different question from the same seed.
  """
  data_set, entry = problem(**columns)
  if entry["question"] != prompt:
    raise ValueError(
        f"{columns['source']} makes another question in each process: leave it"
        " out of task.name"
    )
  try:
    return float(data_set.score_answer(answer(text), entry))
  except Exception:  # some sets raise if they cannot parse an answer
    if float(data_set.score_answer(entry["answer"], entry)) < 1:
      raise
    return 0.0


def verdict(*of_item: Any) -> bool:
  """Whether a response has the full score; runs in a worker."""
  return points(*of_item) >= 1


def score(response: Response, row: Row) -> float:
  """The score of a response, a reward function."""
  return points(*item(response.text, row))


class _Sets:
  """Problems of a mixture of sets; a demonstration is the answer."""

  def __init__(self, text: str):
    found = weights(text)
    self._names = list(found)
    self._shares = np.array(list(found.values())) / sum(found.values())

  def problem(self, rng: np.random.Generator, difficulty: int) -> Row:
    """A random problem of a random set."""
    source = self._names[rng.choice(len(self._names), p=self._shares)]
    for seed in rng.integers(2**31, size=TRIES).tolist():
      columns = dict(source=source, level=difficulty, seed=seed)
      try:
        _, entry = problem(**columns)
        break
      except Exception as e:  # a set may fail, above all at high levels
        reason = errors.one_line(e)
    else:
      raise errors.ConfigError(
          f"task.difficulties: {source} has no problem of difficulty"
          f" {difficulty}: {reason}"
      )
    return Row(
        entry["question"],
        entry["answer"] or "",
        difficulty,
        source=source,
        columns=columns,
        subject=source,
    )

  @staticmethod
  def verify(text: str, row: Row) -> bool:
    """Whether a response has the full score."""
    return verdict(*item(text, row))

  @staticmethod
  def answer(text: str, row: Row) -> str:
    """The final answer of a response."""
    del row
    return answer(text)

  @staticmethod
  def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
    """The answer, in any style."""
    del style, rng
    return row.answer


class Gym(tasks.Task):
  """The task of a mixture of sets.

  Args:
    text: sets with fields and weights.
    show: see `tasks.Task`.

  Raises:
    ValueError: there is no such set, or it has no such field.
  """

  def __init__(self, text: str, show: tasks.Show | None = None):
    super().__init__(f"{tasks.GYM}:{text}", _Sets(text), show)
    examples = [problem(source, 0, 0)[1] for source in weights(text)]
    self.has_demonstrations = all(x["answer"] for x in examples)
    self._verifier: files.Verifier | None = None

  def in_workers(
      self, count: int, seconds: float, show: tasks.Show | None
  ) -> "Gym":
    """The task with worker processes that score responses."""
    name = f"{__name__}:verdict"
    self._verifier = files.Verifier(count, seconds, show, name, item)
    return self

  def begin(
      self, pairs: list[tuple[str, Row]]
  ) -> Callable[[], list[bool | None]]:
    """Starts to score responses; see `tasks.Task.begin`."""
    begin = self._verifier.begin if self._verifier else super().begin
    return begin(pairs)
