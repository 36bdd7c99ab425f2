"""The report of --stage=prepare: rows that were kept and dropped."""

import collections
import dataclasses

from rl_reason import tasks
from rl_reason.data import screening
from rl_reason.data.datasets import DataError
from rl_reason.data.screening import Fault

SAMPLES = 3  # examples of dropped rows for each reason
SHOWN = 600  # characters of a prompt on the screen
SHARED = 120  # characters of words that questions share


def _counter():
  return dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass
class Tally:
  """Counts of the rows of one source, with examples."""

  source: str  # text of the config
  use: str  # 'train', 'evaluate' or 'validation'
  file: str  # file with the rows that are kept
  read: int = 0
  kept: int = 0
  references: int = 0  # answers that were checked
  verified: int = 0  # ... and can be verified
  lists: int = 0  # ... and are lists whose order does not matter
  listed: str = ""  # the first of these
  programs: int = 0  # of rows, that were run against the tests of their rows
  failed: int = 0  # ... whose verification failed
  unchecked: int = 0  # ... and that were not run
  failing: list[str] = dataclasses.field(default_factory=list)  # rejected ones
  first: str = ""  # prompt that is written
  dropped: dict[str, int] = _counter()  # reason -> rows
  samples: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  longest: dict[str, int] = _counter()  # reason -> tokens of the longest text
  # Words that questions share and that are not compared -> questions.
  shared: dict[str, int] = _counter()
  undemonstrated: dict[str, int] = _counter()  # reason -> rows kept without one
  notes: dict[str, int] = _counter()  # what is said of rows that are kept
  lengths: dict[int, int] = _counter()  # tokens of a prompt, at most -> rows
  difficulties: dict[int, int] = _counter()  # difficulty -> rows
  subjects: dict[str, int] = _counter()  # subject -> rows
  pass_rates: dict[str, int] = _counter()  # in tenths, or "unknown" -> rows

  def drop(self, where: str, fault: Fault) -> None:
    """Counts a row that is left out."""
    reason, text, tokens = fault
    self.dropped[reason] += 1
    samples = self.samples.setdefault(reason, [])
    if len(samples) < SAMPLES:
      samples.append(f"{where}: {' '.join(text.split())[:120]}")
    if tokens:
      self.longest[reason] = max(self.longest.get(reason, 0), tokens)

  @property
  def corrupt(self) -> int:
    """Number of rows that were dropped because they are corrupt."""
    return sum(
        count
        for reason, count in self.dropped.items()
        if reason.startswith(screening.CORRUPT)
    )

  @property
  def reasons(self) -> str:
    """Why rows were dropped, with an example of each reason."""
    return "; ".join(
        f"{n} rows: {reason}, as in {self.samples[reason][0]}"
        for reason, n in self.dropped.items()
    )

  def none_left(self) -> str:
    """The error of a source of which no row is kept."""
    remedy = shared_words(self.dropped, self.read)
    return (
        f"data.{self.use}: no row of {self.source} is left"
        f" ({self.reasons or 'it is empty'});"
        f" {remedy or 'correct it or leave it out'}"
    )

  def keep(self, row: dict) -> None:
    """Counts a row that is written."""
    self.kept += 1
    self.first = self.first or row["prompt"]
    if row["no_response"]:
      self.undemonstrated[row["no_response"]] += 1
    self.notes.update(row["notes"])
    self.lengths[1 << (row["prompt_tokens"] - 1).bit_length()] += 1
    self.difficulties[row["difficulty"]] += 1
    self.subjects[row["subject"]] += 1
    rate = row["pass_rate"]
    self.pass_rates["unknown" if rate is None else f"{rate:.1f}"] += 1


def long_prompts(tally: dict) -> tuple[int, int]:
  """The number of rows whose prompt is too long, and its most tokens.

  `tally` is one of data.json.
  """
  found = [x for x in tally["dropped"] if x.startswith(screening.LONG)]
  tokens = [tally["longest"].get(x, 0) for x in found]
  return sum(tally["dropped"][x] for x in found), max(tokens, default=0)


def check_held_out(sources: list[dict], max_prompt: int) -> None:
  """Refuses held-out sets that lack their longest prompts.

  Raises:
    DataError: a set has such prompts; `sources` are tallies of data.json.
  """
  for tally in sources:
    count, tokens = long_prompts(tally)
    if tally["use"] == "evaluate" and count:
      raise DataError(
          f"data.evaluate: {count:,} of {tally['read']:,} prompts of"
          f" {tally['source']} are longer than rollout.max_prompt ="
          f" {max_prompt}, and a score without them is no score of the set:"
          f" raise rollout.max_prompt to {tokens}, or set"
          " evaluate.long_prompts = 'drop', which evaluates the others as"
          f" {without('SET', count)}"
      )


def shared_words(dropped: dict[str, int], read: int) -> str:
  """The remedy if most rows share words with an evaluation set; '' if not."""
  reasons = [x for x in dropped if x.startswith(screening.SHARED_WORDS)]
  if 2 * sum(dropped[x] for x in reasons) <= read:
    return ""
  return (
      "if all questions contain the same instruction, which few questions of"
      " the evaluation set have, move the instruction into data.template or"
      " data.system, whose words are not compared, or set data.ngram above its"
      " number of words"
  )


