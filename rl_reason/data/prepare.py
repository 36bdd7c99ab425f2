"""Preparation of data: examples, checked, templated, tokenised, written.

  WORKDIR/data/train-0.array_record     rows to train on, a file a source
  WORKDIR/data/evaluate-0.array_record  rows to evaluate on
  WORKDIR/data/data.json, data.md       what was kept, what dropped, and why

The directory gets its name when everything in it is written.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator

import jax
from array_record.python import array_record_module
from jax.experimental import multihost_utils

import rl_reason
from rl_reason import config as config_lib, verifiers
from rl_reason.data import datasets, templates, tokenizer
from rl_reason.data.datasets import Example
from rl_reason.monitoring import metrics
from rl_reason.session import resolve, tokenizer_path
from rl_reason.structs import Stopped
from rl_reason.verifiers import workers

SAMPLES = 3  # dropped rows of each reason that the report shows
AHEAD = 64  # rows whose golds are tried at a time
UNUSABLE = "gold that cannot be verified"
CONTRADICTION = "other gold elsewhere"

# Why a row is left out, and the text that shows it.
Fault = tuple[str, str]


@dataclasses.dataclass
class Tally:
  """What became of the rows of one source.

  Attributes:
    source, use, file: as in the config; 'train' or 'evaluate'; what is written.
    read, kept: rows.
    golds, usable: golds that were tried, and that verify against themselves.
    dropped: reason -> rows.
    samples: reason -> a few of them.
    lengths: bin -> rows; prompts of up to so many tokens, a power of two.
    difficulties: difficulty -> rows.
  """

  source: str
  use: str
  file: str
  read: int = 0
  kept: int = 0
  golds: int = 0
  usable: int = 0
  dropped: dict[str, int] = dataclasses.field(
      default_factory=collections.Counter
  )
  samples: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  lengths: dict[int, int] = dataclasses.field(
      default_factory=collections.Counter
  )
  difficulties: dict[int, int] = dataclasses.field(
      default_factory=collections.Counter
  )

  def drop(self, reason: str, where: str, text: str) -> None:
    """Counts a row that is left out."""
    self.dropped[reason] += 1
    samples = self.samples.setdefault(reason, [])
    if len(samples) < SAMPLES:
      samples.append(f"{where}: {' '.join(text.split())[:120]}")

  def keep(self, row: dict) -> None:
    """Counts a row that is written."""
    self.kept += 1
    self.lengths[row["bin"]] += 1
    self.difficulties[row["difficulty"]] += 1


# --- texts that are the same -------------------------------------------------


def _fold(text: str) -> str:
  """The text without what copies differ in: case, blanks, forms of letters."""
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _digest(*texts: str) -> str:
  return hashlib.sha256("\0".join(map(_fold, texts)).encode()).hexdigest()[:32]


class Leaks:
  """Questions of evaluation sets, to be found again in training questions.

  Args:
    size: n of the n-grams of words; 0 finds equal questions only.
  """

  def __init__(self, size: int):
    self._size = size
    self._questions: dict[str, str] = {}
    self._grams: dict[str, str] = {}

  def _split(self, question: str) -> Iterator[str]:
    if self._size:
      words = re.findall(r"\w+", _fold(question))
      for begin in range(len(words) - self._size + 1):
        yield " ".join(words[begin : begin + self._size])

  def add(self, question: str, where: str) -> None:
    """Takes in a question of an evaluation set."""
    self._questions.setdefault(_digest(question), where)
    for gram in self._split(question):
      self._grams.setdefault(gram, where)

  def equal(self, question: str) -> str | None:
    """Where the same question stands."""
    return self._questions.get(_digest(question))

  def overlap(self, question: str) -> tuple[str, str] | None:
    """The first n words that both have, and where the other one stands."""
    for gram in self._split(question):
      if gram in self._grams:
        return gram, self._grams[gram]
    return None


# --- golds -------------------------------------------------------------------


class Golds:
  """What verifiers say about golds, in processes that may hang or crash.

  Args:
    pool: of `verifiers.ask`.
  """

  def __init__(self, pool: workers.Pool):
    self._pool = pool
    self._pending: dict[tuple[str, str], concurrent.futures.Future] = {}

  def begin(self, examples: list[Example]) -> None:
    """Starts to try the golds of some examples, and forgets the others'."""
    golds = dict.fromkeys((x.kind, x.answer) for x in examples if x.answer)
    items = [(verifiers.KINDS[kind], "usable", gold) for kind, gold in golds]
    self._pending = dict(zip(golds, self._pool.submit(items), strict=True))

  def fault(self, example: Example) -> Fault | None:
    """What is wrong with a gold that was begun; waits for it."""
    [out] = self._pool.results([self._pending[example.kind, example.answer]])
    if out.failure:
      return _failed(out.failure, example.answer)
    return None if out.value else (UNUSABLE, example.answer)

  def other(self, example: Example, gold: str) -> Fault | None:
    """What is wrong with an example's gold if its question had this one too."""
    module, box = verifiers.KINDS[example.kind], f"\\boxed{{{example.answer}}}"
    [out] = self._pool.results(
        self._pool.submit([(module, "verify", box, gold)])
    )
    if out.failure:
      return _failed(out.failure, f"{example.answer} beside {gold}")
    return None if out.value else (CONTRADICTION, example.question)


