"""Rows of files and of the hub as examples; the known sets by name.

A source is one text of a config:

  NAME, NAME:SPLIT            a known set, from the hub
  NAME@PATH, NAME:SPLIT@PATH  the same set in a local file or directory
  PATH, OWNER/REPOSITORY      anything else: columns are mapped by config;
                              :SPLIT behind it chooses files by their names;
                              dapo-math-17k.parquet and other files named as
                              a known set's repository are that set

A config lists several with commas; `SOURCE*2` makes one count twice in the
mixture, without weights each counts as many times as it has rows.

Files are JSON lines, a JSON list, gzip of both, Parquet, or ArrayRecord with a
JSON object in each record. They are streamed; only a JSON list is loaded whole.
"""

import codecs
import contextlib
import difflib
import fnmatch
import gzip
import itertools
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rl_reason.verifiers import final


class DataError(ValueError):
  """One line: what cannot be read, and the remedy."""


COLUMNS = ("question", "answer", "difficulty", "response", "chosen", "rejected")


class Example(NamedTuple):
  """What all sets have in common.

  Attributes:
    question: text, before any template.
    answer: the gold. For code a JSON object: {"tests", "names", "prompt"} for
      asserts, {"cases"} for pairs of input and output. '' only beside a
      response.
    kind: of KINDS.
    difficulty: as the set says, rounded down; 0 if it says nothing.
    source: name of the set, or the path.
    where: file:row, counted from 1.
    response: of an SFT pair, or the better one of a preference pair.
    rejected: the worse one.
    tolerance: absolute error that a numeric answer may have.
    solution: work that leads to the answer, without the answer's own line.
  """

  question: str
  answer: str
  kind: str
  difficulty: int
  source: str
  where: str
  response: str = ""
  rejected: str = ""
  tolerance: float = 0.0
  solution: str = ""


class Malformed(NamedTuple):
  """A row that is no example, and why."""

  where: str
  why: str


# --- fields of a row ---------------------------------------------------------

Field = Callable[[dict], Any]


def _text(value) -> str:
  """A cell as text; of a chat, its last message."""
  if isinstance(value, list) and value and isinstance(value[-1], dict):
    value = value[-1]["content"]
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  if isinstance(value, bool):
    value = "yes" if value else "no"
  if not isinstance(value, str | int | float):
    raise TypeError(f"{type(value).__name__} is no text")
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{value} is no number")
  text = str(value).strip()
  text.encode()  # half of a surrogate pair is no character
  return text


def _column(*names: str) -> Field:
  """The first of the columns that a row has; 'a.b' is b within a."""

  def read(row):
    for name in names:
      cell = row
      for part in name.split("."):
        cell = cell.get(part) if isinstance(cell, dict) else None
      if cell is not None:
        return cell
    return ""

  return read


def _level(value) -> int:
  """4.5, '4.5' and 'Level 4' are 4; what holds no number is 0."""
  found = re.search(r"-?\d+(\.\d+)?", str(value))
  return math.floor(float(found[0])) if found else 0


def last_box(text: str) -> str | None:
  r"""What the last \boxed{...} holds, or \boxed x; None if there is none."""
  found = list(re.finditer(r"\\(?:boxed|fbox)(\s*\{|\s+([^\s{}$]+))", text))
  if not found or found[-1][2]:
    return found[-1][2] if found else None
  content = final.box(text, found[-1].start())
  return None if content is None else content.strip()


def _math_gold(field: Field) -> Field:
  """What stands behind '####', in the last box, or the whole cell."""

  def read(row):
    text = _text(field(row))
    if "####" in text:
      return text.rpartition("####")[2]
    return last_box(text) or text

  return read


def _worked(row) -> str:
  """GSM8K's solution without its calculator's notes and its last line."""
  text = re.sub(r"<<[^<>]*>>", "", _text(row["answer"]))
  return text.rpartition("####")[0].strip()


def _dapo_question(row) -> str:
  """The problem between the first and the last paragraph, its instructions."""
  text = _text(row["prompt"])
  if text.startswith("Solve the following math problem"):
    text = text.partition("\n\n")[2]
  if 'after "Answer:"' in text.rpartition("\n\n")[2]:
    text = text.rpartition("\n\n")[0]
  return text


