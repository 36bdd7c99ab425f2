"""The sets of perturbed copies, and the differences from their originals."""

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.data import held_out
from rl_reason.data.pipelines import RowSource
from rl_reason.data.row_builder import RowBuilder
from rl_reason.data.screening import Fault
from rl_reason.features.perturbed_questions import perturbations
from rl_reason.report import paired


class PerturbedSets(feature.Evaluator):
  """The copies of a run, and what an evaluation of them has found.

  Args:
    c: the config.
    names: of the perturbations.
    stage: what the evaluation has.
  """

  def __init__(self, c, names: Sequence[str], stage: feature.Evaluating):
    self._display = stage.display
    source, count = stage.row_source, c.evaluate.prompts
    self._originals = held_out.evaluation_sets(source, count)
    self._copies = copies(
        *(c, names, self._originals, source, stage.tok, stage.display.say)
    )

  def sets(self) -> dict[str, list[tuple[tasks.Row, tasks.Row]]]:
    """'SET~NAME' -> copies, each with its original."""
    out = {}
    for name, rows in self._copies.items():
      originals = self._originals[name.rpartition("~")[0]]
      out[name] = [(row, originals[n]) for n, row in rows.items()]
    return out

  def metrics(
      self, found: Any, sets: Any, earlier: Sequence[Any]
  ) -> dict[str, float]:
    """Metrics of copies minus originals, paired by prompt; shows them."""
    return robustness(self._copies, found.lines, self._display)


def copies(
    c,
    names: Iterable[str],
    originals: Mapping[str, Sequence[tasks.Row]],
    row_source: RowSource,
    tok: Any,
    say: Callable[[str], None],
) -> dict[str, dict[int, tasks.Row]]:
  """The copies by their names: 'SET~NAME' -> index of a row -> its copy.

  Says which rows have none, and why. `originals` are the evaluation sets.
  """
  sets = dict(originals)
  # Copies are made by the task of the run, which knows its own rows alone.
  for name in [label for label, *_ in row_source.others if label in sets]:
    say(f"evaluate.perturb: no copies of {name}, a set of another task")
    del sets[name]
  builder, examples = RowBuilder(c.data, c.rollout, tok), {}
  if row_source.files is not None:
    examples = held_out.examples(row_source, c.evaluate.prompts)
  build = functools.partial(builder.build, use="evaluate")
  made = perturbations.copies(names, sets, row_source.task, examples, build)
  out = {}
  for name, of_set in made.items():
    out[name] = {n: x for n, x in of_set.items() if isinstance(x, tasks.Row)}
    lost = [x for x in of_set.values() if isinstance(x, Fault)]
    for reason, count in collections.Counter(x.reason for x in lost).items():
      say(
          f"warning: {name}: {count:,} of {len(of_set):,} prompts have no copy"
          f" and are left out of the comparison: {reason}"
      )
  return {name: x for name, x in out.items() if x}


def robustness(
    made: Mapping[str, Mapping[int, tasks.Row]],
    lines: Iterable[dict[str, Any]],
    display: Any,
) -> dict[str, float]:
  """Metrics of copies minus originals, paired by prompt; shows them.

  Args:
    made: of `copies`.
    lines: of `accuracy.lines_of_prompts`, of all sets.
    display: the screen.
  """
  by_set: dict[str, list[dict[str, Any]]] = {}
  for line in lines:
    by_set.setdefault(line["set"], []).append(line)
  found, out = {}, {}
  for name, rows in made.items():
    of_set, _, kind = name.rpartition("~")
    originals = [by_set[of_set][n] for n in rows]
    own = [line | dict(set=of_set) for line in by_set[name]]
    pairs = paired.values_of(own), paired.values_of(originals)
    found[name] = paired.differences(*pairs)
    for x in found[name]:
      key = f"val-aux/{of_set}/{kind}_minus_original/{x.measure}/{x.name}"
      out |= {key: x.new - x.old, f"{key}/ci95": x.half}
  if found:
    display.table(
        "robustness: perturbed copies, paired, with 95% intervals",
        ["", "score", "prompts", "originals", "copies", "difference"],
        [[name, *cells] for name, _, *cells in paired.table(found)],
    )
  return out
