"""Screening of examples: duplicates, contamination, reference answers.

Questions of training rows are compared with those of evaluation sets by their
n-grams of words (GPT-3, arXiv:2005.14165, appendix C). Words that many
questions of an evaluation set share do not tell its questions apart: an
instruction, the examples of a few-shot prompt, "where m and n are relatively
prime positive integers". They are no contamination, and are left out before
n-grams are made. Only the evaluation sets decide which words these are: a test
question that every training row contains stays contamination.
"""

import collections
import concurrent.futures
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rl_reason import verifiers
from rl_reason.data.datasets import DataError, Example
from rl_reason.verifiers import workers

# What is said of rows that are kept.
UNCLOSED = (
    "the prompt opens a thought that the response never closes, and SFT would"
    " teach to answer within it: give the responses their thoughts, as in"
    " '...</think>...', or set data.template_args = 'enable_thinking=False', if"
    " the chat template reads it"
)
RENAMED = (
    "the chat template does not show the role developer: these messages have"
    " the role system"
)
TOOLS = (
    "a column with schemas of tools is no part of prompts: write them into a"
    " system message, or let an environment offer the tools"
)


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
# It is outside of the grammar, or a sentence that no short answer equals.
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
UNWANTED = (  # unpaired preferences, as of KTO
    "its label says that the response is not wanted, and a completion is what"
    " SFT imitates; write pairs with chosen and rejected to learn preferences"
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


def _tokens(text: str) -> list[str]:
  """The words, and the characters between them."""
  return re.findall(r"\w+|[^\w\s]", _plain(text))


def _sequence(tokens: list[str]) -> str:
  """Words and operators, without punctuation."""
  return " ".join(x for x in tokens if x not in "\\{}$.,;:?'\"`")


def _words(tokens: list[str]) -> list[int]:
  """The places of the words among the tokens."""
  return [n for n, x in enumerate(tokens) if x[0].isalnum() or x[0] == "_"]


def _ngrams(words: list[str], size: int) -> Iterator[str]:
  for start in range(len(words) - size + 1 if size else 0):
    yield " ".join(words[start : start + size])


# Words that questions share are looked for in runs of RUN words or more. Fewer
# are phrases of the language ("how much money does", in 30 questions of GSM8K).
RUN = 5
# ... and are in one question of 20: in the test sets of GSM8K, MATH, SVAMP and
# OlympiadBench these are at most 1% of all words.
SHARE = 20
EDGE = 0.9  # questions that "Question:" begins, or "Answer:" ends
SHORTEST = 4  # words and operators of its own that identify a short question


def _spans(marks: list[bool]) -> Iterator[tuple[int, int]]:
  """First and last place of each run of marked places."""
  places = [n for n, x in enumerate(marks) if x]
  for _, run in itertools.groupby(enumerate(places), lambda x: x[1] - x[0]):
    found = [place for _, place in run]
    yield found[0], found[-1]


class _Shared:
  """Words that many questions of an evaluation set share.

  Args:
    size: words of the shortest run that counts; 0: nothing is shared.
  """

  def __init__(self, size: int):
    self._size = size
    self._runs: set[str] = set()
    self._edges: list[tuple[slice, list[str]]] = []  # fewer words than a run

  def learn(self, questions: list[str]) -> dict[str, int]:
    """Adds the words that these questions of one set share.

    Returns:
      runs of such words -> the number of distinct questions that have them;
      the run that most text consists of comes first.
    """
    distinct = [*dict.fromkeys(map(_plain, questions))]
    # All of two or three questions; one question shares nothing.
    least = max(2, min(len(distinct), 3), -(-len(distinct) // SHARE))
    tokens = [_tokens(x) for x in distinct]
    words = [[x[n] for n in _words(x)] for x in tokens]
    counts = collections.Counter(
        run for x in words for run in {*_ngrams(x, self._size)}
    )
    self._runs |= {run for run, count in counts.items() if count >= least}
    if len(words) > 1:
      edges = [slice(n) for n in range(1, self._size)]
      edges += [slice(-n, None) for n in range(1, self._size)]
      for edge in edges:
        texts = collections.Counter(tuple(x[edge]) for x in words)
        [(text, count)] = texts.most_common(1)
        if count >= EDGE * len(words):
          self._edges.append((edge, [*text]))
    spans: collections.Counter[str] = collections.Counter()
    for x in words:
      found = _spans(self._marks(x))
      spans.update({" ".join(x[first : last + 1]) for first, last in found})
    by_size = sorted(spans.items(), key=lambda x: -x[1] * len(x[0]))
    return {run: n for run, n in by_size if n >= least}

  def _marks(self, words: list[str]) -> list[bool]:
    """Whether each word is in a run that is shared."""
    marks = [False] * len(words)
    for start, run in enumerate(_ngrams(words, self._size)):
      if run in self._runs:
        marks[start : start + self._size] = [True] * self._size
    for edge, text in self._edges:
      if words[edge] == text:
        marks[edge] = [True] * len(text)
    return marks

  def removed(self, tokens: list[str]) -> list[str]:
    """The tokens without shared words, and without what encloses them."""
    if not self._runs:
      return tokens
    places, out = _words(tokens), [*tokens]
    marks = self._marks([tokens[n] for n in places])
    for first, last in reversed([*_spans(marks)]):
      # At the end and at the start of a question only characters are left.
      end = last + 1 == len(places)
      stop = len(tokens) if end else places[last] + 1
      del out[places[first] if first else 0 : stop]
    return out


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


_LIST = re.compile(r"[,;]|\b(?:and|or)\b|\\pm")  # what a list may contain


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
    self._lists: dict[str, concurrent.futures.Future] = {}

  def submit(self, examples: list[Example]) -> None:
    """Starts to check the reference answers of the next examples."""
    checked = filter(self.checks, examples)
    answers = list(dict.fromkeys((x.kind, x.answer) for x in checked))
    futures = self._pool.submit(
        (verifiers.path(kind), "usable", answer) for kind, answer in answers
    )
    self._pending = dict(zip(answers, futures, strict=True))
    perhaps = [x for kind, x in answers if kind == "math" and _LIST.search(x)]
    path = verifiers.path("math")
    futures = self._pool.submit((path, "is_bare_list", x) for x in perhaps)
    self._lists = dict(zip(perhaps, futures, strict=True))

  def is_bare_list(self, example: Example) -> bool:
    """Whether the reference answer is a list whose order does not matter."""
    pending = self._lists.get(example.answer)
    if not pending or example.kind != "math":
      return False
    [out] = self._pool.results([pending])
    return not out.failure and bool(out.value)

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
    # Set -> its prompts (place, all turns, question), until they are compared.
    self._asked: dict[str, list[tuple[str, str, str]]] = {}
    self._shared = _Shared(min(RUN, data.ngram))

  def _ngrams_of(self, question: str) -> Iterator[str]:
    tokens = self._shared.removed(_tokens(question))
    words = [tokens[n] for n in _words(tokens)]
    return _ngrams(words, self._data.ngram)

  def _sequences_of(self, asked: str) -> Iterator[str]:
    """All words of a prompt, and its own words if they can identify it."""
    tokens = _tokens(asked)
    yield _sequence(tokens)
    own = _sequence([x for x in self._shared.removed(tokens) if x != "\0"])
    if own.count(" ") >= SHORTEST - 1:
      yield own

  def add_evaluation(self, example: Example) -> None:
    """Remembers an evaluation example, even if it is dropped later."""
    place = f"{example.source} {example.where}"
    self._questions.setdefault(_digest(*_asked(example)), place)
    if self._data.ngram:
      asked = place, "\0".join(_asked(example)), example.question
      self._asked.setdefault(example.source, []).append(asked)

  def end_evaluation(self) -> dict[str, dict[str, int]]:
    """Makes training examples comparable with all evaluation examples.

    Returns:
      set -> the runs of words that are not compared, since many of its
      questions share them -> the number of these questions.
    """
    shared = {
        source: self._shared.learn([asked for _, asked, _ in prompts])
        for source, prompts in self._asked.items()
    }
    for place, asked, question in itertools.chain(*self._asked.values()):
      for ngram in self._ngrams_of(question):
        self._ngrams.setdefault(ngram, place)
      for words in filter(None, self._sequences_of(asked)):
        self._sequences.setdefault(words, place)
    self._asked.clear()
    return shared

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
    label = example.columns.get("label")
    if label is False and "completion" in example.columns:
      return Fault(UNWANTED, example.response)
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
    for words in self._sequences_of("\0".join(_asked(example))):
      if place := self._sequences.get(words):
        return Fault(SAME_WORDS, f"{place}: {example.question}")
    for ngram in self._ngrams_of(example.question):
      if ngram in self._ngrams:
        return Fault(
            f"{SHARED_WORDS} = {d.ngram} words with one of an evaluation set",
            f"{self._ngrams[ngram]}: {ngram}",
        )
    return None