def _olympiad_gold(row) -> str:
  """All final answers, and their unit."""
  answers = row["final_answer"]
  gold = ", ".join(answers) if isinstance(answers, list) else _text(answers)
  # One pair of dollars around number and unit: '$12$ $cm^2$' is no LaTeX value.
  unit = row.get("unit")
  return f"{gold} {unit}".replace("$", "") if unit else gold


def _olympiad_tolerance(row) -> float:
  errors = str(row.get("error") or 0)
  most = max(float(x) for x in errors.split(","))
  if not 0 <= most < math.inf:
    raise ValueError(f"{errors} is no error that an answer may have")
  return most


def _choice_question(row) -> str:
  """The question, and the choices under it."""
  choices = row["choices"]
  pairs = zip(choices["label"], choices["text"], strict=True)
  return "\n".join([row["question"], *(f"{a}. {text}" for a, text in pairs)])


def _asserts_question(row) -> str:
  """The task, and its asserts: without them nobody knows the name to define."""
  tests = "\n".join(row["test_list"])
  return f"{_text(_column('text', 'prompt')(row))}\n\nIt must pass:\n\n{tests}"


def _asserts_gold(row) -> str:
  setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or ())
  tests = "\n".join(row["test_list"])
  return json.dumps(dict(tests=tests, names=[], prompt=setup))


def _check_gold(row) -> str:
  name = row["entry_point"]
  tests = f"{row['test']}\ncheck({name})\n"
  return json.dumps(dict(tests=tests, names=[name], prompt=row["prompt"]))


def _completed(row) -> str:
  body = row.get("canonical_solution")
  return row["prompt"] + body if body else ""


def _streams_gold(row) -> str:
  cases = []
  for part in ("public_tests", "private_tests", "generated_tests"):
    tests = row.get(part) or dict(input=[], output=[])
    cases += zip(tests["input"], tests["output"], strict=True)
  return json.dumps(dict(cases=cases)) if cases else ""


# --- the known sets ----------------------------------------------------------


class Known(NamedTuple):
  """A set that is known by name.

  Attributes:
    hub: id of its repository.
    splits: name of a split -> pattern of its files there. All but 'train' are
      benchmarks.
    kind: of KINDS.
    question, answer, difficulty, tolerance, solution: read from a raw row.
  """

  hub: str
  splits: dict[str, str]
  kind: str
  question: Field
  answer: Field
  difficulty: Field = lambda row: 0
  tolerance: Field = lambda row: 0.0
  solution: Field = lambda row: ""


_PROBLEM = _column("problem", "question")
_PLAIN = _math_gold(_column("answer", "solution"))
_BOXED = _math_gold(_column("solution", "answer"))

