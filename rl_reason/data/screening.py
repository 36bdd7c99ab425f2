"""Screening of examples: duplicates, contamination, reference answers."""

import concurrent.futures
import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rl_reason import verifiers
from rl_reason.data.datasets import DataError, Example
from rl_reason.verifiers import workers


class Fault(NamedTuple):
  """Why a row is dropped.

  Attributes:
    reason: the reason, with the field of the config and the remedy, if any.
    text: text of the row, as an example.
    tokens: length of a text that is too long; else 0.
  """

  reason: str
  text: str
  tokens: int = 0


DUPLICATE = "the row is a duplicate; data.deduplicate = False keeps them"
NO_ANSWER = (
    "there is neither an answer nor a response; data.kind = 'none' keeps rows"
    " that need no reference answer"
)
UNMEASURED = (
    "the row has no pass rate, which data.pass_rate compares: --stage=generate"
    " with generate.keep = 'prompts' measures it, or data.columns names its"
    " column"
)
MALFORMED = "the row is malformed"
EMPTY = "the question is empty"
UNVERIFIABLE = "the reference answer cannot be verified"
NO_TOKEN = "the prompt has no token"
LONG = "the prompt is longer than rollout.max_prompt"
UNRENDERED = "the prompt cannot be rendered"
SAME_WORDS = "the question has the same words as one of an evaluation set"
SHARED_WORDS = "the question shares data.ngram"
CONTRADICTION = "another row has the same question and another answer"
INCORRECT = (
    "the verifier rejects the response, so that SFT does not imitate it and RL"
    " would punish it; data.kind = 'none' imitates all"
)
FAILING = (
    "the program fails the tests of the row, so that SFT does not imitate it"
    " and RL would punish it; correct the program or the tests"
)


def _normalize(text: str) -> str:
  """The text with normalized case, whitespace and Unicode."""
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


# LaTeX that changes only the appearance of a formula.
_FRACTION = re.compile(r"\\[dtc]?frac(?![a-z])(\d?)")
_LOOKS = re.compile(
    r"\\(left|right|displaystyle|quad|qquad|[bB]igg?[lr]?)(?![a-zA-Z])"
    r"|\\[,!;: ]"
)


def _plain(question: str) -> str:
  """The normalized question, with one spelling of formulas."""
  text = _LOOKS.sub(" ", _FRACTION.sub(r"\\frac \1 ", _normalize(question)))
  return re.sub(r"(?<=\d),(?=\d{3})", "", text)  # 1,000


def _sequence(example: Example) -> str:
  """The words and operators of a prompt, without punctuation."""
  found = re.findall(r"\w+|[^\w\s]", _plain("\0".join(_asked(example))))
  return " ".join(x for x in found if x not in "\\{}$.,;:?'\"`")


def _digest(*texts: str) -> str:
  joined = "\0".join(map(_normalize, texts))
  return hashlib.sha256(joined.encode()).hexdigest()[:32]


def key(example: Example) -> str:
  """A hash of the prompt and of both responses, equal for duplicates."""
  turns = [x["content"] for x in example.turns]
  texts = *turns, example.question, example.response, example.rejected
  return _digest(*texts)


def prompt_key(turns: Sequence[Mapping[str, str]], question: str) -> str:
  """A hash of the prompt alone, equal for rows that ask the same."""
  return _digest(*(x["content"] for x in turns), question)


def _asked(example: Example) -> list[str]:
  """The texts of a prompt without the system turn, which many rows share."""
  turns = [x["content"] for x in example.turns if x["role"] != "system"]
  return [*turns, example.question]


# Reasons that count as corruption, not as a choice of the config.
CORRUPT = (
    *(MALFORMED, EMPTY, NO_ANSWER, UNVERIFIABLE, CONTRADICTION),
    *(NO_TOKEN, UNRENDERED, "verifying the reference answer"),
)


class ReferenceChecker:
  """Checks reference answers in worker processes, which may hang or crash.

  Only built-in verifiers check reference answers, since the format of answers
  for a user's function is not known. Both verify responses.

  Args:
    pool: workers that run `verifiers.ask`.
  """

  def __init__(self, pool: workers.Pool):
    self._pool = pool
    self._pending: dict[tuple[str, str], concurrent.futures.Future] = {}

  def submit(self, examples: list[Example]) -> None:
    """Starts to check the reference answers of the next examples."""
    checked = filter(self.checks, examples)
    answers = list(dict.fromkeys((x.kind, x.answer) for x in checked))
    futures = self._pool.submit(
        (verifiers.path(kind), "usable", answer) for kind, answer in answers
    )
    self._pending = dict(zip(answers, futures, strict=True))

  def checks(self, example: Example) -> bool:
    """Whether the example has a reference answer that can be checked."""
    return bool(example.answer) and example.kind in verifiers.KINDS

  def fault(self, example: Example) -> Fault | None:
    """The fault of the reference answer of a submitted example, if any."""
    if not self.checks(example):
      return None
    pending = self._pending[example.kind, example.answer]
    return self._fault(
        pending, Fault(UNVERIFIABLE, example.answer), example.answer
    )

  def judge(self, example: Example, text: str) -> concurrent.futures.Future:
    """Starts to verify a response to an example, or its own program."""
    item = (verifiers.path(example.kind), "verify", text, example.answer)
    [pending] = self._pool.submit([item])
    return pending

  def rejects(self, pending: concurrent.futures.Future) -> bool | None:
    """Whether the verifier has rejected a response; None if it has failed."""
    [out] = self._pool.results([pending])
    return None if out.failure else not out.value

  def contradiction(self, example: Example, other: str) -> Fault | None:
    """The fault of a question with two different reference answers, if any."""
    fault = Fault(CONTRADICTION, example.question)
    if not self.checks(example):
      equal = _normalize(example.answer) == _normalize(other)
      return None if equal else fault
    box = f"\\boxed{{{example.answer}}}"
    item = (verifiers.path(example.kind), "verify", box, other)
    [pending] = self._pool.submit([item])
    return self._fault(pending, fault, f"{example.answer} and {other}")

  def _fault(self, pending, fault: Fault, text: str) -> Fault | None:
    """`fault` if the verifier rejects; another fault if the verifier fails."""
    [out] = self._pool.results([pending])
    if not out.failure:
      return None if out.value else fault
    verb = "takes too long" if out.failure == "time" else "fails"
    return Fault(
        f"verifying the reference answer {verb}", f"{out.failure}: {text}"
    )


