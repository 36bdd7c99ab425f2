"""The factory of environments: tasks whose responses have several turns.

An environment is a class of the user, named like a task. An object of the class
handles one trajectory:

  reset(row, rng) -> str         begins the trajectory; returns the prompt, or
                                 None for row.prompt. All responses to a row get
                                 the same rng, and must get the same prompt
  step(response)                 answers a turn of the policy, without its EOS;
    -> observation, reward, over returns the text that the policy reads next,
                                 the reward of the turn, and whether the
                                 trajectory ends

and optionally

  correct() -> bool              whether the trajectory counts as correct; by
                                 default, whether its last reward is positive
  cut(response)                  answers a turn that reached
    -> observation, reward, over environment.turn_tokens before its end, and
                                 then continues; by default, as `step`

The class may also be the task, with `problem` (see `tasks`). Its function
`demonstrate(row, style, rng)` then returns a list of texts, the turns of the
policy, which the environment answers. Responses of a task without `step` have a
single turn.

A prompt or an observation may be a list of messages, {"role", "content"} each,
which the chat template of the tokenizer renders. `tools.py` offers methods as
tools, and `episodes.py` runs trajectories. This module does not import JAX.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.base import errors, functions
from rl_reason.features.environments import interrupt

Environment = Any  # an object with `reset` and `step`


def find(
    name: str, task: Any, phrase: str = ""
) -> Callable[[], Environment] | None:
  """Returns a factory of environments; None if responses have one turn.

  Args:
    name: `environment.name` of the config: a built-in task with `step`, or
      `my_module:Class`; '' for the task itself, if it has `step`.
    task: task of `tasks.get`.
    phrase: of an interruption, see `interrupt`.

  Raises:
    ValueError: there is no such environment; the text says what is missing.
  """
  if name == interrupt.NAME:
    return functools.partial(interrupt.Interrupt, task, phrase)
  if name:
    place = name if ":" in name else tasks.names().get(name, name)
    make = _of(functions.load(place))
    if make is None:
      raise ValueError("has no method step")
  else:
    make = of_task(task)
  if make is not None and not callable(getattr(make(), "reset", None)):
    raise ValueError("has no method reset")
  return make


def of_task(task: Any) -> Callable[[], Environment] | None:
  """A factory of a task's own environments; None without `step`."""
  return _of(getattr(task, "origin", None))


def _of(source: Any) -> Callable[[], Environment] | None:
  """A factory from a class or an object; None without `step`."""
  if not callable(getattr(source, "step", None)):
    return None
  make = functools.partial(copy.deepcopy, source)
  return source if isinstance(source, type) else make


def transcript(
    environment: Environment,
    row: tasks.Row,
    turns: Sequence[str],
    rng: np.random.Generator,
) -> tuple[str, list[str]]:
  """A demonstration: its prompt, and its turns with the observations.

  Returns:
    the prompt; and the texts of the response, alternating turns and
    observations, with a turn at both ends.
  """
  prompt = environment.reset(row, rng)
  if not isinstance(prompt, str | None):
    raise errors.ConfigError(
        "sft.steps: the environment gives messages of a chat, which SFT"
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
