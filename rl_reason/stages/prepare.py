"""Preparation of data: reads, screens, renders and writes rows.

  WORKDIR/data/train-0.array_record     training rows, one file for each source
  WORKDIR/data/evaluate-0.array_record  evaluation rows
  WORKDIR/data/validation-0.array_record  rows that choose, if there are any
  WORKDIR/data/quarantine.jsonl         rows that were dropped, with the reason
  WORKDIR/data/data.json, data.md       what was kept and dropped, and why

The directory gets its name only when everything in it is written.
"""

import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Iterator

import jax
from array_record.python import array_record_module
from jax.experimental import multihost_utils

import rl_reason
from rl_reason import tasks, verifiers
from rl_reason.base import (
    config as config_lib,
    feature,
    functions,
    json_files,
)
from rl_reason.base.errors import Stopped
from rl_reason.checks import config_facts
from rl_reason.checks.model_directory import (
    of_rollout,
    resolve,
    tokenizer_path,
)
from rl_reason.data import (
    datasets,
    pipelines,
    preparation_report as tally_lib,
    published,
    screening,
    solved_tasks,
    templates,
    tokenizer,
)
from rl_reason.data.datasets import Example
from rl_reason.data.preparation_report import Tally
from rl_reason.data.row_builder import RowBuilder
from rl_reason.data.screening import Fault
from rl_reason.verifiers import workers

FORMAT = 6  # of the files; a preparation of another format is made anew
TRIED = 32  # programs of a source that SFT does not imitate
AHEAD = 64  # rows whose reference answers are verified at a time


# --- rows --------------------------------------------------------------------


@contextlib.contextmanager
def _writer(path: pathlib.Path):
  # Groups of one record: a row is read without its neighbours.
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  try:
    # Dates, decimals and bytes of Parquet are text for rewards.
    yield lambda row: writer.write(json.dumps(row, default=str).encode())
  finally:
    writer.close()


