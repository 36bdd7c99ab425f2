"""Environments: tasks whose responses have several turns.

An environment is a class of the user, named like a task. An object of the class
handles one trajectory:

  reset(row, rng) -> str         begins the trajectory; returns the prompt, or
                                 None for row.prompt. All responses to a row get
                                 the same rng, and must get the same prompt
  step(response)                 answers a turn of the policy, without its EOS;
    -> observation, reward, over returns the text that the policy reads next,
    the
                                 reward of the turn, and whether the trajectory
                                 ends

and optionally

  correct() -> bool              whether the trajectory counts as correct; by
                                 default, whether its last reward is positive

The class may also be the task, with `problem` (see `tasks`). Its function
`demonstrate(row, style, rng)` then returns a list of texts, the turns of the
policy, which the environment answers. Responses of a task without `step` have a
single turn.

A prompt or an observation may be a list of messages, {"role", "content"} each,
which the chat template of the tokenizer renders. `tools.py` offers methods as
tools, and `collect/episodes.py` runs trajectories. This room does not import
JAX.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.base import errors, functions
from rl_reason.tasks import given

Environment = Any  # an object with `reset` and `step`


def find(name: str, task: Any) -> Callable[[], Environment] | None:
  """Returns a factory of environments; None if responses have one turn.

  Args:
    name: `environment.name` of the config: a built-in task with `step`, or
      `my_module:Class`; '' for the task itself, if it has `step`.
    task: task of `tasks.get`.

  Raises:
    ValueError: there is no such environment; the text says what is missing.
  """
  if name:
    source = functions.load(tasks.NAMES.get(name, name))
    make = tasks.environment_factory(source)
    if make is None:
      raise ValueError("has no method step")
  else:
    make = getattr(task, "environment", None)
  if make is not None and not callable(getattr(make(), "reset", None)):
    raise ValueError("has no method reset")
  return make


def faults(c, environment: Any, inputs: Sequence[str]) -> Iterator[str]:
  """What cannot work in a config, as 'field: remedy'.

  Args:
    c: the whole config.
    environment: of `find`.
    inputs: of the advantage.
  """
  e, by_turn = c.environment, {"turns_BT", "turn_rewards_BT"} & set(inputs)
  if environment is None:
    remedy = "responses have one turn: name an environment, or a task with step"
    if e.stop_strings:
      yield f"environment.stop_strings: {remedy}"
    if by_turn:
      yield f"advantage.name: {remedy}"
    return
  if e.executor == "process" and (e.name or c.task.name).startswith(
      given.LOCAL
  ):
    yield (
        "environment.executor: another process cannot import"
        f" {e.name or c.task.name}: put it into a module of its own, or set"
        " 'thread'"
    )
  if not all(isinstance(x, str) and x for x in e.stop_strings):
    yield "environment.stop_strings: must be texts, none of them empty"
  if c.rollout.partial_groups:
    yield (
        "rollout.partial_groups: not in an environment: unfinished trajectories"
        " would have to wait with it"
    )
  if c.reward.outcome.name != "correctness":
    yield (
        "reward.outcome.name: the environment gives the rewards: leave it at"
        " 'correctness'"
    )


def transcript(
    environment: Environment,
    row: tasks.Row,
    turns: Sequence[str],
    rng: np.random.Generator,
) -> tuple[str, list[str]]:
  """A demonstration: its prompt, and its turns with the observations.

  Args:
    environment: a new environment.
    row: the problem.
    turns: turns of the policy.
    rng: random generator for `reset`.

  Returns:
    the prompt; and the texts of the response, alternating turns and
    observations, with a turn at both ends.
  """
  prompt = environment.reset(row, rng)
  if not isinstance(prompt, str | None):
    raise errors.ConfigError(
        "sft.skill.steps: the environment gives messages of a chat, which SFT"
        " does not render: start from a model, and set both numbers of steps"
        " to 0"
    )
  texts: list[str] = []
  for turn in turns:
    observation, _, over = environment.step(turn)
    texts += [turn, observation]
    if over:
      break
  return row.prompt if prompt is None else prompt, texts[:-1]
