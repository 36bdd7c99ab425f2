"""Multi-turn environments: the policy writes a turn, and reads an observation.

A task with a method `step` is an environment, and environment.name names one
for the rows of another task; see README.md.
"""

from collections.abc import Iterator
from typing import Any

from rl_reason import tasks
from rl_reason.base import config, feature
from rl_reason.base.fields import FIELDS, choice, number, section
from rl_reason.features.environments import interrupt

_NEED = "an environment"
# Fields -> their values with environments, and why.
_OFF: dict[str, tuple[Any, str]] = {
    "evaluate.tasks": (
        "",
        "an environment plays the prompts of its own task alone: leave it out",
    ),
    "evaluate.sampling": (
        "config",
        "protocols are of responses in one turn: use 'config'",
    ),
    "kl.privileged": (
        "",
        "an environment writes its own prompts: leave it empty",
    ),
    "rollout.replay_routing": (
        False,
        "not recorded over several turns: leave it out for environments",
    ),
    "rollout.replay_from": ("", "files have no turns: leave it out"),
    "rollout.stop_strings": (
        (),
        "end a response of one turn: name the texts that end a turn in"
        " environment.stop_strings",
    ),
    "reward.process": (
        "none",
        "an environment rewards its turns, which are the steps: leave it at"
        " 'none'",
    ),
    "reward.outcome.name": (
        "correctness",
        "the environment gives the rewards: leave it at 'correctness'",
    ),
    "rollout.engine.name": (
        "own",
        "an external engine cannot continue a response after a turn: use 'own'",
    ),
}


def _has_environment(c) -> bool:
  """Whether responses have several turns."""
  if c.environment.name:
    return True
  return getattr(tasks.get(c.task.name), "in_turns", False)


def _read_name(c) -> None:
  from rl_reason.features.environments import factory

  factory.find(c.environment.name, tasks.get(c.task.name))


def _read_stop_strings(c) -> None:
  from rl_reason.checks import text_rules

  text_rules.stop_strings("environment.stop_strings")(c)