class _Preparation:
  """Writes the sources of a run, evaluation sets first."""

  def __init__(
      self, config, out: pathlib.Path, tok, stop, pool, quarantine, solved
  ):
    self._data, self._out, self._stop = config.data, out, stop
    self._validates, self._quarantine = config.evaluate.validation, quarantine
    self._imitates = _imitates(config)
    self._builder = RowBuilder(config.data, config.rollout, tok, solved)
    self._screen = screening.Screen(config.data, pool)
    self._references = self._screen.references
    # Place of a row -> whether its response, or its program, is correct.
    self._responses: dict[str, concurrent.futures.Future] = {}

  def _drop(self, tally: Tally, where: str, fault: Fault) -> None:
    tally.drop(where, fault)
    fields = dict(file=tally.file, source=tally.source, where=where)
    fields |= dict(reason=fault.reason, text=fault.text)
    self._quarantine.write(json.dumps(fields) + "\n")

  def _rows(self, tally: Tally, source: datasets.Source) -> Iterator[dict]:
    """Yields the rows of a source that pass, and counts the others."""
    examples = datasets.examples_of(self._data, source)
    while batch := list(itertools.islice(examples, AHEAD)):
      # Workers verify the reference answers, and the responses that SFT would
      # imitate, of the whole batch meanwhile.
      batch = [
          self._builder.answered(x) if isinstance(x, Example) else x
          for x in batch
      ]
      found = [x for x in batch if isinstance(x, Example)]
      self._references.submit(found)
      programs = [x for x in found if self._program(x)]
      most = self._most_programs(tally.use)
      if most is not None:
        programs = programs[: max(most - tally.programs - tally.failed, 0)]
      texts = {x.where: (x, self._program(x)) for x in programs}
      if tally.use == "train":
        texts |= {x.where: (x, x.response) for x in found if self._answers(x)}
      self._responses = {
          where: self._references.judge(*pair) for where, pair in texts.items()
      }
      for item in batch:
        if self._stop.is_set():
          raise Stopped
        tally.read += 1
        if isinstance(item, datasets.Malformed):
          reason = ": ".join(filter(None, (screening.MALFORMED, item.allowed)))
          self._drop(tally, item.where, Fault(reason, item.why))
          continue
        fault = self._fault(tally, item)
        if not fault and tally.use == "train":
          self._screen.add_answer(item)  # whatever becomes of its response
        row = fault or self._built(tally, item)
        if isinstance(row, Fault):
          self._drop(tally, item.where, row)
        else:
          yield row

  def _fault(self, tally: Tally, example: Example) -> Fault | None:
    """The fault of an example, if any; counts its reference answer."""
    fault = None
    if tally.use == "train":
      fault = self._screen.training_fault(example)
    else:
      self._screen.add_evaluation(example)
    fault = fault or self._screen.fault(example)
    if fault or not self._references.checks(example):
      return fault
    tally.references += 1
    fault = self._references.fault(example)
    tally.verified += not fault
    if not fault and self._references.is_bare_list(example):
      tally.lists += 1
      tally.listed = tally.listed or example.answer
    return fault

  def _built(self, tally: Tally, example: Example) -> dict | Fault:
    """The row of an example, without a response that the verifier rejects."""
    pending = self._responses.get(example.where)
    wrong = None if pending is None else self._references.rejects(pending)
    row = self._builder.build(example, tally.use, incorrect=bool(wrong))
    if self._program(example) and not isinstance(row, Fault):
      tally.programs += wrong is not None
      tally.failed += pending is not None and wrong is None
      tally.unchecked += pending is None
      if wrong:
        tally.failing.append(example.where)
    return row

  def _answers(self, example: Example) -> bool:
    """Whether SFT would imitate a response that has a verifier and is no code.

    Of a preference pair it is the preferred one.
    """
    verified = example.answer and example.kind not in ("code", verifiers.NONE)
    return bool(verified and example.response)

  def _program(self, example: Example) -> str:
    """The program of a row of code, or ''.

    Those of an evaluation set show whether the verifier works.
    """
    if example.kind != "code" or not example.answer:
      return ""
    return example.response or example.solution

  def _most_programs(self, use: str) -> int | None:
    """The number of programs of a source that run, since they take long."""
    if self._data.programs:
      return self._data.programs
    return None if use == "train" and self._imitates else TRIED

  def end_evaluation(self, tallies: list[Tally], parts: list) -> None:
    """Compares what is written from now on with the evaluation sets."""
    shared = self._screen.end_evaluation()
    for tally, (source, _) in zip(tallies, parts, strict=True):
      tally.shared = shared.get(source.name or source.place, {})

  def write(self, tally: Tally, source: datasets.Source) -> None:
    """Writes the rows of a source; `finish` has the last word."""
    with _writer(self._out / f"{tally.file}.all") as write:
      for number, row in enumerate(self._rows(tally, source), 1):
        write(row)
        if tally.use == "train":
          self._screen.add_training(row)
          if number == self._data.limit:
            break

  def finish(self, tally: Tally) -> list[Tally]:
    """Drops rows that a later row, of any source, contradicts.

    Returns:
      the tally of the training rows that are for validation; [] of none.
    """
    file = tally.file.replace("train", tasks.VALIDATION)
    chosen = Tally(tally.source, tasks.VALIDATION, file)
    path = self._out / f"{tally.file}.all"
    reader = array_record_module.ArrayRecordReader(str(path))
    with contextlib.ExitStack() as stack:
      write = stack.enter_context(_writer(self._out / tally.file))
      validate, count = None, reader.num_records()
      trains = tally.use == "train"
      if trains and self._validates and count >= tasks.LEAST_TO_SHARE:
        validate = stack.enter_context(_writer(self._out / file))
      for index in range(count):
        row = json.loads(reader.read(index, index + 1)[0])
        name = screening.prompt_key(row["turns"], row["question"])
        if trains and name in self._screen.contradicted:
          fault = Fault(screening.CONTRADICTION, row["question"])
          self._drop(tally, row["where"], fault)
        elif validate and tasks.for_validation(row["prompt"]):
          validate(row)
          chosen.keep(row)
        else:
          write(row)
          tally.keep(row)
    reader.close()
    path.unlink()
    return [chosen] if chosen.kept else []


# --- the stage ---------------------------------------------------------------


def _imitates(config) -> bool:
  """Whether the run imitates responses of rows, in SFT or by a feature."""
  own = config.sft.steps and not (config.sft.reuse or config.sft.samples)
  return bool(own) or bool(feature.set_fields(config, "imitates"))


