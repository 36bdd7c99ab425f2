"""Tasks: the source of problems, and the verifier of responses.

A task is a module, or an object of a module as `module:Name`. It defines

  problem(rng, difficulty) -> Row      a random problem

and optionally

  verify(text, row) -> bool            whether a response is correct; without
                                       it, reward.functions are the reward
  answer(text, row) -> str             the final answer, for majority voting;
                                       by default the last line of a response
  demonstrate(row, style, rng) -> str  a response to imitate, without EOS;
                                       needed for SFT
  longest(difficulty) -> str           a prompt of the maximum length; by
                                       default the longest of a hundred prompts
  ALPHABET                             all characters of prompts and responses;
                                       by default printable ASCII and newline
  renumber(row, rng) -> Row            the same problem with other numbers, by
                                       which robustness is measured
  rename(row, rng) -> Row              the same problem with other names
  BEHAVIOURS                           name -> regular expression, whose matches
                                       in responses are a metric
  DIFFICULTIES, STYLES                 levels, and styles of demonstrations; by
                                       default any
  reset, step                          instead of `verify`, for responses with
                                       several turns

The task `files` reads rows from files, and `reasoning_gym:SETS` generates rows
with that package (`gym.py`). Both verify responses in worker processes. A hash
of the prompt decides here whether a prompt is held out for evaluation, so that
every task has the split.
"""

import hashlib
import importlib
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_reason import features, verifiers
from rl_reason.base import errors, functions, own_code

NAMES = {
    "arithmetic": f"{__name__}.arithmetic",
    "operators": f"{__name__}.operators",
    "countdown": f"{__name__}.countdown",
    "xor": f"{__name__}.xor",
    "chain": f"{__name__}.chain",
}
FILES = "files"
GYM = "reasoning_gym"
HELD_OUT_SHARE = 5  # one prompt in five
VALIDATION_SHARE = 20  # one training row in twenty is for validation
LEAST_TO_SHARE = 400  # rows that a file needs for a validation set
VALIDATION = "validation"  # name of the validation set
MAX_DRAWS = 10_000  # problems drawn to find one of the wanted split

Show = Callable[[str], None]


class Row(NamedTuple):
  """A problem: the prompt, and the reference answer for the verifier.

  Attributes:
    prompt: the text that the model reads.
    answer: the reference answer.
    difficulty: level of difficulty.
    kind: verifier of a row of a file, such as math, or module:function; or
      none, for a row without a verifier, of which no response is correct.
    source: data set of a row of a file.
    response, rejected: demonstration, or preference pair.
    tolerance: absolute error that a numeric answer may have.
    messages: the turns of a chat prompt, {"role", "content"} each.
    columns: all columns of a row of a file, name -> JSON value, for rewards.
    subject: subject of the problem; without one, the source of a row of a file.
    pass_rate: share of correct responses that a file says; None: not known.
    response_tokens: mean length of these responses; None: not known.
  """

  prompt: str
  answer: str
  difficulty: int = 0
  kind: str = ""
  source: str = ""
  response: str = ""
  rejected: str = ""
  tolerance: float = 0.0
  messages: Sequence[Mapping[str, str]] = ()
  columns: Mapping[str, Any] = {}
  subject: str = ""
  pass_rate: float | None = None
  response_tokens: float | None = None

  def __hash__(self) -> int:
    """A hash of the texts, since dictionaries have none."""
    return hash((self.prompt, self.answer, self.kind, self.source))


class Failures:
  """Counts exceptions of a user's code, and shows the first traceback.

  Args:
    name: the user's name of the code.
    show: writes a text to the screen; None shows nothing.
  """

  def __init__(self, name: str, show: Show | None = None):
    self.count = 0
    self._name, self._show = name, show

  def add(self, details: str = "") -> None:
    """Counts a failure, by default the exception that is being handled."""
    self.count += 1
    if self.count == 1 and self._show:
      found = sys.exception()
      details = details or (own_code.report(found) if found else "")
      self._show(
          f"{self._name} failed; this is the first failure, further ones are"
          f" only counted: {details}".rstrip()
      )


