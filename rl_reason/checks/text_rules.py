"""Fields with a text that has a form of its own, or names code or files.

A text is read on its own, so that its fault hides no other one.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rl_reason import tasks
from rl_reason.base import feature, functions, own_code
from rl_reason.base.config import at
from rl_reason.base.errors import RunError
from rl_reason.checks import config_facts, own_functions
from rl_reason.checks.rules import Faults, line
from rl_reason.data import datasets, templates
from rl_reason.monitoring import loggers
from rl_reason.tasks import evaluation_tasks, files as task_files, reward_terms

STOP_BYTES = 256  # of all stop strings: the tables of the decode loop


def _kinds(c) -> None:
  for kind in datasets.assignments(c.data.kind).values():
    task_files.check_kind(kind)


def _rewards(c) -> None:
  for term in reward_terms.terms(c.reward.functions):
    if not reward_terms.is_model(term.name):
      reward_terms.find(term.name)


def add_family(c) -> None:
  """Adds the families of models of the user."""
  if c.model.family:
    from rl_reason.hf import architecture  # imports JAX

    architecture.add(c.model.family, functions.load(c.model.family))


def _samples(name: str) -> Callable[[Any], Any]:
  return lambda c: datasets.parse_all(at(c, name), "train")


def _mixture(name: str) -> Callable[[Any], Any]:
  return lambda c: at(c, name) and config_facts.mixture(at(c, name))


def stop_strings(name: str) -> Callable[[Any], None]:
  """Reads a field with stop strings."""

  def read(c):
    strings = at(c, name)
    if not all(isinstance(x, str) and x for x in strings):
      raise ValueError("must be texts, none of them empty")
    if (size := sum(len(x.encode()) for x in strings)) > STOP_BYTES:
      raise ValueError(
          f"has {size} bytes, more than {STOP_BYTES}: shorten the texts; their"
          " beginnings suffice"
      )

  return read


# Field -> reads its text; raises ValueError if it has another form.
READERS: Mapping[str, Callable[[Any], Any]] = {
    "task.name": lambda c: tasks.get(c.task.name),
    "data.train": lambda c: config_facts.sources(c, "train"),
    "data.evaluate": lambda c: config_facts.sources(c, "evaluate"),
    "data.columns": lambda c: datasets.columns(c.data.columns),
    "data.kind": _kinds,
    "data.answer_as": lambda c: datasets.meanings(c.data.answer_as),
    "data.template": lambda c: templates.choose(c.data.template, ""),
    "data.template_args": lambda c: templates.arguments(c.data.template_args),
    "rollout.stop_strings": stop_strings("rollout.stop_strings"),
    "reward.functions": _rewards,
    "model.family": add_family,
    "loss.terms": own_functions.terms,
    "log.metrics": own_functions.metrics,
    "evaluate.tasks": lambda c: evaluation_tasks.parse(c.evaluate.tasks),
    "log.loggers": lambda c: loggers.check(c.log.loggers),
    "hub.revisions": config_facts.revisions,
    "sft.samples": _samples("sft.samples"),
    **{x: _mixture(x) for x in ("sft.mixture", "sft.habits.mixture")},
}


def check(c, faults: Faults, names: Collection[str] | None = None) -> None:
  """Adds the faults of all texts.

  Or only of the fields of these names, and of those that are read with them.
  """
  readers = {name: (x, "") for name, x in READERS.items()}
  readers |= {x: (_samples(x), "") for x in feature.marked("sources")}
  readers |= {x: (_mixture(x), "") for x in feature.marked("mixtures")}
  readers |= feature.marked("readers")
  for name, (read, needed) in readers.items():
    wanted = names is None or {name, needed} & {*names}
    if not wanted or {name, needed} & faults.fields:
      continue
    try:
      read(c)
    except RunError:  # code of the user would have ended the process
      raise
    except Exception as e:  # ours are ValueErrors; the user's may be any
      problem = own_code.explained(e)
      shown = f"{at(c, name)!r}: "  # once is enough
      faults.add([line(c, name, problem.removeprefix(shown))], [name])
