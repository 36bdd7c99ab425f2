"""Ratings of responses, and preference pairs from ratings.

WORKDIR/ratings.jsonl      every rating, with its prompt and response
WORKDIR/preferences.jsonl  {"prompt", "chosen", "rejected"}: a source of
                           data.train, from which reward models learn
"""

import collections
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

FILES = ("ratings.jsonl", "preferences.jsonl")
REMEMBERED = 10_000  # maximum number of answers that can be rated
CHARACTERS = 1 << 25  # maximum characters of these answers

Prompt = str | list[dict[str, Any]]  # a text, or the turns of a chat


class Unknown(Exception):
  """There is no answer with this id and index."""


class Answer(NamedTuple):
  """An answer to a client.

  Attributes:
    prompts: prompts of the request.
    texts: responses, grouped by prompt; None for one that was withheld.
  """

  prompts: Sequence[Prompt]
  texts: Sequence[str | None]

  def prompt(self, index: int) -> Prompt:
    """The prompt of a response."""
    return self.prompts[index * len(self.prompts) // len(self.texts)]


class Feedback:
  """Appends ratings and pairs to the files of a work directory.

  A rated response forms a pair with each earlier response to the same prompt
  that has another rating, including ratings before a restart. Thread-safe.

  Args:
    workdir: work directory of the run.
    say: shows a line.
  """

  def __init__(self, workdir: pathlib.Path, say: Callable[[str], None]):
    self._ratings, self._pairs = (workdir / name for name in FILES)
    self._lock = threading.Lock()
    self._answers: collections.OrderedDict[str, tuple[Answer, int]]
    self._answers = collections.OrderedDict()
    self._size = 0  # characters of all answers
    self._rated: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for path in (self._ratings, self._pairs):
      _mend(path, say)
    for row in _rows(self._ratings, say):
      self._rated[_key(row["prompt"])][row["response"]] = row["rating"]

  def remember(self, name: str, answer: Answer, size: int) -> None:
    """Keeps an answer of `size` characters, so that it can be rated by id."""
    with self._lock:
      self._answers[name] = answer, size
      self._size += size
      while len(self._answers) > REMEMBERED or self._size > CHARACTERS:
        _, (_, size) = self._answers.popitem(last=False)
        self._size -= size

  def rate(self, name: str, index: int, rating: float, comment: str) -> int:
    """Appends a rating; returns the number of new pairs.

    Raises:
      Unknown: there is no such response.
    """
    with self._lock:
      prompt, text = self._find(name, index)
      rated = self._rated[_key(prompt)]
      pairs = [
          (text, other) if rating > value else (other, text)
          for other, value in rated.items()
          if value != rating and other != text
      ]
      row = dict(prompt=prompt, response=text, rating=rating, comment=comment)
      about = dict(time=time.time(), id=name, index=index)
      _append(self._ratings, [about | row])
      rated[text] = rating
      self._append_pairs(prompt, pairs)
    return len(pairs)

  def prefer(self, name: str, chosen: int, rejected: int) -> int:
    """Appends the pair of two responses to one prompt; returns 1.

    Raises:
      Unknown: there are no such responses to one prompt.
    """
    with self._lock:
      (prompt, better), (other, worse) = (
          self._find(name, index) for index in (chosen, rejected)
      )
      if prompt != other:
        raise Unknown(f"{chosen} and {rejected} answer different prompts")
      self._append_pairs(prompt, [(better, worse)])
    return 1

  def _find(self, name: str, index: int) -> tuple[Prompt, str]:
    answer, _ = self._answers.get(name, (None, 0))
    if answer is None:
      raise Unknown(
          f"no answer {name!r}: only the last {REMEMBERED:,} can be rated"
      )
    if index >= len(answer.texts):
      raise Unknown(f"{name} has {len(answer.texts)} responses, from 0")
    if (text := answer.texts[index]) is None:
      raise Unknown(
          f"response {index} of {name} was withheld (serve.filter): it has no"
          " text to rate"
      )
    return answer.prompt(index), text

  def _append_pairs(self, prompt: Prompt, pairs) -> None:
    _append(
        self._pairs,
        [
            dict(prompt=prompt, chosen=chosen, rejected=rejected)
            for chosen, rejected in pairs
        ],
    )


def _key(prompt: Prompt) -> str:
  return json.dumps(prompt, sort_keys=True)


def _append(path: pathlib.Path, rows: list[dict]) -> None:
  """Appends all rows, or no row if the disk is full."""
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  with path.open("ab", buffering=0) as file:
    before = file.tell()
    try:
      left = lines.encode()
      while left:
        left = left[file.write(left) :]
    except OSError:
      file.truncate(before)
      raise


def _mend(path: pathlib.Path, say: Callable[[str], None]) -> None:
  """Terminates the last line of a file, or removes it if it is incomplete.

  Otherwise the next row would be appended to this line.
  """
  if not path.exists() or not (data := path.read_bytes()):
    return
  _, _, last = data.rpartition(b"\n")
  if not last:
    return
  with path.open("r+b") as file:
    if _is_row(last):
      file.seek(0, 2)
      file.write(b"\n")
      return
    file.truncate(len(data) - len(last))
  say(
      f"{path}: the last line is incomplete, as after a crash or on a full"
      f" disk; its {len(last):,} bytes are removed"
  )


def _is_row(line: bytes) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except ValueError:
    return False


def _rows(path: pathlib.Path, say: Callable[[str], None]) -> Iterator[dict]:
  """The ratings of a file; other lines are reported on the screen."""
  if not path.exists():
    return
  with path.open("rb") as file:
    for number, line in enumerate(file, 1):
      row = json.loads(line) if _is_row(line) else {}
      if {"prompt", "response", "rating"} <= row.keys():
        yield row
      else:
        say(f"{path}: line {number} is not a rating and is skipped; remove it")
