"""Screening of examples: duplicates, contamination, reference answers."""

import concurrent.futures
import hashlib
import re
import unicodedata
from collections.abc import Iterator

from rl_reason import verifiers
from rl_reason.data.datasets import DataError, Example
from rl_reason.verifiers import workers

Fault = tuple[str, str]  # why a row is dropped, and the text that shows it

CONTRADICTION = "another row has the same question and another answer"


def normalize(text: str) -> str:
  """The text without differences in case, whitespace and Unicode forms."""
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _digest(*texts: str) -> str:
  joined = "\0".join(map(normalize, texts))
  return hashlib.sha256(joined.encode()).hexdigest()[:32]


def key(example: Example) -> str:
  """Equal for duplicates: a hash of the question and of both responses."""
  return _digest(example.question, example.response, example.rejected)


class Contamination:
  """Finds questions of evaluation sets in training questions.

  Args:
    size: n of the n-grams of words; 0 finds equal questions only.
  """

  def __init__(self, size: int):
    self._size = size
    self._questions: dict[str, str] = {}
    self._ngrams: dict[str, str] = {}

  def _split(self, question: str) -> Iterator[str]:
    if self._size:
      words = re.findall(r"\w+", normalize(question))
      for start in range(len(words) - self._size + 1):
        yield " ".join(words[start : start + self._size])

  def add(self, question: str, where: str) -> None:
    """Adds a question of an evaluation set."""
    self._questions.setdefault(_digest(question), where)
    for ngram in self._split(question):
      self._ngrams.setdefault(ngram, where)

  def equal(self, question: str) -> str | None:
    """The place of the same question in an evaluation set."""
    return self._questions.get(_digest(question))

  def overlap(self, question: str) -> tuple[str, str] | None:
    """The first n-gram shared with an evaluation set, and its place there."""
    for ngram in self._split(question):
      if ngram in self._ngrams:
        return ngram, self._ngrams[ngram]
    return None


def is_checkable(example: Example) -> bool:
  """Whether the verifier is built in; formats of others are unknown."""
  return bool(example.answer) and example.kind in verifiers.KINDS


class ReferenceChecker:
  """Verifies reference answers in worker processes, which may hang or crash.

  Args:
    pool: workers that run `verifiers.ask`.
  """

  def __init__(self, pool: workers.Pool):
    self._pool = pool
    self._pending: dict[tuple[str, str], concurrent.futures.Future] = {}

  def submit(self, examples: list[Example]) -> None:
    """Starts to check the reference answers of the next examples."""
    answers = dict.fromkeys(
        (x.kind, x.answer) for x in examples if is_checkable(x)
    )
    futures = self._pool.submit(
        (verifiers.path(kind), "usable", answer) for kind, answer in answers
    )
    self._pending = dict(zip(answers, futures, strict=True))

  def fault(self, example: Example) -> Fault | None:
    """The fault of the reference answer of a submitted example, if any."""
    if not is_checkable(example):
      return None
    [out] = self._pool.results([self._pending[example.kind, example.answer]])
    if out.failure:
      return _failed(out.failure, example.answer)
    if out.value:
      return None
    return "the reference answer cannot be verified", example.answer

  def contradiction(self, example: Example, other: str) -> Fault | None:
    """The fault if the same question has another reference answer, too."""
    path = verifiers.path(example.kind)
    if example.kind in verifiers.KINDS:
      box = f"\\boxed{{{example.answer}}}"
      pending = self._pool.submit([(path, "verify", box, other)])
      [out] = self._pool.results(pending)
      if out.failure:
        return _failed(out.failure, f"{example.answer} beside {other}")
      equal = out.value
    else:
      equal = normalize(example.answer) == normalize(other)
    return None if equal else (CONTRADICTION, example.question)


def _failed(failure: str, text: str) -> Fault:
  verb = "takes too long" if failure == "time" else "fails"
  return f"verifying the reference answer {verb}", f"{failure}: {text}"


class Screen:
  """Finds the faults of examples, alone and beside those seen before.

  Attributes:
    contradicted: keys of rows with contradictory reference answers.

  Args:
    data: the section of the config.
    pool: of `ReferenceChecker`.
  """

  def __init__(self, data, pool: workers.Pool):
    self._data = data
    self._references = ReferenceChecker(pool)
    self._contamination = Contamination(data.ngram)
    self._answers: dict[str, str] = {}  # key -> reference answer
    self.contradicted: set[str] = set()
    self.submit = self._references.submit

  def fault(self, example: Example, tally) -> Fault | None:
    """The fault of an example in itself; counts its reference answer."""
    if not example.question:
      return "the question is empty", example.answer
    if not example.answer and not example.response:
      return "there is neither an answer nor a response", example.question
    rejected = normalize(example.rejected)
    if rejected and rejected == normalize(example.response):
      return "both responses are the same", example.question
    fault = self._references.fault(example)
    tally.references += is_checkable(example)
    tally.verified += is_checkable(example) and not fault
    return fault

  def evaluation(self, example: Example) -> None:
    """Remembers an evaluation example, also one that is dropped later."""
    where = f"{example.source} {example.where}"
    self._contamination.add(example.question, where)

  def add(self, row: dict) -> None:
    """Remembers a training row that is kept."""
    # Answers of code are tests: different tests contradict nothing.
    self._answers[row["key"]] = "" if row["kind"] == "code" else row["answer"]

  def training(self, example: Example) -> Fault | None:
    """The fault of a training example beside the others."""
    d = self._data
    name = key(example)
    if d.deduplicate and name in self._answers:
      answer, other, fault = example.answer, self._answers[name], None
      # An answer that cannot be verified says nothing against the other one.
      if answer not in (other, "") and example.kind != "code":
        if not self._references.fault(example):
          fault = self._references.contradiction(example, other)
      if fault and fault[0] == CONTRADICTION:
        self.contradicted.add(name)
      return fault or ("the row is a duplicate", example.question)
    if d.allow_benchmarks:
      return None
    place = self._contamination.equal(example.question)
    if place and not d.ngram:
      raise DataError(
          f"data.train: {example.source} {example.where} is also {place}, an"
          " evaluation row: set data.ngram = 13 to drop such rows, or"
          " data.allow_benchmarks = True to train on them"
      )
    if place:
      text = f"{place}: {example.question}"
      return "the question is in an evaluation set", text
    if overlap := self._contamination.overlap(example.question):
      reason = "the question overlaps one of an evaluation set"
      return reason, f"{overlap[1]}: {overlap[0]}"
    return None