def _identity(
    config, tok_path: str, parts_of: dict[str, list], solved: str
) -> str:
  """A hash of everything that a preparation depends on.

  `parts_of` has the sources with their weights by use.
  """
  # reward.seconds decides which reference answers take too long to verify.
  names = "tokenizer rollout.max_prompt rollout.max_tokens reward.seconds"
  sources = [source for used in parts_of.values() for source, _ in used]
  paths = [path for source in sources for _, path in datasets.files(source)]
  tok = pathlib.Path(tok_path)
  paths += sorted(x for x in tok.glob("*") if tok.is_dir() and x.is_file())
  # Functions of the user decide prompts, and which reference answers are read.
  for text in (config.data.template, config.data.kind):
    paths += functions.files(datasets.assignments(text).values())
  parts = [rl_reason.__version__, f"format {FORMAT}"]
  if revision := config_facts.revision(config, tok_path):
    parts.append(f"revision {revision}")
  parts += ["validation"] * bool(config.evaluate.validation)
  parts += [solved] * bool(solved)
  trained = [config_facts.kind_of_rows(config, x) for x, _ in parts_of["train"]]
  # SFT decides how many programs run, unless data.programs says so.
  if "code" in trained and not config.data.programs:
    parts += ["imitated"] * _imitates(config)
  parts += [
      f"{name}={value}"
      for name, value in sorted(config_lib.flat(config).items())
      if name.startswith("data.") or name in names.split()
  ]
  for path in paths:
    stat = path.stat()
    parts.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write(
    config, tok_path, parts, identity, workdir, display, stop, solved
) -> None:
  """Writes everything into a new directory, then renames it."""
  out, old = workdir / "data.new", workdir / "data.old"
  for path in (out, old):
    shutil.rmtree(path, ignore_errors=True)
  out.mkdir(parents=True)
  args = templates.arguments(config.data.template_args)
  tok = tokenizer.load(
      tok_path, "", config_facts.revision(config, tok_path), args
  )
  of_rollout(tok, config.rollout)
  r, tallies = config.reward, []
  with (
      workers.Pool("rl_reason.verifiers:ask", r.workers, r.seconds) as pool,
      (out / pipelines.QUARANTINE).open("w") as quarantine,
  ):
    work = _Preparation(config, out, tok, stop, pool, quarantine, solved)
    # Evaluation sets first: training rows are compared with them.
    for use in ("evaluate", "train"):
      for index, (source, _) in enumerate(parts[use]):
        display.doing(f"preparing {source.text}")
        file = f"{use}-{index}.array_record"
        tallies.append(Tally(source.text, use, file))
        work.write(tallies[-1], source)
      if use == "evaluate":
        work.end_evaluation(tallies, parts[use])
    for_validation = [chosen for x in tallies for chosen in work.finish(x)]
  for tally in tallies:
    # What was dropped tells a wrong format from damage: both errors show it.
    if tally.kept and tally.corrupt > config.data.max_corrupt * tally.read:
      raise datasets.DataError(
          f"data.{tally.use}: {tally.corrupt:,} of {tally.read:,} rows of"
          f" {tally.source} are corrupt, more than data.max_corrupt ="
          f" {config.data.max_corrupt:g} ({tally.reasons}); correct it,"
          " name its columns in data.columns, or raise data.max_corrupt"
      )
    # An empty source would shift the shares of the mixture unnoticed.
    if not tally.kept:
      raise datasets.DataError(tally.none_left())
  weights = [weight for _, weight in parts["train"]]
  if any(weights):
    weights = [1.0 if x is None else x for x in weights]
  else:  # every row is drawn equally often
    weights = [tally.kept for tally in tallies if tally.use == "train"]
  report = dict(
      identity=identity,
      weights=weights,
      sources=[vars(tally) for tally in tallies + for_validation],
  )
  (out / "data.md").write_text(tally_lib.markdown(tallies + for_validation))
  json_files.write_json(out / "data.json", report)
  place = workdir / "data"
  if place.exists():
    place.rename(old)
  out.rename(place)
  shutil.rmtree(old, ignore_errors=True)


