"""Rows of files and of the Hugging Face hub, as examples.

A source is a text of the config:

  NAME, NAME:SPLIT            a known set on the hub
  NAME@PATH, NAME:SPLIT@PATH  the same set in a local file or directory
  PATH, OWNER/REPOSITORY      other data, with columns mapped by the config; a
                              suffix :SPLIT selects files by their names, or a
                              split of a DatasetDict or of a JSON file

A file with the name of a known set's repository, such as dapo-math-17k.parquet,
is read as this set. Commas separate sources, and `SOURCE*2` gives a source the
weight 2 in the mixture. Without weights, every row is drawn equally often.

Files are JSON lines, a JSON list or an object with one, CSV or TSV with a
header, these with compression, Parquet, Arrow, or ArrayRecord with a JSON
object in each record. Directories of `save_to_disk` are read as Hugging Face's
datasets does.
"""

import difflib
import fnmatch
import functools
import itertools
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl_reason import verifiers
from rl_reason.base.errors import one_line
from rl_reason.data import (
    code_rows,
    known_sets,
    published_rows,
    readers,
    saved_datasets,
)
from rl_reason.data.known_sets import KNOWN, Known, column
from rl_reason.data.readers import READERS, DataError, suffix

# Field -> its possible columns by default; the first column of a row that is
# not empty counts. verl keeps reference answers in reward_model, and the set in
# data_source.
COLUMNS = {
    "question": (
        *("question", "problem", "prompt", "messages"),
        *("conversations", "conversation", "dialogue", "dialog"),
        *("query", "instruction"),
    ),
    "answer": (
        "answer",
        "reward_model.ground_truth",
        "ground_truth",
        "final_answer",
        "expected_answer",
        "correct_answer",
        "answerKey",
        "solution",
    ),
    "system": ("system", "system_prompt"),
    "difficulty": ("difficulty",),
    "subject": ("subject", "data_source"),
    "pass_rate": ("pass_rate",),
    "response_tokens": ("response_tokens",),
    "response": ("response", "completion"),
    "thought": known_sets.THOUGHTS,
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "choices": (),
}


CHOICES = "choices", "options"  # of kind "choice", where no column is named


class Example(NamedTuple):
  """A row of any set, in the fields that all sets share.

  Attributes:
    question: text before any template; for a chat, its last turn.
    answer: the reference answer; '' only if there is a response, or if the kind
      is `none`. For code a JSON object: {"tests", "names", "prompt"}, or
      {"cases"} of (input, output).
    kind: name of the verifier.
    difficulty: difficulty, rounded down; 0 if the set has none.
    source: name of the set, or the path.
    where: file:row, counted from 1.
    response: response of an SFT pair, or the chosen one of a preference pair.
    rejected: rejected response of a preference pair.
    tolerance: absolute error that a numeric answer may have.
    solution: reasoning that leads to the answer, without the answer itself.
    turns: turns of a chat before the question, {"role", "content"} each.
    columns: the whole row, for rewards.
    subject: subject of the question, or else the source.
    pass_rate: share of correct responses, measured before; None: not known.
    response_tokens: their mean length; None: not known.
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
  turns: Sequence[Mapping[str, Any]] = ()
  columns: Mapping[str, Any] = {}
  subject: str = ""
  pass_rate: float | None = None
  response_tokens: float | None = None


class Malformed(NamedTuple):
  """A row that cannot be read as an example, the reason, and what is read."""

  where: str
  why: str
  allowed: str = ""


# --- sources -----------------------------------------------------------------


class Source(NamedTuple):
  """A parsed source.

  Attributes:
    text: text of the config.
    name: name of a known set, or ''.
    split: name of the split; '' for all files.
    place: a path, or the id of a repository on the hub.
    revision: revision of the repository; '' for the newest.
  """

  text: str
  name: str
  split: str
  place: str
  revision: str = ""

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the source for `kind_of`; () for known sets."""
    names = self.text, self.place, pathlib.Path(self.place).name
    return () if self.name else names

  @property
  def benchmark(self) -> bool:
    """Whether the source is meant for evaluation."""
    return bool(self.name) and self.split != "train"


