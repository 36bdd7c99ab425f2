"""Ratings of responses, and preference pairs from ratings.

WORKDIR/ratings.jsonl      every rating, with its response, and with its prompt
                           in the first line of each "prompt_id"
WORKDIR/preferences.jsonl  {"prompt", "chosen", "rejected"}: a source of
                           data.train, from which reward models learn
"""

import collections
import functools
import hashlib
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

FILES = ("ratings.jsonl", "preferences.jsonl")
REMEMBERED = 10_000  # maximum number of answers that can be rated
CHARACTERS = 1 << 25  # maximum characters of these answers
BYTES = 1 << 28  # maximum size of both files
# Pairs of one rating: as many as 9 responses have, ranked one after the other.
PAIRS = 8
PAIR_BYTES = 1 << 14  # of the pairs of one rating, unless it is a single pair

Prompt = str | list[dict[str, Any]]  # a text, or the turns of a chat


class Unknown(Exception):
  """There is no answer with this id and index."""


class FullFiles(Exception):
  """The files have their maximum size."""


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

  A rated response forms pairs with earlier responses to the same prompt that
  have another rating, including ratings before a restart: with the last PAIRS
  of them, or fewer if the pairs are long. Thread-safe.

  Args:
    workdir: work directory of the run.
    say: shows a line.
  """

  def __init__(self, workdir: pathlib.Path, say: Callable[[str], None]):
    self._ratings, self._pairs = (workdir / name for name in FILES)
    self._lock, self._say = threading.Lock(), functools.cache(say)
    self._answers: collections.OrderedDict[str, tuple[Answer, int]]
    self._answers = collections.OrderedDict()
    self._size = 0  # characters of all answers
    self._rated: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for path in (self._ratings, self._pairs):
      _mend(path, say)
    for row in _rows(self._ratings, say):
      key = row.get("prompt_id") or _key(row["prompt"])
      self._rated[key][row["response"]] = row["rating"]

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
      FullFiles: the files have their maximum size.
    """
    with self._lock:
      prompt, text = self._find(name, index)
      key = _key(prompt)
      rated = self._rated[key]
      others = [
          (text, other) if rating > value else (other, text)
          for other, value in reversed(rated.items())
          if value != rating and other != text
      ]
      pairs, size = [], 0
      for pair in others[:PAIRS]:
        pairs.append(_pair(prompt, *pair))
        size += len(pairs[-1])
        if len(pairs) > 1 and size > PAIR_BYTES:
          pairs.pop()
          break
      if len(pairs) < len(others):
        self._say(
            f"{self._pairs}: a rating forms at most {PAIRS} pairs of"
            f" {PAIR_BYTES:,} bytes in all, with the responses to the same"
            " prompt that were rated last"
        )
      row: dict[str, Any] = dict(time=time.time(), id=name, index=index)
      row |= (
          dict(prompt_id=key) if rated else dict(prompt_id=key, prompt=prompt)
      )
      row |= dict(response=text, rating=rating, comment=comment)
      line = json.dumps(row)
      self._check_size(sum(map(len, [line, *pairs])))
      _append(self._ratings, [line])
      rated.pop(text, None)  # the last rating comes last
      rated[text] = rating
      _append(self._pairs, pairs)
    return len(pairs)

  def prefer(self, name: str, chosen: int, rejected: int) -> int:
    """Appends the pair of two responses to one prompt; returns 1.

    Raises:
      Unknown: there are no such responses to one prompt.
      FullFiles: the files have their maximum size.
    """
    with self._lock:
      (prompt, better), (other, worse) = (
          self._find(name, index) for index in (chosen, rejected)
      )
      if prompt != other:
        raise Unknown(f"{chosen} and {rejected} answer different prompts")
      row = _pair(prompt, better, worse)
      self._check_size(len(row))
      _append(self._pairs, [row])
    return 1

  def _check_size(self, more: int) -> None:
    paths = [x for x in (self._ratings, self._pairs) if x.exists()]
    size = sum(x.stat().st_size for x in paths)
    if size + more > BYTES:
      line = (
          f"{self._ratings.name} and {self._pairs.name} have the {BYTES:,}"
          " bytes that a server writes at most: move them out of the work"
          " directory"
      )
      self._say(f"a rating is refused: {line}")
      raise FullFiles(line)

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


def _pair(prompt: Prompt, chosen: str, rejected: str) -> str:
  return json.dumps(dict(prompt=prompt, chosen=chosen, rejected=rejected))


def _key(prompt: Prompt) -> str:
  text = json.dumps(prompt, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:24]


def _append(path: pathlib.Path, rows: list[str]) -> None:
  """Appends all rows of JSON, or no row if the disk is full."""
  lines = "".join(row + "\n" for row in rows)
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
      known = isinstance(row.get("prompt_id"), str) or "prompt" in row
      text, rating = row.get("response"), row.get("rating")
      if known and isinstance(text, str) and isinstance(rating, int | float):
        yield row
      else:
        say(f"{path}: line {number} is not a rating and is skipped; remove it")
