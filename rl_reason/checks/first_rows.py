"""Reads the first rows of data files: until one of each source can be used.

A file without any such row, for example with other columns, is refused before a
run starts. What is wrong with single rows is the report of --stage=prepare.
"""

import itertools
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rl_reason import verifiers
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_facts
from rl_reason.data import datasets, readers, row_builder, screening
from rl_reason.data.datasets import DataError, Example, Malformed
from rl_reason.data.preparation_report import Tally
from rl_reason.data.screening import Fault
from rl_reason.tasks import reward_functions, reward_terms
from rl_reason.verifiers import workers

SECONDS = 1.0  # of reading, for a source whose first rows cannot be used
MAX_LIST = 1 << 26  # bytes of JSON lists, which are read as a whole
BATCH = 16  # rows whose reference answers are verified at a time


class FirstRows:
  """The first rows of the sources of a run.

  Workers verify the first reference answers while a caller loads a tokenizer.

  Args:
    c: the config.
    uses: 'evaluate' and 'train', or one of them.
  """

  def __init__(self, c, uses: tuple[str, ...]):
    self._c = c
    verifiers.OWN.update(datasets.assignments(c.data.kind).values())
    self._pool = workers.Pool("rl_reason.verifiers:ask", 1, c.reward.seconds)
    self._sources = [
        _Source(c, use, source, self._pool)
        for use in uses
        for source, _ in config_facts.sources(c, use)
        if _is_quick(pathlib.Path(source.place))
    ]

  def faults(self, tok: Any) -> Iterator[str]:
    """A line for each source without a row that can be used.

    Args:
      tok: the tokenizer; None if it is not known: prompts are not rendered.
    """
    builder, c = None, self._c
    if tok is not None:
      try:
        builder = row_builder.RowBuilder(c.data, c.rollout, tok)
      except ConfigError as e:
        yield from e.lines
    for source in self._sources:
      yield from source.faults(builder)
    rows = [x.columns for x in self._sources if x.use == "train" and x.columns]
    for term in reward_terms.terms(c.reward.functions) if rows else ():
      if reward_terms.is_model(term.name):
        continue
      found = reward_terms.find(term.name)
      lacking = reward_functions.missing_columns(found, rows[0])
      if found.form == "completions" and lacking:
        yield f"reward.functions = {c.reward.functions!r}: {lacking}"

  def close(self) -> None:
    """Ends the workers."""
    self._pool.close()


def _is_quick(place: pathlib.Path) -> bool:
  """Whether the first rows of a source are here, and need no whole file."""
  if not place.exists():
    return False  # the hub is asked later
  files = place.rglob("*") if place.is_dir() else [place]
  lists = (x for x in files if readers.suffix(x) == ".json" and x.is_file())
  return sum(x.stat().st_size for x in lists) <= MAX_LIST


class _Source:
  """A source of which at least one row must be usable."""

  def __init__(self, c, use: str, source: datasets.Source, pool):
    self.use = use
    self.columns: Mapping[str, Any] = {}
    self._screen = screening.Screen(c.data, pool)
    self._tally = Tally(source.text, use, "")
    self._rows = datasets.examples_of(c.data, source)
    self._problem = ""
    self._begun = self._next(1)

  def _next(self, count: int) -> list[Example | Malformed]:
    try:
      rows = list(itertools.islice(self._rows, count))
    except DataError as e:
      self._problem, rows = f"data.{self.use}: {e}", []
    self._screen.references.submit([x for x in rows if isinstance(x, Example)])
    return rows

  def faults(self, builder: row_builder.RowBuilder | None) -> Iterator[str]:
    end = time.monotonic() + SECONDS
    rows = self._begun
    while rows:
      for row in rows:
        fault = self._fault(row, builder)
        if fault is None:
          return
        self._tally.drop(row.where, fault)
      if time.monotonic() > end:
        return  # a later row may be usable: all are read when they are prepared
      rows = self._next(BATCH)
    yield self._problem or self._tally.none_left()

  def _fault(self, row: Example | Malformed, builder) -> Fault | None:
    if isinstance(row, Malformed):
      return Fault(screening.MALFORMED, row.why)
    self.columns = self.columns or row.columns
    fault = self._screen.fault(row) or self._screen.references.fault(row)
    if fault or builder is None:
      return fault
    built = builder.build(row, self.use)
    return built if isinstance(built, Fault) else None