_HUB = r"[\w-][\w.-]*/[\w.-]+"


def parse(text: str, default_split: str = "train") -> Source:
  """Parses a source, without asking the hub or listing directories.

  Args:
    text: source in the syntax of this module's docstring.
    default_split: split of known sets, if neither text nor file name has one,
      and of directories with several splits.

  Raises:
    DataError: the text is neither a known set nor a path nor a hub id, or names
      no split where there are several.
  """
  head, at, path = text.partition("@")
  name, _, split = head.partition(":")
  # A path may have an @, too: data@v2/rows.jsonl.
  is_path = os.path.exists(text) and not os.path.exists(path)
  if name in KNOWN and not (at and is_path):
    splits = KNOWN[name].splits
    # The name of a file may contain a split: test.jsonl is not for training.
    named = [x for x in splits if x in pathlib.Path(path).name]
    default = named[0] if named else default_split
    split = split or (default if default in splits else list(splits)[-1])
    if split not in splits:
      raise DataError(
          f"{text}: {name} has no split {split!r}; it has {', '.join(splits)}"
      )
    if at and not pathlib.Path(path).exists():
      raise DataError(f"{text}: there is no file or directory {path}")
    return Source(text, name, split, path or KNOWN[name].hub)
  near = [str(x) for x in pathlib.Path(text).parent.glob("[!.]*")]
  similar = difflib.get_close_matches(name, KNOWN, 1)
  similar = similar or difflib.get_close_matches(text, near, 1, 0.8)
  hint = f"; did you mean {similar[0]}?" if similar else ""
  if text and pathlib.Path(text).exists():
    stem = pathlib.Path(text).name.partition(".")[0].lower()
    for known, (hub, *_) in KNOWN.items():
      if (
          hub.partition("/")[2].lower() == stem
      ):  # named like the set's repository
        return parse(f"{known}@{text}", default_split)
    split = saved_datasets.default_split(
        text, pathlib.Path(text), default_split
    )
    return Source(text, "", split, text)
  place, _, split = text.partition(":")
  is_hub = re.fullmatch(_HUB, place)
  is_file = suffix(pathlib.Path(place)) in READERS
  local = place and pathlib.Path(place).exists()
  if (
      local
      and pathlib.Path(place).is_file()
      and suffix(pathlib.Path(place)) != ".json"
  ):
    raise DataError(f"{text}: a file has no splits: leave out :{split}")
  if (is_hub and not is_file) or local:
    return Source(text, "", split, place)
  if at and re.fullmatch(_HUB, head):
    hint = f"; hub.revisions = '{head}={path}' names a revision"
  elif at:
    hint = hint or f"; there are {', '.join(KNOWN)}"
    raise DataError(f"{text}: {name!r} is no known set{hint}")
  raise DataError(
      f"{text}: neither a known set, nor a file or directory, nor a hub id"
      f" OWNER/REPOSITORY{hint}"
  )


Part = tuple[Source, float | None]  # with its weight in the mixture, if any
EMPTY: Mapping[str, str] = {}


def parse_all(
    text: str, default_split: str, revisions: Mapping[str, str] = EMPTY
) -> list[Part]:
  """Parses 'SOURCE*WEIGHT,SOURCE,...'.

  Args:
    text: text of the config.
    default_split: see `parse`.
    revisions: revisions of repositories on the hub by their ids.

  Raises:
    DataError: see `parse`; or a weight is not positive.
  """
  parts = []
  for item in filter(None, (x.strip() for x in text.split(","))):
    place, mark, suffix = item.rpartition("*")
    try:
      weight = float(suffix) if mark else None
    except ValueError:  # the asterisk belongs to the source
      mark, weight = "", None
    if weight is not None and not 0 < weight < math.inf:
      raise DataError(f"{item}: a weight must be more than 0")
    source = parse(place if mark else item, default_split)
    revision = revisions.get(source.place, "")
    parts.append((source._replace(revision=revision), weight))
  return parts