def without(name: str, count: int) -> str:
  """The name of an evaluation set that lacks `count` long prompts."""
  return f"{name}_without_{count}_long" if count else name


def lines(sources: list[dict], learns: bool) -> list[str]:
  """The report for the screen, with a line for each reason.

  `sources` are tallies of data.json; `learns`: SFT reads demonstrations.
  """
  out = []
  for t in sources:
    rows = f"of {t['read']:,} rows of {t['source']}"
    if t["use"] == tasks.VALIDATION:
      out.append(f"{t['kept']:,} rows of {t['source']} are for validation only")
      continue
    out.append(f"{t['kept']:,} {rows} kept")
    for reason, count in sorted(t["dropped"].items(), key=lambda x: -x[1]):
      example = f"as in {t['samples'][reason][0]}"
      if longest := t["longest"].get(reason):
        example = f"the longest has {longest:,} tokens"
      out.append(f"{count:,} {rows} dropped: {reason} ({example})")
    if shared := t.get("shared"):
      words, count = next(iter(shared.items()))
      more = f" and {len(shared) - 1} other texts" * (len(shared) > 1)
      out.append(
          f"{count:,} {rows} share {' '.join(words.split())[:SHARED]!r}{more},"
          " which data.ngram does not compare: words of many questions of an"
          " evaluation set, such as an instruction, are no contamination"
      )
    if remedy := shared_words(t["dropped"], t["read"]):
      out.append(f"warning: most rows of {t['source']} are dropped: {remedy}")
    if count := t.get("lists", 0):
      out.append(
          f"{count:,} reference answers of {t['source']} are lists, as in"
          f" {t['listed'][:80]!r}, whose order does not matter: data.kind ="
          " 'ordered' compares the order, and an answer in brackets has one"
      )
    if t["use"] == "train" and (prompt := t.get("first")):
      shown = prompt[:SHOWN] + "..." * (len(prompt) > SHOWN)
      out.append(f"the first prompt, as the model reads it: {shown!r}")
    if t["use"] != "train" and (failing := t.get("failing")):
      out.append(
          f"warning: the verifier rejects {len(failing)} of the first"
          f" {t['programs']} solutions of {t['source']}, as in {failing[0]}:"
          " correct these rows or leave them out, or name another verifier in"
          " data.kind"
      )
    if count := t.get("failed", 0):
      out.append(
          f"warning: the verifier failed on {count:,} programs of"
          f" {t['source']}, which therefore count as correct: it has no sandbox"
          " on this machine, or they take longer than reward.seconds"
      )
    if t["use"] == "train" and learns and (count := t.get("unchecked", 0)):
      out.append(
          f"{count:,} programs of {t['source']} were not run against their"
          " tests, and SFT imitates them: data.programs = 0 runs all"
      )
    for note, count in t.get("notes", {}).items():
      if learns or note != screening.UNCLOSED:
        out.append(f"warning: {count:,} {rows} of {t['source']}: {note}")
    for reason, count in t["undemonstrated"].items():
      # A verifier that does not read the format of responses fails RL as well.
      rejected = reason in (screening.INCORRECT, screening.FAILING)
      if t["use"] == "train" and (learns or rejected):
        mark = "warning: " * rejected
        out.append(f"{mark}{count:,} {rows} have no demonstration: {reason}")
  return out


def markdown(tallies: list[Tally]) -> str:
  """The report in Markdown."""
  lines = ["# Prepared data", ""]
  lines += ["| source | use | rows read | rows kept | verified references |"]
  lines += ["|---|---|---|---|---|"]
  for t in tallies:
    share = f"{t.verified} of {t.references}" if t.references else "-"
    lines += [f"| {t.source} | {t.use} | {t.read} | {t.kept} | {share} |"]
  for t in tallies:
    lines += ["", f"## {t.source} ({t.use})", ""]
    if t.first:
      prompt = t.first.replace("\n", "\n    ")
      lines += [f"The first prompt, as the model reads it:\n\n    {prompt}", ""]
    for title, counts in (
        ("Rows by tokens of the prompt, up to", t.lengths),
        ("Rows by difficulty", t.difficulties),
        ("Rows by subject", t.subjects),
        ("Rows by measured pass rate", t.pass_rates),
    ):
      table = ", ".join(f"{k}: {n}" for k, n in sorted(counts.items()))
      lines += [f"{title}: {table or 'none'}", ""]
    for reason, count in sorted(t.dropped.items(), key=lambda x: -x[1]):
      lines += [f"- Dropped {count} rows: {reason}."]
      lines += [f"    - `{x.replace('`', chr(39))}`" for x in t.samples[reason]]
    lines += [
        f"- The verifier rejects the solution of {place}."
        for place in t.failing
    ]
    lines += [
        f"- Not compared with training rows, in {n} questions: `{words}`."
        for words, n in t.shared.items()
    ]
    lines += [f"- {count} rows: {note}." for note, count in t.notes.items()]
    for reason, count in t.undemonstrated.items():
      lines += [f"- No demonstration in {count} rows that are kept: {reason}."]
  return "\n".join(lines) + "\n"