def _failed(failure: str, text: str) -> Fault:
  kind = "takes too long" if failure == "time" else "breaks its verifier"
  return f"gold that {kind}", f"{failure}: {text}"


# --- rows --------------------------------------------------------------------


class Maker:
  """Makes rows of examples: renders, tokenises, measures.

  Args:
    config: `data.*`, and the room for a prompt and a response.
    tok: the tokenizer.
  """

  def __init__(self, config, tok):
    self._data, self._room, self._tok = config.data, config.rollout, tok
    self._reserved = templates.reserved(tok)
    self._special = templates.reserved(tok, special=True)
    try:
      self._own = self._found(self._reserved, self._render("")[1])
    except templates.PromptError as e:
      raise config_lib.ConfigError(str(e)) from None

  def _render(self, question: str) -> tuple[str, list[int]]:
    text = templates.render(
        question,
        self._data.template,
        self._tok,
        chat=self._data.chat,
        system=self._data.system,
    )
    return text, tokenizer.encode(self._tok, [text])[0]

  def _found(self, reserved: frozenset[int], ids: list[int]) -> list[int]:
    return [i for i in ids if i in reserved]

  def row(self, example: Example, ways: int) -> dict | Fault:
    """A row to write, or why there is none.

    Args:
      example: one that is right in itself.
      ways: how many of prompts.PARAPHRASES there are to ask in.
    """
    key = _digest(example.question, example.response, example.rejected)
    question = templates.paraphrase(example.question, int(key, 16) % ways)
    prompt, tokens = self._render(question)
    if self._found(self._reserved, tokens) != self._own:
      return "special token", example.question
    if len(tokens) > self._room.max_prompt:
      return "prompt too long", f"{len(tokens)} tokens: {example.question}"
    response = example.response
    if example.solution and not response:
      response = templates.complete(
          example.solution, example.answer, self._data.template
      )
      if self._response_fault(response):
        response = ""  # the question is good to practise on all the same
    fault = self._response_fault(response) or self._response_fault(
        example.rejected
    )
    if fault:
      return fault
    return example._asdict() | dict(
        response=response,
        key=key,
        prompt=prompt,
        bin=1 << (len(tokens) - 1).bit_length(),
    )

  def _response_fault(self, text: str) -> Fault | None:
    ids = tokenizer.encode(self._tok, [text])[0]
    if self._found(self._special, ids):
      return "special token", text
    if len(ids) + 1 > self._room.max_tokens:  # and its EOS
      return "response too long", f"{len(ids)} tokens: {text}"
    return None


@contextlib.contextmanager
def _writer(path: pathlib.Path):
  # A group of one record is read without its neighbours.
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  try:
    yield lambda row: writer.write(json.dumps(row).encode())
  finally:
    writer.close()