def assignments(text: str) -> dict[str, str]:
  """Parses 'math=boxed,code=plain': {'math': 'boxed', 'code': 'plain'}.

  An item without an equals sign has the key ''.

  Raises:
    DataError: a key or a value is empty, or a key occurs twice.
  """
  items = [x.strip() for x in text.split(",")]
  pairs = [x.rpartition("=")[::2] if "=" in x else ("", x) for x in items]
  out = {key.strip(): value.strip() for key, value in pairs}
  complete = all(out.values()) and len(out) == len(items)
  if not complete or any(x.startswith("=") for x in items):
    raise DataError(f"{text!r} is not of the form 'math=plain,code=plain'")
  return out


_FIELD = rf"\s*(?:{'|'.join(COLUMNS)})\s*="
_ITEMS = re.compile(rf",(?={_FIELD})|,\s*$")
# 'a.jsonl: question=q' begins what is of one source.
_OWN = re.compile(rf"(?:^|;)\s*([^;={{}}]+?)\s*:(?={_FIELD})")


def own_columns(text: str) -> dict[str, str]:
  """The parts of data.columns by the names of their sources; '' for the rest.

  Parses 'question=problem; a.jsonl: question=task; b.jsonl: answer=gold'.
  """
  rest, *pairs = _OWN.split(text)
  parts = {"": rest.rstrip("; ")}
  return parts | dict(zip(pairs[::2], pairs[1::2], strict=True))


def columns(
    text: str, source: Source | None = None
) -> dict[str, tuple[str, ...]]:
  r"""The columns of each field; parses 'question=problem,answer=meta.result'.

  What the text says of a source by its name, 'a.jsonl: question=task', comes
  before what it says of all. Without a source, everything is checked.

  A column with braces is a template of several columns, in which commas stay
  and \n ends a line: 'question={context}\n\n{question}'. Several columns of
  choices are separated by |.

  Raises:
    DataError: an item is malformed, or names no field.
  """
  parts = own_columns(text)
  for own in parts.values():
    _columns(own)  # raises
  found = _columns(parts[""])
  for name in source.names if source else ():
    if name in parts:
      found |= _columns(parts[name])
  return COLUMNS | found


def _columns(text: str) -> dict[str, tuple[str, ...]]:
  """The fields that a text maps; see `columns`."""
  mapping: dict[str, tuple[str, ...]] = {}
  for part in filter(None, (x.strip() for x in _ITEMS.split(text))):
    name, _, source = (x.strip() for x in part.partition("="))
    template = "{" in source
    if name not in COLUMNS or not source or (not template and "," in source):
      raise DataError(
          f"{part!r} is no column; write for instance question=problem, with"
          f" {', '.join(COLUMNS)} on the left"
      )
    if template and name == "choices":
      raise DataError(f"{part!r}: choices are columns: choices=a|b|c|d")
    mapping[name] = (source,)
    if template:
      mapping[name] = (source.replace("\\n", "\n"),)
      known_sets.columns_of(source)  # raises
    elif name == "choices":
      mapping[name] = tuple(x.strip() for x in source.split("|"))
  return mapping


def kind_of(text: str, source: Source, usual: str = "math") -> str:
  """What a field, such as the verifier, is of a source that is no known set.

  Args:
    text: 'math', or 'tasks.jsonl=code,math' with names of files.
    source: source of rows.
    usual: value of the sources that the text does not name.

  Raises:
    DataError: the text is malformed.
  """
  given = assignments(text)
  return given.get(next((x for x in source.names if x in given), ""), usual)


def meanings(text: str) -> dict[str, str]:
  """How answers name a choice, by source; parses 'index0,a.jsonl=letter'.

  Raises:
    DataError: the text is malformed, or names no meaning.
  """
  known = known_sets.DETECT, *known_sets.MEANINGS
  given = assignments(text)
  for value in given.values():
    if value not in known:
      raise DataError(f"{value!r} is none of {', '.join(known)}")
  return given


