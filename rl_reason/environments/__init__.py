"""Environments: tasks whose responses have several turns.

An environment is a class of the user's, named as a task is. An object of it
plays one trajectory:

  reset(row, rng) -> str         begins; the prompt, or None for row.prompt. All
                                 responses to a row get the same rng, and must
                                 get the same prompt
  step(response)                 answers a turn of the policy, without its EOS:
    -> observation, reward, over a text that the policy reads next, the reward
                                 of this turn, and whether the trajectory ends

and optionally

  correct() -> bool              whether a trajectory that is over counts as
                                 correct; if missing, whether its last reward is
                                 positive

The class may be the task itself, with `problem` (see `tasks`). Its function
`demonstrate(row, style, rng)` then returns the turns of the policy, a list of
texts, and the environment answers them. A task without `step` has a single
turn, which its verifier answers.

A prompt or an observation may also be messages of a chat, {"role", "content"}
each, which the chat template of the tokenizer renders. `tools.py` offers
methods as tools, `episodes.py` plays trajectories. Nothing here imports jax.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.base import errors, functions

Environment = Any  # an object with `reset` and `step`


def find(name: str, task: Any) -> Callable[[], Environment] | None:
  """What makes the environments of a run; None: responses have one turn.

  Args:
    name: `environment.name` of the config: that of a task with `step`, built in
      or `my_module:Class`; '' is the task itself, if it has `step`.
    task: of `tasks.get`.

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


def transcript(
    environment: Environment,
    row: tasks.Row,
    turns: Sequence[str],
    rng: np.random.Generator,
) -> tuple[str, list[str]]:
  """A demonstration: its prompt, and turns with the answers to them.

  Args:
    environment: a new one.
    row: the problem.
    turns: of the policy.
    rng: of `reset`.

  Returns:
    the prompt; and the texts of the response, turns and observations in turn,
    with a turn at both ends.
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