class _Preparation:
  """Everything that the sources of one preparation share."""

  def __init__(self, config, out: pathlib.Path, tok, stop, golds: Golds):
    self._config, self._out, self._stop = config, out, stop
    self._maker, self._golds = Maker(config, tok), golds
    self._leaks = Leaks(config.data.ngram)
    self._seen: dict[str, str] = {}  # key -> gold
    self._doubtful: set[str] = set()  # keys whose golds contradict each other

  def _rows(
      self,
      source: datasets.Source,
      tally: Tally,
      screen: Callable[[Example], Fault | None],
      ways: int,
  ) -> Iterator[dict]:
    d = self._config.data
    mapping = datasets.columns(d.columns)
    items = datasets.examples(source, mapping, d.kind)
    while some := list(itertools.islice(items, AHEAD)):
      self._golds.begin([x for x in some if isinstance(x, Example)])
      for item in some:
        if self._stop.is_set():
          raise Stopped
        tally.read += 1
        if isinstance(item, datasets.Malformed):
          tally.drop("malformed", item.where, item.why)
          continue
        fault = screen(item) or self._fault(item, tally)
        row = fault or self._maker.row(item, ways)
        if isinstance(row, tuple):
          tally.drop(row[0], item.where, row[1])
        else:
          yield row

  def _fault(self, example: Example, tally: Tally) -> Fault | None:
    """What is wrong with an example in itself."""
    if not example.question:
      return "no question", example.answer
    if not example.answer and not example.response:
      return "no answer", example.question
    if example.rejected and _fold(example.rejected) == _fold(example.response):
      return "no preference", example.question
    if not example.answer:
      return None
    tally.golds += 1
    fault = self._golds.fault(example)
    tally.usable += not fault
    return fault

  def evaluation(self, source: datasets.Source, file: str) -> Tally:
    """Writes a set to evaluate on: all of it that can be verified and fits."""
    tally = Tally(source.text, "evaluate", file)

    def remember(example):
      where = f"{example.source} {example.where}"
      self._leaks.add(example.question, where)

    with _writer(self._out / file) as write:
      for row in self._rows(source, tally, remember, ways=1):
        write(row)
        tally.keep(row)
    return tally

  def _screen(self, example: Example) -> Fault | None:
    """What is wrong with a training example beside others."""
    d = self._config.data
    key = _digest(example.question, example.response, example.rejected)
    if d.deduplicate and key in self._seen:
      gold, seen = example.answer, self._seen[key]
      fault = None
      # More or fewer tests of one program contradict nothing, and a gold that
      # is none says nothing against the other one.
      if gold not in (seen, "") and example.kind != "code":
        if not self._golds.fault(example):
          fault = self._golds.other(example, seen)
      if fault and fault[0] == CONTRADICTION:
        self._doubtful.add(key)
      return fault or ("duplicate", example.question)
    if d.allow_benchmarks:
      return None
    same = self._leaks.equal(example.question)
    if same and not d.ngram:
      raise datasets.DataError(
          f"data.train: {example.source} {example.where} is {same}, which is to"
          " be evaluated on: set data.ngram = 13 to drop such rows, or"
          " data.allow_benchmarks = True to train on them"
      )
    if same:
      return "in an evaluation set", f"{same}: {example.question}"
    shared = self._leaks.overlap(example.question)
    if shared:
      return "overlaps an evaluation set", f"{shared[1]}: {shared[0]}"
    return None

  def training(self, source: datasets.Source, file: str) -> Tally:
    """Writes what passes of a training set; `settle` has the last word."""
    d = self._config.data
    tally = Tally(source.text, "train", file)
    with _writer(self._out / f"{file}.all") as write:
      rows = self._rows(source, tally, self._screen, d.paraphrases)
      for number, row in enumerate(rows, 1):
        self._seen[row["key"]] = "" if row["kind"] == "code" else row["answer"]
        write(row)
        if number == d.limit:
          break
    return tally

  def settle(self, tally: Tally) -> None:
    """Leaves out questions that came up again with another gold."""
    found = self._out / f"{tally.file}.all"
    with _writer(self._out / tally.file) as write:
      for row in _records(found):
        if row["key"] in self._doubtful:
          tally.drop(CONTRADICTION, row["where"], row["question"])
        else:
          write(row)
          tally.keep(row)
    found.unlink()


def _records(path: pathlib.Path) -> Iterator[dict]:
  reader = array_record_module.ArrayRecordReader(str(path))
  try:
    for index in range(reader.num_records()):
      yield json.loads(reader.read(index, index + 1)[0])
  finally:
    reader.close()


# --- the stage ---------------------------------------------------------------


def _sources(config) -> dict[str, list[datasets.Part]]:
  d = config.data
  return dict(
      evaluate=datasets.parse_all(d.evaluate, "test"),
      train=datasets.parse_all(d.train, "train"),
  )