KNOWN = {
    "gsm8k": Known(
        "openai/gsm8k",
        {"train": "main/train*", "test": "main/test*"},
        "math",
        _PROBLEM,
        _PLAIN,
        solution=_worked,
    ),
    "svamp": Known(
        "ChilleD/SVAMP",
        {"train": "*train*", "test": "*test*"},
        "math",
        lambda row: f"{row['Body'].strip().rstrip('.')}. {row['Question']}",
        _column("Answer"),
    ),
    "math": Known(
        "EleutherAI/hendrycks_math",
        {"train": "*/train*", "test": "*/test*"},
        "math",
        _PROBLEM,
        _BOXED,
        _column("level"),
        solution=_column("solution"),
    ),
    "math500": Known(
        "HuggingFaceH4/MATH-500",
        {"test": "*test*"},
        "math",
        _PROBLEM,
        _PLAIN,
        _column("level"),
    ),
    "aime24": Known(
        "HuggingFaceH4/aime_2024",
        {"test": "*train*"},
        "math",
        _PROBLEM,
        _PLAIN,
    ),
    "aime25": Known(
        "math-ai/aime25", {"test": "*test*"}, "math", _PROBLEM, _PLAIN
    ),
    "amc23": Known(
        "math-ai/amc23", {"test": "*test*"}, "math", _PROBLEM, _PLAIN
    ),
    "minerva": Known(
        "math-ai/minervamath", {"test": "*test*"}, "math", _PROBLEM, _PLAIN
    ),
    "olympiadbench": Known(
        "Hothan/OlympiadBench",
        {"test": "*OE_TO_maths_en_COMP*"},
        "math",
        _column("question"),
        _olympiad_gold,
        tolerance=_olympiad_tolerance,
    ),
    "gaokao2023en": Known(
        "MARIO-Math-Reasoning/Gaokao2023-Math-En",
        {"test": "*train*"},
        "math",
        _PROBLEM,
        _PLAIN,
    ),
    "dapo_math_17k": Known(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"train": "*"},
        "math",
        _dapo_question,
        _column("reward_model.ground_truth"),
    ),
    "deepmath": Known(
        "zwhe99/DeepMath-103K",
        {"train": "*train*"},
        "math",
        _column("question", "prompt"),
        _column("final_answer", "ground_truth"),
        _column("difficulty"),
    ),
    "humaneval": Known(
        "openai/openai_humaneval",
        {"test": "*test*"},
        "code",
        lambda row: f"Complete this function:\n\n{row['prompt']}",
        _check_gold,
        solution=_completed,
    ),
    "mbpp": Known(
        "google-research-datasets/mbpp",
        {
            "train": "full/train*",
            "validation": "full/validation*",
            "test": "full/test*",
        },
        "code",
        _asserts_question,
        _asserts_gold,
        solution=_column("code"),
    ),
    "code_contests": Known(
        "deepmind/code_contests",
        {"train": "*train*", "valid": "*valid*", "test": "*test*"},
        "code",
        _column("description"),
        _streams_gold,
        _column("difficulty"),
    ),
    "strategyqa": Known(
        "ChilleD/StrategyQA",
        {"train": "*train*", "test": "*test*"},
        "choice",
        lambda row: f"{_text(row['question'])} Yes or no?",
        _column("answer"),
    ),
    "commonsenseqa": Known(
        "tau/commonsense_qa",
        {"train": "*train*", "validation": "*validation*"},
        "choice",
        _choice_question,
        _column("answerKey"),
    ),
}


# --- sources -----------------------------------------------------------------


class Source(NamedTuple):
  """A source as `parse` reads it.

  Attributes:
    text: as the config has it.
    name: of KNOWN, or ''.
    split: '' for all files.
    place: a path, or the id of a repository of the hub.
  """

  text: str
  name: str
  split: str
  place: str

  @property
  def benchmark(self) -> bool:
    """Whether it is there to evaluate on."""
    return bool(self.name) and self.split != "train"


def parse(text: str, prefer: str = "train") -> Source:
  """Reads a source; asks neither the hub nor for what a directory holds.

  Args:
    text: as at the top of this file.
    prefer: the split of a known set if neither the text nor a file's name says
      one, and the set has it.

  Raises:
    DataError: it is neither a known set nor a path nor a hub id.
  """
  head, at, path = text.partition("@")
  name, _, split = head.partition(":")
  if name in KNOWN:
    splits = KNOWN[name].splits
    # A file says itself which split it is: test.jsonl is not to train on.
    said = [x for x in splits if x in pathlib.Path(path).name]
    likely = said[0] if said else prefer
    split = split or (likely if likely in splits else list(splits)[-1])
    if split not in splits:
      raise DataError(
          f"{text}: {name} has no split {split!r}; it has {', '.join(splits)}"
      )
    if at and not pathlib.Path(path).exists():
      raise DataError(f"{text}: there is no file or directory {path}")
    return Source(text, name, split, path or KNOWN[name].hub)
  if at:
    near = difflib.get_close_matches(name, KNOWN, 1)
    hint = (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(KNOWN)}"
    )
    raise DataError(f"{text}: {name!r} is no known set; {hint}")
  if text and pathlib.Path(text).exists():
    twin = _twin(pathlib.Path(text))
    if twin:
      return parse(f"{twin}@{text}", prefer)
    return Source(text, "", "", text)
  place, _, split = text.partition(":")
  hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", place)
  if hub and _suffix(pathlib.Path(place)) not in READERS:
    return Source(text, "", split, place)
  if place and pathlib.Path(place).exists():
    return Source(text, "", split, place)
  near = difflib.get_close_matches(name, KNOWN, 1)
  hint = f"; did you mean {near[0]}?" if near else ""
  raise DataError(
      f"{text}: neither a known set, nor a file or directory, nor a hub id"
      f" OWNER/REPOSITORY{hint}"
  )