class Screen:
  """Finds the faults of examples, also by comparison with earlier examples.

  Attributes:
    references: checks reference answers.
    contradicted: prompt keys of rows with contradictory reference answers.

  Args:
    data: the section `data` of the config.
    pool: see `ReferenceChecker`.
  """

  def __init__(self, data, pool: workers.Pool):
    self._data, self.references = data, ReferenceChecker(pool)
    self._seen: set[str] = set()  # keys of rows
    self._answers: dict[str, str] = {}  # prompt key -> reference answer
    self.contradicted: set[str] = set()
    # Questions of evaluation sets: digest of the question, sequence of its
    # words, or n-gram of words -> place of the row.
    self._questions: dict[str, str] = {}
    self._sequences: dict[str, str] = {}
    self._ngrams: dict[str, str] = {}

  def _ngrams_of(self, question: str) -> Iterator[str]:
    size = self._data.ngram
    words = re.findall(r"\w+", _plain(question)) if size else []
    for start in range(len(words) - size + 1 if size else 0):
      yield " ".join(words[start : start + size])

  def add_evaluation(self, example: Example) -> None:
    """Remembers an evaluation example, even if it is dropped later."""
    place = f"{example.source} {example.where}"
    self._questions.setdefault(_digest(*_asked(example)), place)
    for ngram in self._ngrams_of(example.question):
      self._ngrams.setdefault(ngram, place)
    if self._data.ngram and (words := _sequence(example)):
      self._sequences.setdefault(words, place)

  def add_training(self, row: dict) -> None:
    """Remembers a training row that is kept."""
    self._seen.add(row["key"])

  def add_answer(self, example: Example) -> None:
    """Remembers the reference answer of a training example without a fault."""
    # Answers of code are tests, and different tests are no contradiction.
    if example.answer and example.kind != "code":
      name = prompt_key(example.turns, example.question)
      self._answers.setdefault(name, example.answer)

  def fault(self, example: Example) -> Fault | None:
    """The fault of an example on its own."""
    if not example.question:
      return Fault(EMPTY, example.answer)
    needed = example.kind != verifiers.NONE
    if needed and not example.answer and not example.response:
      return Fault(NO_ANSWER, example.question)
    rejected = _normalize(example.rejected)
    if rejected and rejected == _normalize(example.response):
      return Fault("both responses are the same", example.question)
    return None

  def training_fault(self, example: Example) -> Fault | None:
    """The fault of a training example in comparison with other examples.

    Raises:
      DataError: the example is an evaluation row, and the config does not say
        whether to drop such rows.
    """
    d, name = self._data, prompt_key(example.turns, example.question)
    if d.pass_rate:
      low, high = d.pass_rate
      if example.pass_rate is None:
        return Fault(UNMEASURED, example.question)
      if not low <= example.pass_rate <= high:
        reason = f"the pass rate is not within data.pass_rate = {low}, {high}"
        return Fault(reason, f"{example.pass_rate:g}: {example.question}")
    answer, other = example.answer, self._answers.get(name, "")
    # Rows with the same question contradict each other, whatever responses
    # they have. An answer that cannot be verified contradicts no other answer.
    if other and answer not in (other, "") and example.kind != "code":
      fault = None
      if not self.references.fault(example):
        fault = self.references.contradiction(example, other)
      if fault:
        self.contradicted |= {name} if fault.reason == CONTRADICTION else set()
        return fault
    if d.deduplicate and key(example) in self._seen:
      return Fault(DUPLICATE, example.question)
    if d.allow_benchmarks:
      return None
    place = self._questions.get(_digest(*_asked(example)))
    if place and not d.ngram:
      raise DataError(
          f"data.train: {example.source} {example.where} is also {place}, an"
          " evaluation row: set data.ngram = 13 to drop such rows, or"
          " data.allow_benchmarks = True to train on them"
      )
    if place:
      text = f"{place}: {example.question}"
      return Fault("the question is in an evaluation set", text)
    # The whole question as well: it may have too few words for an n-gram.
    if place := self._sequences.get(_sequence(example)):
      return Fault(SAME_WORDS, f"{place}: {example.question}")
    for ngram in self._ngrams_of(example.question):
      if ngram in self._ngrams:
        return Fault(
            f"{SHARED_WORDS} = {d.ngram} words with one of an evaluation set",
            f"{self._ngrams[ngram]}: {ngram}",
        )
    return None