class _Environments(feature.Declaration):
  needs = {
      _NEED: lambda c: (
          not _has_environment(c)
          and "responses have one turn: name an environment, or a task with"
          " step"
      )
  }
  functions = {"advantage": ("features.environments.turns",)}
  inputs = {"advantage": ("turn_rewards_BT", "turns_BT")}
  tasks = {
      "guess": "rl_reason.features.environments.guess:Guess",
      "calculator": "rl_reason.features.environments.calculator:Calculator",
      "lines": "rl_reason.features.environments.lines:Lines",
      "python": "rl_reason.features.environments.python:Python",
  }
  marks = {
      "readers": {
          "environment.name": (_read_name, "task.name"),
          "environment.stop_strings": (_read_stop_strings, ""),
      },
      "not_generated": {
          "environment.name": (
              "samples responses of a single turn: choose a task without an"
              " environment"
          )
      },
      "code": {"environment.name": ("", interrupt.NAME)},
      "machine": (
          "environment.executor",
          "environment.workers",
          "environment.timeout",
      ),
      "sampled": ("environment.",),
      "elsewhere": (
          "environment.max_turns",
          "environment.turn_tokens",
          "environment.phrase",
      ),
      "shown": {
          "environment.name": "in the environment {}",
          "loss.observation_nll": "NLL of observations, {:g}",
      },
      "other_names": {
          "max_tool_calling_iterations": "environment.max_turns",
          "max_assistant_turns": "environment.max_turns",
      },
  }

  def fields(self, c) -> None:
    c.environment = section(  # of a task with several turns
        "environment",
        _NEED,
        name="",  # my_module:Class; '' is the task, if it has a method step
        max_turns=number(16, low=1),  # of a trajectory
        turn_tokens=number(
            0, low=0
        ),  # of a turn, which is then cut; 0: no limit
        phrase="",  # after a cut, with the environment `interrupt`
        stop_strings=(),  # texts that end a turn, as EOS does
        special_tokens=False,  # whether observations may contain them
        executor=choice("thread", "process"),  # process: one a trajectory
        workers=number(8, low=1),  # calls at a time
        timeout=number(60.0, low=1e-3),  # seconds of one call
    )
    config.extend(
        c,
        "loss",
        # Coefficient of the NLL of what environments answer; 0 is off.
        observation_nll=number(0.0, low=0, needs=_NEED),
    )

  def used(self, c) -> bool:
    return _has_environment(c)

  def player(self, c) -> feature.Player:
    from rl_reason.features.environments import played

    return played.Environment(self, c)

  def terms(self, c):
    from rl_reason.features.environments import observation_loss

    coef = c.loss.observation_nll
    return (observation_loss.term(coef),) if coef else ()

  def stop_strings(self, c) -> tuple[str, ...]:
    return tuple(c.environment.stop_strings)

  def open(self, c, session):
    from rl_reason.features.environments import environment_runner

    return environment_runner.opened(c, session)

  def collector(self, c, session, engine, purpose: str) -> tuple[type, dict]:
    from rl_reason.devices.randomness import host_seed
    from rl_reason.features.environments import episodes

    return episodes.TurnsCollector, dict(
        environments=session.opened[self],
        environment_seed=host_seed(c.seed, f"environments of {purpose}"),
    )

  def demonstration(self, task, row, response, rng):
    from rl_reason.features.environments import factory

    if (make := factory.of_task(task)) is None:
      return None
    return factory.transcript(make(), row, response, rng)

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.environments import turn_metrics

    return turn_metrics.TurnMetrics()

  def without(self, c) -> Iterator[feature.Rule]:
    from rl_reason.checks import config_facts

    by_turn = {"turn_rewards_BT"}
    if c.reward.process == "none":
      by_turn.add("turns_BT")
    if by_turn & {*config_facts.advantage_inputs(c)}:
      yield "advantage.name", (
          "responses have one turn: name an environment, or a task with step,"
          " or set reward.process, whose steps are turns"
      )

  def rules(self, c) -> Iterator[feature.Rule]:
    from rl_reason.tasks import passed_objects

    e = c.environment
    name = e.name or c.task.name
    if e.executor == "process" and name.startswith(passed_objects.LOCAL):
      yield "environment.executor", (
          f"another process cannot import {name}: put it into a module of its"
          " own, or set 'thread'"
      )
    if e.turn_tokens >= c.rollout.max_tokens:
      yield "environment.turn_tokens", (
          "must be less than rollout.max_tokens, so that a turn follows a turn"
          " that is cut"
      )
    yield from _interruptions(c)
    for field, (off, why) in _OFF.items():
      if field in FIELDS and config.at(c, field) != off:
        yield field, why


def _interruptions(c) -> Iterator[feature.Rule]:
  """Rules of the environment `interrupt`, and of its fields."""
  from rl_reason import verifiers

  e = c.environment
  if e.name != interrupt.NAME:
    if e.phrase:
      yield "environment.phrase", (
          f"is of the environment {interrupt.NAME!r} alone: leave it out"
      )
    return
  task = tasks.get(c.task.name)
  if (
      getattr(task, "in_turns", False)
      or not getattr(task, "verifies", True)
      or c.data.kind == verifiers.NONE
  ):
    yield "environment.name", (
        f"{c.task.name} has no verifier of responses of one turn, which would"
        " read the response after an interruption: choose a task with verify"
    )
  if not e.turn_tokens:
    yield "environment.turn_tokens", "the tokens before an interruption: set it"
  if not e.phrase:
    yield "environment.phrase", "what follows an interrupted thought: set it"
  if e.executor == "process":
    yield "environment.executor", (
        "the verifier has processes of its own: leave it at 'thread'"
    )


FEATURE = _Environments()
