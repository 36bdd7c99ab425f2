"""Tools: methods of an environment that the policy calls by name.

Every public method of a subclass of `Tools` is offered in the chat template of
the tokenizer (the `tools=` of transformers), with its type hints and its
docstring. A response calls them in the format of Hermes and Qwen:

    <tool_call>{"name": "price", "arguments": {"item": "tea"}}</tool_call>

The results are the next turn of the chat. A response without a call ends the
trajectory, and `score` is its reward. A call within a thought (`<think>`) is
not made. This module does not import JAX.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.tasks import Row
from rl_reason.verifiers import thoughts

Messages = list[dict[str, str]]

# Methods of environments and tasks, which are not tools.
CONTRACT = (
    *("reset", "step", "correct", "score", "problem", "verify", "answer"),
    *("cut", "demonstrate", "longest"),
)
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class Tools:
  """An environment whose public methods are tools.

  Attributes:
    row: the problem.
  """

  row: Row

  def reset(self, row: Row, rng: np.random.Generator) -> Messages | str | None:
    """Begins a trajectory; the prompt of the row is a turn of the user."""
    del rng
    self.row = row
    messages = [dict(message) for message in row.messages]
    return messages or [dict(role="user", content=row.prompt)]

  def score(self, response: str) -> float:
    """The reward of the last response."""
    raise NotImplementedError("a subclass of Tools defines score")

  def step(self, response: str) -> tuple[Messages | str, float, bool]:
    """Calls the tools of a response, or ends the trajectory."""
    text = thoughts.whole(self.row.prompt, response)
    calls = _CALL.findall(thoughts.outside(text))
    if not calls:
      return "", self.score(response), True
    results = [dict(role="tool", content=self._result(call)) for call in calls]
    return results, 0.0, False

  def _result(self, call: str) -> str:
    """The result of a call, or its error, as the policy reads it."""
    known = {tool.__name__: tool for tool in tools_of(self)}
    try:
      parsed = json.loads(call)
      if parsed["name"] not in known:
        return f"error: no tool {parsed['name']!r}: use {', '.join(known)}"
      return str(known[parsed["name"]](**parsed.get("arguments", {})))
    except BaseException as e:  # the policy may pass any arguments
      return f"error: {type(e).__name__}: {e}"


def tools_of(environment: Any) -> list[Callable]:
  """The tools of an environment: bound methods, sorted by name."""
  if not isinstance(environment, Tools):
    return []
  names = [x for x in dir(environment) if x[0] != "_" and x not in CONTRACT]
  found = [getattr(environment, name) for name in names]
  return [x for x in found if callable(x) and hasattr(x, "__self__")]