def meaning_of(text: str, source: Source) -> str:
  """How answers of a source name a choice; see `meanings`."""
  meanings(text)  # raises
  return kind_of(text, source, known_sets.DETECT)


def files(source: Source) -> list[tuple[str, pathlib.Path]]:
  """The files of a source as (name to show, path), sorted by name."""
  root = pathlib.Path(source.place)
  known = KNOWN.get(source.name)
  splits = known.splits if known else ()
  pattern = known.splits[source.split] if known else f"*{source.split}*"
  if not root.exists():
    root = _download(source, pattern)
  if root.is_file():
    return [(root.name, root)]
  if saved := saved_datasets.files(source.text, root, source.split, splits):
    return [(str(path.relative_to(root)), path) for path in saved]
  paths = {
      str(path.relative_to(root)): path
      for path in sorted(root.rglob("*"))
      if path.is_file() and suffix(path) in READERS
      if path.name not in saved_datasets.METADATA
  }
  chosen = [x for x in paths if fnmatch.fnmatchcase(x, pattern)]
  if not chosen:  # a copy with another layout
    chosen = [x for x in paths if pathlib.Path(x).name.startswith(source.split)]
  # The only file, if of no other split; or files of --stage=generate.
  parts = all(pathlib.Path(x).name.startswith("part-") for x in paths)
  if not chosen and (len(paths) == 1 or parts):
    chosen = [x for x in paths if not any(y in x for y in splits)]
  if not paths:
    raise DataError(
        f"{source.text}: no file in {root} ends in {', '.join(READERS)}, and it"
        " is no directory of save_to_disk"
    )
  if not chosen:
    raise DataError(
        f"{source.text}: nothing in {root} is the split {source.split!r}, it"
        f" has {', '.join(paths)}; name the file instead"
    )
  return [(name, paths[name]) for name in chosen]


def _download(source: Source, pattern: str) -> pathlib.Path:
  import huggingface_hub  # slow to import, and only needed here

  endings = "", *readers.COMPRESSED
  patterns = [f"{pattern}{x}{end}" for x in READERS for end in endings]
  try:
    return pathlib.Path(
        huggingface_hub.snapshot_download(
            source.place,
            repo_type="dataset",
            revision=source.revision or None,
            allow_patterns=patterns,
        )
    )
  except Exception as e:  # of the network, the hub or the disk
    hint = f"{source.name}@PATH" if source.name else "PATH"
    place = source.place + f" at {source.revision}" * bool(source.revision)
    raise DataError(
        f"{source.text}: the hub does not give {place}"
        f" ({one_line(e)}); download the files yourself and write {hint}"
    ) from None


# --- reading -----------------------------------------------------------------


def read(source: Source) -> Iterator[tuple[str, dict | None]]:
  """Yields ('file:row', row) of all files; the row is None if no object.

  Rows of JSON lines have the numbers of their lines; blank lines are skipped.
  Rows of other files are counted from 1, without a header and blank lines.

  Raises:
    DataError: a file is missing, damaged, or of an unknown format.
  """
  for name, path in files(source):
    # A split of a single file, which `parse` admits of JSON only, is in it.
    alone = not source.name and str(path) == source.place and source.split
    for number, row in readers.read(path, source.split, strict=bool(alone)):
      yield f"{name}:{number}", row


