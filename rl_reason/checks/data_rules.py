"""Rules of rows: the task, its files, and repositories."""

import pathlib
import re
from collections.abc import Iterator, Sequence

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.base.config import at
from rl_reason.base.errors import did_you_mean
from rl_reason.checks import config_facts
from rl_reason.checks.rules import Rule
from rl_reason.data import datasets, known_sets, templates


def task(c) -> Iterator[Rule]:
  """The task, its difficulties, and the styles of its demonstrations."""
  found = tasks.get(c.task.name)
  sft = config_facts.sft_steps(c)
  if c.sft.samples and not sft:
    yield "sft.samples", "no step of SFT learns from them: set sft.steps"
  if sft and not (found.has_demonstrations or c.sft.samples):
    yield "sft.steps" if c.sft.steps else "sft.habits.steps", (
        f"the task {c.task.name} has no function demonstrate: give model.path,"
        " and set it to 0"
    )
  if c.sft.habits.steps and c.task.name == tasks.FILES:
    yield "sft.habits.steps", (
        "a second stage of configs for the built-in tasks, whose demonstrations"
        " have styles; rows of files have one response: set it to 0"
    )
  yield from levels(c, "task.difficulties")
  yield from levels(c, "sft.difficulties")
  if c.sft.difficulties and (c.task.name == tasks.FILES or c.sft.samples):
    yield "sft.difficulties", (
        "of problems that SFT draws from a task; here SFT reads rows: set ()"
    )
  yield from styles(c, ("sft.mixture", "sft.habits.mixture"))


def styles(c, names: Sequence[str]) -> Iterator[Rule]:
  """Fields with styles and weights, which the task defines."""
  found = tasks.get(c.task.name)
  for name in (x for x in names if at(c, x)):
    for style in config_facts.mixture(at(c, name)) if found.STYLES else ():
      if style not in found.STYLES:
        yield name, (
            f"{style!r} is none of {c.task.name}'s styles"
            f" {', '.join(found.STYLES)}; see configs/{c.task.name}.py"
        )
        break


def levels(c, name: str) -> Iterator[Rule]:
  """The difficulties of a field, which the task defines."""
  known = tasks.get(c.task.name).DIFFICULTIES or at(c, name)
  if wrong := [repr(x) for x in at(c, name) if x not in known]:
    verb = "are" if wrong[1:] else "is"
    yield name, f"{', '.join(wrong)} {verb} none of {c.task.name}'s {known}"


def files(c) -> Iterator[Rule]:
  """Rows of files."""
  d = c.data
  train, evaluate = config_facts.sources(c, "train"), config_facts.sources(
      c, "evaluate"
  )
  if d.pass_rate and not _is_interval(d.pass_rate):
    yield "data.pass_rate", (
        "must be two numbers, 0 <= low <= high <= 1, such as (0.1, 0.9), or ()"
    )
  for source, _ in train:
    if source.benchmark and not d.allow_benchmarks:
      yield "data.train", (
          f"{source.name}:{source.split} is a benchmark: leave it out, or set"
          " data.allow_benchmarks = True"
      )
  if any(weight is not None for _, weight in evaluate):
    yield "data.evaluate", (
        "sets are evaluated separately: leave out the weights"
    )
  for field, own, what in (
      ("data.kind", datasets.assignments(d.kind), "a kind"),
      ("data.answer_as", datasets.assignments(d.answer_as), "choices"),
      ("data.columns", datasets.own_columns(d.columns), "columns"),
  ):
    for name in filter(None, own):
      if not any(name in source.names for source, _ in train + evaluate):
        yield field, (
            f"{name!r} is no file of data.train or data.evaluate; known sets"
            f" have {what} of their own"
        )
  chosen = [datasets.columns(d.columns, x) for x, _ in train + evaluate]
  if d.answer_as != known_sets.DETECT and not any(x["choices"] for x in chosen):
    yield "data.answer_as", (
        "no choices are named, as in data.columns = 'choices=options':"
        f" name them, or set {known_sets.DETECT!r}"
    )
  styles = datasets.assignments(d.template).values()
  if d.paraphrases > 1 and templates.PUBLISHED in styles:
    yield "data.paraphrases", (
        "data.template = 'published' asks with one wording, verbatim: set it"
        " to 1"
    )
  if any(config_facts.unverified(c)) and c.rl.steps and not c.reward.functions:
    yield "reward.functions", (
        "nothing verifies responses (data.kind = 'none', or a task that has no"
        " function verify), so that only functions can reward them: name one,"
        " as in 'my_rewards:judge*1'"
    )
  if c.sft.threshold and config_facts.no_verifier(c):
    yield "sft.threshold", (
        "nothing verifies responses, so there is no accuracy: set it to 0"
    )
  named = bool(d.train or d.evaluate)
  if named and not (c.tokenizer or c.model.path):
    yield "tokenizer", (
        "the characters of the built-in tasks cannot spell data.train and"
        " data.evaluate: name a tokenizer"
    )
  # A model that is only served needs no rows.
  if (c.task.name == tasks.FILES) != named and (
      named or config_facts.learns(c)
  ):
    yield "task.name", (
        "'files' goes with data.train and data.evaluate: set both or neither"
    )


def _is_interval(value: tuple) -> bool:
  numbers = all(type(x) in (int, float) for x in value)
  return numbers and len(value) == 2 and 0 <= value[0] <= value[1] <= 1


def repositories(c) -> Iterator[Rule]:
  """Repositories of the hub: fetched and pushed to."""
  name = c.export.push_to
  if name and not re.fullmatch(r"[\w.-]+/[\w.-]{1,96}", name):
    yield "export.push_to", "must be 'owner/name' of a repository on the hub"
  pinned = config_facts.revisions(c)
  fetched = {c.model.path, c.tokenizer, c.critic.path}
  texts = [c.data.train, c.data.evaluate, c.sft.samples]
  texts += [at(c, x) for x in feature.marked("sources")]
  for text in texts if pinned else ():
    fetched |= {x.place for x, _ in datasets.parse_all(text, "train")}
  fetched |= {*config_facts.reward_models(c)}
  for name in pinned:
    if name not in fetched or pathlib.Path(name).exists():
      yield "hub.revisions", (
          f"{name!r} is no repository that this config"
          f" fetches{did_you_mean(name, filter(None, fetched))}"
      )