def _twin(path: pathlib.Path) -> str:
  """The known set whose repository has a file's name; '' if there is none."""
  stem = path.name.partition(".")[0].lower()
  names = {known.hub.partition("/")[2].lower(): x for x, known in KNOWN.items()}
  return names.get(stem, "")


class Part(NamedTuple):
  """A source, and its weight in a mixture; None if it has none."""

  source: Source
  weight: float | None


def parse_all(text: str, prefer: str) -> list[Part]:
  """Reads 'SOURCE*WEIGHT,SOURCE,...'; see `parse`.

  Raises:
    DataError: a source is none, or a weight is not positive.
  """
  out = []
  for item in filter(None, (x.strip() for x in text.split(","))):
    place, mark, weight = item.rpartition("*")
    try:
      number = float(weight) if mark else None
    except ValueError:
      place, number = item, None
    if number is not None and not 0 < number < math.inf:
      raise DataError(f"{item}: a weight must be more than 0")
    out.append(Part(parse(place if mark else item, prefer), number))
  return out


def columns(text: str) -> dict[str, str]:
  """'question=problem,answer=meta.gold' -> a dict; columns of their own name.

  Raises:
    DataError: anything else.
  """
  out = {name: name for name in COLUMNS}
  for part in filter(None, text.split(",")):
    name, _, column = (x.strip() for x in part.partition("="))
    if name not in COLUMNS or not column:
      raise DataError(
          f"{part!r} is no column; write for instance question=problem, with"
          f" {', '.join(COLUMNS)} on the left"
      )
    out[name] = column
  return out


def files(source: Source) -> list[tuple[str, pathlib.Path]]:
  """(name to show, path) of the files of a source, in order of their names.

  Raises:
    DataError: the hub does not answer, or no file fits.
  """
  root = pathlib.Path(source.place)
  pattern = f"*{source.split}*"
  if source.name:
    pattern = KNOWN[source.name].splits[source.split]
  if not root.exists():
    root = _download(source, pattern)
  if root.is_file():
    return [(root.name, root)]
  found = {
      str(path.relative_to(root)): path
      for path in sorted(root.rglob("*"))
      if path.is_file() and _suffix(path) in READERS
  }
  chosen = [x for x in found if fnmatch.fnmatchcase(x, pattern)]
  if not chosen:  # a copy with another layout: by the name of the split
    chosen = [x for x in found if pathlib.Path(x).name.startswith(source.split)]
  if not chosen and len(found) == 1:
    others = KNOWN[source.name].splits if source.name else ()
    chosen = [x for x in found if not any(y in x for y in others)]
  if not chosen:
    has = ", ".join(found) or f"no file with {', '.join(READERS)}"
    raise DataError(
        f"{source.text}: nothing in {root} is the split {source.split!r}, it"
        f" has {has}; name the file instead"
    )
  return [(name, found[name]) for name in chosen]


def _download(source: Source, pattern: str) -> pathlib.Path:
  import huggingface_hub  # only who asks the hub waits for it

  data = [f"{pattern}{x}{gz}" for x in READERS for gz in ("", ".gz")]
  try:
    return pathlib.Path(
        huggingface_hub.snapshot_download(
            source.place, repo_type="dataset", allow_patterns=data
        )
    )
  except Exception as e:  # of the network, the hub, the disk: many libraries'
    why = (str(e).splitlines() or [type(e).__name__])[0]
    hint = f"{source.name}@PATH" if source.name else "PATH"
    raise DataError(
        f"{source.text}: the hub does not give {source.place} ({why}); bring"
        f" the files yourself and say {hint}"
    ) from None


# --- reading -----------------------------------------------------------------