def examples(
    source: Source,
    mapping: dict[str, tuple[str, ...]],
    kind: str,
    meaning: str = known_sets.DETECT,
) -> Iterator[Example | Malformed]:
  """Yields the rows of a source as examples, in order.

  Args:
    source: source of `parse`.
    mapping: columns of `columns`, for sets that are not known.
    kind: verifier of such sets.
    meaning: how answers name a choice; see `meaning_of`.

  Raises:
    DataError: no row has a value of a required field; or it is not clear which
      choices are meant.
  """
  known = KNOWN.get(source.name)
  if kind == "code":
    mapping = code_rows.columns(mapping, COLUMNS)
  needed = () if known else ("question", "answer")
  missing = {name: column(*mapping[name]) for name in needed}
  if kind == verifiers.NONE:
    missing.pop("answer", None)
  known = known or _unknown(source, mapping, kind, meaning)
  system = column(*mapping["system"])
  if "question" in missing and mapping["question"] == COLUMNS["question"]:
    missing["question"] = published_rows.question(missing["question"])
  seen: dict[str, None] = {}  # columns, in order
  origin = source.name or source.place
  for where, row in read(source):
    if row is None:
      why = "no object in UTF-8, or not with the columns of the header"
      yield Malformed(where, why)
      continue
    row = known_sets.Row(row)
    if missing:
      seen |= dict.fromkeys(row)
      missing = {x: cell for x, cell in missing.items() if not _has(cell, row)}
    try:
      asked, told = known.question(row), system(row)
      turns, question, reply = known_sets.chat(asked, told)
      response = known_sets.text(known.response(row)) or reply
      if isinstance(asked, str) and not turns and told:
        # The column `system` of rows without responses may be anything.
        if response or mapping["system"] != COLUMNS["system"]:
          turns = (dict(role="system", content=known_sets.text(told)),)
      if "<image>" in question and (row.get("images") or row.get("image")):
        raise known_sets.Unclear(
            "the question has an image, and only text is read"
        )
      example = Example(
          question=question,
          answer=known_sets.text(known.answer(row)),
          kind=known.kind,
          difficulty=known_sets.level(known.difficulty(row)),
          source=origin,
          where=where,
          response=response,
          rejected=known_sets.text(known.rejected(row)),
          tolerance=known.tolerance(row),
          solution=known_sets.text(known.solution(row)),
          turns=turns,
          columns=row,
          subject=known_sets.label(known.subject(row)) or origin,
          pass_rate=known_sets.measured(known.pass_rate(row), most=1.0),
          response_tokens=known_sets.measured(known.response_tokens(row)),
      )
    except KeyError as e:
      yield Malformed(where, f"no field {e}")
    except DataError:  # of the whole source
      raise
    except known_sets.Unclear as e:
      yield Malformed(where, str(e), e.allowed)
    except (TypeError, ValueError, AttributeError, OverflowError) as e:
      yield Malformed(where, f"a field of another type ({e})")
    else:
      if example.response:  # SFT needs no answer
        missing.pop("answer", None)
      yield example
  if missing and seen:
    name, first = next(iter(missing)), next(iter(seen))
    hint = ", or set data.kind = 'none' if rewards need no reference answers"
    where = ", ".join(mapping[name])
    if "{" in where:
      named = known_sets.columns_of(where)
      absent = [x for x in named if x.partition(".")[0] not in seen] or named
      where = f"the column {', '.join(absent)} of {where!r}"
    has_header = suffix(pathlib.Path(source.place)) in (".csv", ".tsv")
    raise DataError(
        f"{source.text}: no row has a value of {name} in"
        f" {where}; its columns are {', '.join(seen)}: name"
        f" the right one, as in data.columns = '{name}={first}'"
        f"{hint if name == 'answer' else ''}"
        f"{', or write a first line with names of columns' * has_header}"
    )


def examples_of(data, source: Source) -> Iterator[Example | Malformed]:
  """The rows of a source, as the section `data` of the config reads them."""
  return examples(
      source,
      columns(data.columns, source),
      kind_of(data.kind, source),
      meaning_of(data.answer_as, source),
  )


def _has(cell: known_sets.Field, row: dict) -> bool:
  """Whether a row has a value of a field."""
  try:
    return cell(row) != ""
  except (KeyError, TypeError, ValueError):  # a template lacks a column
    return False