def _identity(config, tok_path: str, sources: list[datasets.Source]) -> str:
  """Of what a preparation depends on, files' sizes and times included."""
  flat = config_lib.flat(config)
  more = ["tokenizer", "rollout.max_prompt", "rollout.max_tokens"]
  more.append("reward.seconds")  # a gold may take too long
  paths = [path for source in sources for _, path in datasets.files(source)]
  tok = pathlib.Path(tok_path)
  paths += sorted(x for x in tok.glob("*") if tok.is_dir() and x.is_file())
  parts = [rl_reason.__version__]
  parts += [
      f"{name}={value}"
      for name, value in sorted(flat.items())
      if name.startswith("data.") or name in more
  ]
  for path in paths:
    stat = path.stat()
    parts.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _markdown(tallies: list[Tally]) -> str:
  """The report, to be read."""
  lines = ["# Prepared data", ""]
  lines += ["| source | use | read | kept | golds that verify |"]
  lines += ["|---|---|---|---|---|"]
  for t in tallies:
    share = f"{t.usable} of {t.golds}" if t.golds else "-"
    lines += [f"| {t.source} | {t.use} | {t.read} | {t.kept} | {share} |"]
  for t in tallies:
    lines += ["", f"## {t.source} ({t.use})", ""]
    for title, counts in (
        ("Tokens of a prompt, up to", t.lengths),
        ("Difficulty", t.difficulties),
    ):
      table = ", ".join(f"{k}: {n}" for k, n in sorted(counts.items()))
      lines += [f"{title}: {table or 'none'}", ""]
    for reason, count in sorted(t.dropped.items(), key=lambda x: -x[1]):
      lines += [f"- {reason}: {count}"]
      lines += [f"    - `{x.replace('`', chr(39))}`" for x in t.samples[reason]]
  return "\n".join(lines) + "\n"


def _write(config, tok_path, sources, identity, workdir, display, stop) -> None:
  """Writes everything beside its place, then moves it there."""
  out, old = workdir / "data.new", workdir / "data.old"
  for path in (out, old):
    shutil.rmtree(path, ignore_errors=True)
  out.mkdir(parents=True)
  tok = tokenizer.load(tok_path, "")
  r, tallies = config.reward, []
  with workers.Pool("rl_reason.verifiers:ask", r.workers, r.seconds) as pool:
    work = _Preparation(config, out, tok, stop, Golds(pool))
    for use, make in (("evaluate", work.evaluation), ("train", work.training)):
      for index, (source, _) in enumerate(sources[use]):
        display.doing(f"preparing {source.text}")
        tallies.append(make(source, f"{use}-{index}.array_record"))
  for tally in tallies:
    if tally.use == "train":
      work.settle(tally)
    display.say(f"{tally.source}: {tally.kept} of {tally.read} rows kept")
    if not tally.kept:
      why = ", ".join(f"{n} {reason}" for reason, n in tally.dropped.items())
      raise datasets.DataError(
          f"data.{tally.use}: no row of {tally.source} is left"
          f" ({why or 'it is empty'}); mend it or leave it out"
      )
  given = [part.weight for part in sources["train"]]
  kept = [tally.kept for tally in tallies if tally.use == "train"]
  weights = [1.0 if x is None else x for x in given] if any(given) else kept
  report = dict(
      identity=identity,
      weights=weights,
      sources=[vars(tally) for tally in tallies],
  )
  (out / "data.md").write_text(_markdown(tallies))
  metrics.write_json(out / "data.json", report)
  place = workdir / "data"
  if place.exists():
    place.rename(old)
  out.rename(place)
  shutil.rmtree(old, ignore_errors=True)


def run(config, workdir: pathlib.Path, display, stop) -> pathlib.Path:
  """Prepares the sources of `data.train` and `data.evaluate`.

  What is there already, of the same config and the same files, stays.

  Args:
    config: checked.
    workdir: of the run.
    display: where words go.
    stop: set by SIGTERM.

  Returns:
    the directory that `data.prepared` reads.

  Raises:
    DataError: a source cannot be read, nothing of it is left, or training rows
      are evaluation rows and nobody said what to do about it.
    Stopped: by SIGTERM; nothing is left behind that would be taken for whole.
  """
  place = workdir / "data"
  if jax.process_index() == 0:
    sources = _sources(config)
    parts = sources["evaluate"] + sources["train"]
    tok_path = tokenizer_path(config, resolve(config))
    identity = _identity(config, tok_path, [part.source for part in parts])
    report = place / "data.json"
    done = report.exists() and json.loads(report.read_text())
    if done and done["identity"] == identity:
      display.say(f"data are prepared already: {place}")
    else:
      _write(config, tok_path, sources, identity, workdir, display, stop)
      display.say(f"data: {place / 'data.md'}")
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("prepare")
  return place
