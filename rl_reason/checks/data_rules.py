"""Rules of rows: the task, its files, environments, and repositories."""

import pathlib
import re
from collections.abc import Iterator

from rl_reason import tasks
from rl_reason.base.config import at
from rl_reason.base.errors import did_you_mean
from rl_reason.checks import facts
from rl_reason.checks.rules import Rule, reading
from rl_reason.data import datasets, templates
from rl_reason.monitoring import loggers
from rl_reason.tasks import files as task_files, given, reward_terms


def task(c) -> Iterator[Rule]:
  """The task, its difficulties, and the styles of its demonstrations."""
  with reading(c, "task.name"):
    found = tasks.get(c.task.name)
  with reading(c, "environment.name"):
    facts.environment(c)
  sft = facts.sft_steps(c)
  yield (
      "sft.samples",
      c.sft.samples and not sft,
      "no step of SFT learns from them: set sft.skill.steps",
  )
  yield (
      "sft.skill.steps",
      sft and not (found.has_demonstrations or c.sft.samples),
      f"the task {c.task.name} has no function demonstrate: give model.path,"
      " and set sft.skill.steps = 0 and sft.habits.steps = 0",
  )
  for level in c.task.difficulties if found.DIFFICULTIES else ():
    yield (
        "task.difficulties",
        level not in found.DIFFICULTIES,
        f"{level!r} is none of {c.task.name}'s {found.DIFFICULTIES}",
    )
  mixtures = ["sft.skill.mixture", "sft.habits.mixture"]
  pairs = ["reward_model.chosen", "reward_model.rejected"]
  for name in mixtures + [x for x in pairs if at(c, x)]:
    with reading(c, name):
      styles = facts.mixture(at(c, name))
    for style in styles if found.STYLES else ():
      yield (
          name,
          style not in found.STYLES,
          f"{style!r} is none of {c.task.name}'s styles"
          f" {', '.join(found.STYLES)}; see configs/{c.task.name}.py",
      )


def environment(c) -> Iterator[Rule]:
  """Trajectories of several turns."""
  e, found = c.environment, facts.environment(c)
  by_turn = {"turns_BT", "turn_rewards_BT"} & {*facts.advantage_inputs(c)}
  yield (
      "advantage.name",
      by_turn and not found,
      "responses have one turn: name an environment, or a task with step",
  )
  if not found:
    return
  name = e.name or c.task.name
  yield (
      "environment.executor",
      e.executor == "process" and name.startswith(given.LOCAL),
      f"another process cannot import {name}: put it into a module of its own,"
      " or set 'thread'",
  )
  yield (
      "environment.stop_strings",
      not all(isinstance(x, str) and x for x in e.stop_strings),
      "must be texts, none of them empty",
  )
  yield (
      "rollout.partial_groups",
      c.rollout.partial_groups,
      "not in an environment: unfinished trajectories would have to wait with"
      " it",
  )
  yield (
      "reward.outcome.name",
      c.reward.outcome.name != "correctness",
      "the environment gives the rewards: leave it at 'correctness'",
  )
  ahead = "trajectories of several turns are not sampled ahead"
  yield "rl.staleness", c.rl.staleness, ahead
  yield "rollout.engine.name", c.rollout.engine.name != "own", ahead


def files(c) -> Iterator[Rule]:
  """Rows of files."""
  d = c.data
  with reading(c, "data.train"):
    train = facts.sources(c, "train")
  for source, _ in train:
    yield (
        "data.train",
        source.benchmark and not d.allow_benchmarks,
        f"{source.name}:{source.split} is a benchmark: leave it out, or set"
        " data.allow_benchmarks = True",
    )
  with reading(c, "data.evaluate"):
    evaluate = facts.sources(c, "evaluate")
  yield (
      "data.evaluate",
      any(weight is not None for _, weight in evaluate),
      "sets are evaluated separately: leave out the weights",
  )
  for name in ("sft.samples", "reward_model.samples"):
    with reading(c, name):
      datasets.parse_all(at(c, name), "train")
  with reading(c, "data.kind"):
    kinds = datasets.assignments(d.kind)
    for kind in kinds.values():
      task_files.check_kind(kind)
  for name in filter(None, kinds):
    yield (
        "data.kind",
        not any(name in source.names for source, _ in train + evaluate),
        f"{name!r} is no file of data.train or data.evaluate; known sets have a"
        " kind of their own",
    )
  yield (
      "reward.functions",
      any(facts.unverified(c)) and c.rl.steps and not c.reward.functions,
      "nothing verifies responses (data.kind = 'none', or a task that has no"
      " function verify), so that only functions can reward them: name one, as"
      " in 'my_rewards:judge*1'",
  )
  with reading(c, "data.template"):
    templates.choose(d.template, "")
  with reading(c, "data.columns"):
    datasets.columns(d.columns)
  named = bool(d.train or d.evaluate)
  yield (
      "tokenizer",
      named and not (c.tokenizer or c.model.path),
      "the characters of the built-in tasks cannot spell data.train and"
      " data.evaluate: name a tokenizer",
  )
  yield (
      "task.name",
      # A model that is only served needs no rows.
      (c.task.name == tasks.FILES) != named and (named or facts.learns(c)),
      "'files' goes with data.train and data.evaluate: set both or neither",
  )


def repositories(c) -> Iterator[Rule]:
  """Loggers, and repositories of the hub: fetched and pushed to."""
  with reading(c, "log.loggers"):
    loggers.check(c.log.loggers)
  name = c.export.push_to
  yield (
      "export.push_to",
      name and not re.fullmatch(r"[\w.-]+/[\w.-]{1,96}", name),
      "must be 'owner/name' of a repository on the hub",
  )
  with reading(c, "hub.revisions"):
    pinned = facts.revisions(c)
  fetched = {c.model.path, c.tokenizer, c.critic.path}
  texts = [c.data.train, c.data.evaluate, c.sft.samples, c.reward_model.samples]
  for text in texts if pinned else ():
    fetched |= {x.place for x, _ in datasets.parse_all(text, "train")}
  with reading(c, "reward.functions"):
    fetched |= {x.name for x in reward_terms.terms(c.reward.functions)}
  for name in pinned:
    yield (
        "hub.revisions",
        name not in fetched or pathlib.Path(name).exists(),
        f"{name!r} is no repository that this config fetches"
        f"{did_you_mean(name, filter(None, fetched))}",
    )