def _unknown(
    source: Source, mapping: Mapping, kind: str, meaning: str
) -> Known:
  """The layout of the rows of a set that is not known."""
  cell = column(*mapping["answer"])
  question, names = column(*mapping["question"]), mapping["choices"]
  response = column(*mapping["response"], *mapping["chosen"])
  if mapping["question"] == COLUMNS["question"]:
    question = published_rows.question(question)
    response = published_rows.response(response)
  if names:
    if kind != "choice" and ":" not in kind:
      raise DataError(
          f"{source.text}: data.columns names choices, and its kind is"
          f" {kind!r}: set data.kind = 'choice'"
      )
    answers = mapping["answer"]
    correct = answers[0] if names[1:] and answers[0] in names else ""
    choices = known_sets.Choices(question, cell, names, correct, meaning)
    detect = functools.cache(lambda: _detected(source, choices))
    question, cell = choices._replace(detect=detect).fields()
  elif kind == "choice":
    question, cell = _usual_choices(source, question, cell, meaning)
  listed = known_sets.math_answer(cell)
  readers = {"math": listed, "ordered": listed, "choice": cell}
  if kind == "code":
    readers["code"] = code_rows.answer(mapping["answer"])
    question = code_rows.question(question, mapping["answer"])
  return Known(
      hub=source.place,
      splits={},
      kind=kind,
      question=question,
      answer=readers.get(kind, known_sets.json_text(cell)),
      solution=code_rows.solution if kind == "code" else lambda row: "",
      difficulty=column(*mapping["difficulty"]),
      subject=column(*mapping["subject"]),
      pass_rate=column(*mapping["pass_rate"]),
      response_tokens=column(*mapping["response_tokens"]),
      response=known_sets.with_thought(column(*mapping["thought"]), response),
      rejected=column(*mapping["rejected"]),
  )


def _usual_choices(
    source: Source,
    question: known_sets.Field,
    cell: known_sets.Field,
    meaning: str,
) -> tuple[known_sets.Field, known_sets.Field]:
  """Question and answer with the choices in a column that no field names.

  A question that shows all choices stays as it is.
  """
  found = []
  for name in CHOICES:
    choices = known_sets.Choices(question, cell, (name,), "", meaning)
    detect = functools.cache(functools.partial(_detected, source, choices))
    choices = choices._replace(detect=detect)
    found.append((choices, *choices.fields()))

  def read_question(row):
    for choices, with_choices, _ in found:
      if choices.offers(row) and not choices.shown(row):
        return with_choices(row)
    return question(row)

  def read_answer(row):
    letters = (letter for choices, _, letter in found if choices.offers(row))
    return next(letters, cell)(row)

  return read_question, read_answer


def _detected(source: Source, choices: known_sets.Choices) -> str:
  """How the numbers among the answers of a source name a choice.

  Raises:
    DataError: several meanings fit all answers, or none does.
  """
  first, fails = "", {}
  differ: set[tuple[str, str]] = set()  # meanings with different choices
  for where, row in read(source):
    try:
      given, texts, named = choices.named(known_sets.Row(row or {}))
    except (KeyError, TypeError, ValueError, AttributeError):
      continue  # malformed
    if not (named and known_sets.is_number(given, named)):
      continue
    shown = f"{where}, which has {given} of {len(texts)} choices"
    first = first or shown
    pairs = itertools.combinations(known_sets.NUMBERS, 2)
    differ |= {(x, y) for x, y in pairs if named.get(x) != named.get(y)}
    fails = {x: shown for x in known_sets.NUMBERS if x not in named} | fails
  fits = [x for x in known_sets.NUMBERS if x not in fails]
  if fits and differ.isdisjoint(itertools.combinations(fits, 2)):
    return fits[0]
  remedy = (
      " (index0 counts the choices from 0, index1 from 1, text is the text of"
      " one)"
  )
  if fits:
    raise DataError(
        f"{source.text}: the answers are numbers, and it is not clear which"
        f" choices these name, as in {first}: set data.answer_as to"
        f" {' or '.join(fits)}{remedy}"
    )
  against = ", or ".join(
      f"{name} without {where}" for name, where in fails.items()
  )
  raise DataError(
      f"{source.text}: the answers are numbers, and no way to read them fits"
      f" all rows: correct the rows, or set data.answer_as to {against}{remedy}"
  )