def _published(config, source: datasets.Source) -> bool:
  """Whether the template of a source is the published one, if there is one."""
  kind = config_facts.kind_of_rows(config, source)
  return templates.choose(config.data.template, kind).published


def _about_types(config, tallies: list[dict]) -> Iterator[str]:
  """Warns that what compares types of problems finds too few of them."""
  if not (field := config_facts.type_field(config)):
    return
  types = config.rollout.types
  name = dict(difficulty="difficulties").get(types, f"{types}s")
  counts: collections.Counter = collections.Counter()
  for tally in (x for x in tallies if x["use"] == "train"):
    counts.update(tally[name])
  if types == "pass_rate":
    if unknown := counts["unknown"]:
      yield (
          f"warning: {unknown:,} of {counts.total():,} training rows have no"
          " measured pass rate: rollout.types = 'pass_rate' expects the mean of"
          " all prompts of them until they are sampled"
      )
  elif counts and not config_facts.differ(config, counts):
    yield (
        f"warning: {field} = {config_lib.at(config, field)!r}: goes by the"
        f" {types} (type) of problems, and all rows of data.train have the"
        " same one; data.columns names its column, or rollout.types ="
        " 'pass_rate' takes the pass rate"
    )


def again(config, workdir: pathlib.Path, display) -> pathlib.Path:
  """The directory that `run` returned, whether or not its sources exist."""
  verifiers.OWN.update(datasets.assignments(config.data.kind).values())
  display.say(f"data: the rows that the run prepared, {workdir / 'data'}")
  return workdir / "data"


def run(
    config, workdir: pathlib.Path, display, stop, tok_path: str = ""
) -> pathlib.Path:
  """Prepares the sources of `data.train` and `data.evaluate`.

  A preparation of the same config and the same files is reused.

  Args:
    config: checked.
    workdir: of the run.
    display: for messages.
    stop: set by SIGTERM.
    tok_path: of the tokenizer; '': as the config says.

  Returns:
    the directory, for `pipelines.prepared`.

  Raises:
    DataError: a source cannot be read, no row of it is left, too many are
      corrupt, a held-out prompt is too long, or a training row is an evaluation
      row; for the last two the config may say what to do.
    Stopped: by SIGTERM; no directory is left that would be taken for complete.
  """
  place = workdir / "data"
  verifiers.OWN.update(datasets.assignments(config.data.kind).values())
  if jax.process_index() == 0:
    d = config.data
    revisions = config_facts.revisions(config)
    parts = dict(
        evaluate=datasets.parse_all(d.evaluate, "test", revisions),
        train=datasets.parse_all(d.train, "train", revisions),
    )
    if not tok_path:
      source = resolve(config)
      tok_path = tokenizer_path(config, source.path if source else None)
    sources = [source for source, _ in parts["evaluate"] + parts["train"]]
    asked_verbatim = [x for x in sources if _published(config, x)]
    solved = solved_tasks.find(asked_verbatim)
    identity = _identity(config, tok_path, parts, "".join(solved.values()))
    report = place / "data.json"
    done = report.exists() and json.loads(report.read_text())
    if done and done["identity"] == identity:
      display.say(f"data are prepared already: {place}")
    else:
      shared = workdir, display, stop, solved
      _write(config, tok_path, parts, identity, *shared)
    tallies = json.loads(report.read_text())["sources"]
    for line in tally_lib.lines(tallies, _imitates(config)):
      display.say(line)
    if config.evaluate.long_prompts == "error":
      tally_lib.check_held_out(tallies, config.rollout.max_prompt)
    for asked in dict.fromkeys(asked_verbatim):
      if asked.name not in published.PUBLISHED:
        kind = config_facts.kind_of_rows(config, asked)
        display.say(
            f"{asked.text}: no published prompt is known here, so its prompts"
            f" have the first style of the kind {kind}"
        )
      if line := solved_tasks.lacking(asked, solved):
        display.say(line)
    for line in _about_types(config, tallies):
      display.say(line)
    display.say(
        f"data: {place / 'data.md'} counts the rows that are left out,"
        f" {pipelines.QUARANTINE} in its directory has them"
    )
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("prepare")
  return place