def _suffix(path: pathlib.Path) -> str:
  return pathlib.Path(path.name.removesuffix(".gz")).suffix


def _open(path: pathlib.Path):
  return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _once(pairs: list[tuple[str, Any]]) -> dict:
  row = dict(pairs)
  if len(row) < len(pairs):
    raise ValueError("a key stands there twice")
  return row


def _object(data: bytes) -> dict | None:
  try:
    row = json.loads(data, object_pairs_hook=_once)
  except (ValueError, RecursionError):
    return None
  return row if isinstance(row, dict) else None


Numbered = Iterator[tuple[int, dict | None]]


def _lines(file) -> Numbered:
  for number, line in enumerate(file, 1):
    if line.strip():
      yield number, _object(line)


def _jsonl(path) -> Numbered:
  with _open(path) as file:
    yield from _lines(file)


def _json(path) -> Numbered:
  with _open(path) as file:
    first = next((x for x in file if x.strip()), b"")
    file.seek(0)
    if not first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
      yield from _lines(file)  # whatever the name says
      return
    for number, row in enumerate(json.load(file, object_pairs_hook=_once), 1):
      yield number, row if isinstance(row, dict) else None


def _parquet(path) -> Numbered:
  import pyarrow.parquet

  with pyarrow.parquet.ParquetFile(path) as file:
    batches = (batch.to_pylist() for batch in file.iter_batches(256))
    yield from enumerate(itertools.chain.from_iterable(batches), 1)


def _array_record(path) -> Numbered:
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  for index in range(reader.num_records()):
    yield index + 1, _object(reader.read(index, index + 1)[0])
  reader.close()  # complains of a file without its end: that has no records


READERS = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".array_record": _array_record,
    ".arrayrecord": _array_record,
}


@contextlib.contextmanager
def _whole(path):
  """Every library's complaint about a damaged file as one."""
  try:
    yield
  except Exception as e:  # they raise of all kinds
    why = (str(e).splitlines() or [type(e).__name__])[0]
    raise DataError(
        f"{path}: cannot be read to its end ({why}); it is damaged or cut"
        " short: fetch it again"
    ) from None


def read(source: Source) -> Iterator[tuple[str, dict | None]]:
  """(file:row, row) of all files; the row is None where there is no object.

  A row of a text is numbered as its line; blank lines are passed over.

  Raises:
    DataError: a file is damaged or of another format.
  """
  for name, path in files(source):
    reader = READERS.get(_suffix(path))
    if reader is None:
      raise DataError(f"{path}: must end in {', '.join(READERS)}, or .gz")
    with _whole(path):
      for number, row in reader(path):
        yield f"{name}:{number}", row


def examples(
    source: Source, mapping: dict[str, str], kind: str
) -> Iterator[Example | Malformed]:
  """The rows of a source, in order.

  Args:
    source: of `parse`.
    mapping: of `columns`, for a set that is not known.
    kind: of such a set.
  """
  known = KNOWN.get(source.name)
  if known is None:
    field = {name: _column(column) for name, column in mapping.items()}
    gold = field["answer"]
    known = Known(
        hub=source.place,
        splits={},
        kind=kind,
        question=field["question"],
        answer=_math_gold(gold) if kind == "math" else gold,
        difficulty=field["difficulty"],
    )
    response = _column(mapping["response"], mapping["chosen"])
    rejected = field["rejected"]
  else:
    response = rejected = _column()
  for where, row in read(source):
    if row is None:
      yield Malformed(where, "no JSON object")
      continue
    try:
      example = Example(
          question=_text(known.question(row)),
          answer=_text(known.answer(row)),
          kind=known.kind,
          difficulty=_level(known.difficulty(row)),
          source=source.name or source.place,
          where=where,
          response=_text(response(row)),
          rejected=_text(rejected(row)),
          tolerance=known.tolerance(row),
          solution=_text(known.solution(row)),
      )
    except KeyError as e:
      yield Malformed(where, f"no field {e}")
    except (TypeError, ValueError, AttributeError, OverflowError) as e:
      yield Malformed(where, f"a field of another type ({e})")
    else:
      yield example