class Task:
  """A task, with defaults for optional attributes.

  Args:
    name: name in the config.
    source: the module, class or object.
    show: writes the first traceback of the task to the screen.

  Attributes:
    origin: the module, class or object.
    in_turns: whether responses have several turns, which `step` answers.
  """

  def __init__(self, name: str, source: Any, show: Show | None = None):
    self.origin = source
    self.in_turns = callable(getattr(source, "step", None))
    source = source() if isinstance(source, type) else source
    default = string.ascii_letters + string.digits + string.punctuation + " \n"
    self.ALPHABET = getattr(source, "ALPHABET", default)
    self.DIFFICULTIES = tuple(getattr(source, "DIFFICULTIES", ()))
    self.STYLES = tuple(getattr(source, "STYLES", ()))
    self.BEHAVIOURS = dict(getattr(source, "BEHAVIOURS", {}))
    for label, pattern in self.BEHAVIOURS.items():
      try:
        re.compile(pattern)
      except (re.error, TypeError) as e:
        raise ValueError(f"BEHAVIOURS[{label!r}] is no pattern: {e}") from None
    self.has_demonstrations = hasattr(source, "demonstrate")
    self._source, self._failures = source, Failures(f"task {name}", show)
    verifies = callable(getattr(source, "verify", None))
    self.verifies = self.in_turns or verifies
    if not callable(getattr(source, "problem", None)):
      raise ValueError("has no function problem")

  def __getattr__(self, name: str) -> Any:
    """Attributes of the task itself, such as `problem`."""
    if name[0] == "_":  # `copy` and `pickle` ask before `_source` is set
      raise AttributeError(name)
    return getattr(self._source, name)

  def longest(self, difficulty: int) -> str:
    """A prompt of the maximum length."""
    if hasattr(self._source, "longest"):
      return self._source.longest(difficulty)
    rng = np.random.default_rng(0)
    rows = [self.problem(rng, difficulty) for _ in range(100)]
    return max((row.prompt for row in rows), key=len)

  def answer(self, text: str, row: Row) -> str:
    """The final answer of a response; '' if it has none."""
    if not hasattr(self._source, "answer"):
      return verifiers.last_line(text)
    try:
      return str(self._source.answer(text, row))
    except Exception:  # the user's code may raise anything; the run continues
      self._failures.add()
      return ""

  def in_workers(self, count: int, seconds: float, show: Show | None) -> "Task":
    """The task, which verifies in this process and uses no workers."""
    del count, seconds, show
    return self

  def begin(
      self, pairs: list[tuple[str, Row]]
  ) -> Callable[[], list[bool | None]]:
    """Verifies (response, row) pairs.

    Returns:
      a function that returns the verdicts; a verdict is None if the verifier
      failed.
    """
    verdicts: list[bool | None] = []
    for text, row in pairs:
      if not self.verifies:
        verdicts.append(False)
        continue
      try:
        verdicts.append(bool(self.verify(text, row)))
      except Exception:  # the user's code may raise anything
        self._failures.add()
        verdicts.append(None)
    return lambda: verdicts


def names() -> dict[str, str]:
  """The built-in tasks: name -> module, or 'module:name'."""
  out = dict(NAMES)
  for one in features.declared():
    out |= one.tasks
  return out


def get(name: str, show: Show | None = None) -> Any:
  """Returns a built-in task, or a task of the user.

  Args:
    name: name in the config, such as `my_task` or `my_tasks:Name`.
    show: see `Task`.

  Raises:
    ValueError: there is no such task; the text says what is missing.
  """
  if name == FILES:
    return importlib.import_module(f"{__name__}.{name}")
  first, _, rest = name.partition(":")
  if first == GYM:
    try:
      gym = importlib.import_module(f"{__name__}.gym")
    except ModuleNotFoundError as e:
      raise ValueError(
          f"{e.name} is not installed: pip install 'rl_reason[reasoning-gym]'"
      ) from None
    return gym.Gym(rest, show)
  try:
    source = functions.load(names().get(name, name))
  except ValueError as e:
    known = *names(), FILES
    hint = errors.did_you_mean(name, known)
    raise ValueError(
        f"none of {', '.join(known)}, {GYM}:SETS, and no task of"
        f" yours: {e}{hint}"
    ) from None
  return Task(name, source, show)


def has_verifier(task, row: Row) -> bool:
  """Whether responses to a row are verified.

  The built-in verifiers need a reference answer, which a row for SFT may lack.
  """
  judged = row.answer if row.kind in verifiers.KINDS else True
  return bool(
      getattr(task, "verifies", True) and row.kind != verifiers.NONE and judged
  )


def begin(task, pairs):
  """`Task.begin` for any task, a module included."""
  return (task if hasattr(task, "begin") else Task("", task)).begin(pairs)


def _number(prompt: str) -> int:
  digest = hashlib.sha256(prompt.encode()).digest()
  return int.from_bytes(digest[:8], "big")


def held_out(prompt: str) -> bool:
  """Whether a prompt is held out for evaluation, by its hash."""
  return _number(prompt) % HELD_OUT_SHARE == 0


def for_validation(prompt: str) -> bool:
  """Whether a training row of a file is used for validation, by its hash."""
  return _number(prompt) // HELD_OUT_SHARE % VALIDATION_SHARE == 0


def draw(task, rng: np.random.Generator, levels, *, evaluation: bool) -> Row:
  """Draws a random row of the training or the held-out split.

  Args:
    task: task that generates the problems.
    rng: random generator.
    levels: difficulties, drawn uniformly.
    evaluation: whether to draw a held-out prompt.
  """
  level = levels[rng.integers(len(levels))]
  for _ in range(MAX_DRAWS):
    row = task.problem(rng, int(level))
    if held_out(row.prompt) == evaluation:
      return row
  raise errors.ConfigError(
      f"task.name: of {MAX_DRAWS} problems of difficulty {level} none is"
      f" {'held out' if evaluation else 'to train on'}: one prompt in"
      f" {HELD_OUT_SHARE} is held out, so the task needs more different prompts"
  )
