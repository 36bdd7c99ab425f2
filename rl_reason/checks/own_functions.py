"""Functions of the user that a text of the config lists.

  loss.terms = "my_terms:shorter(power=2)*0.1..0,my_terms:confident*0"
  log.metrics = "my_metrics:spread"

Each item is a function with its keywords, and in the loss a coefficient, as in
reward.functions. A function is called with the arrays that its positional
parameters name.
"""

import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from rl_reason import features
from rl_reason.base import functions
from rl_reason.base.function_kinds import OWN_TERMS
from rl_reason.tasks import reward_terms

# What a term of the loss may name; `objective.loss` has the arrays.
OF_LOSS = (
    *("logps_BT", "entropy_BT", "mask_BT", "old_logps_BT", "sampler_logps_BT"),
    *("ref_logps_BT", "advantages_BT", "values_BT", "returns_BT"),
    *("correct_B", "groups_B", "all_logps_BT"),
)
# What its weights may name; `objective.token_weights` has the arrays.
OF_WEIGHTS = ("mask_BT", "groups_B", "correct_B")
# What a metric of a step may name; `own_metrics.arrays_of_step` has the arrays.
OF_STEP = (
    *("rewards_B", "correct_B", "groups_B", "types_B", "problems_B"),
    *("lengths_B", "truncated_B", "age_B", "tokens_BL", "mask_BT"),
    *("sampler_logps_BT", "advantages_BT", "ref_logps_BT", "values_BT"),
    *("returns_BT", "scores_EB", "step"),
)


class Own(NamedTuple):
  """A function of the user.

  Attributes:
    label: its text in the config, without the coefficient.
    function: keywords bound.
    first, last: its coefficient at the first step, and after the last step.
    weights: its attribute `token_weights`, or None.
    inputs: names of its positional parameters.
  """

  label: str
  function: Callable[..., Any]
  first: float
  last: float
  weights: Callable[..., Any] | None
  inputs: tuple[str, ...]

  def coef(self, progress: float) -> float:
    """The coefficient when a fraction of the training is done."""
    return self.first + (self.last - self.first) * progress


def listed(text: str, known: Collection[str]) -> tuple[Own, ...]:
  """The functions of a text.

  Args:
    text: of the config.
    known: inputs that there are.

  Raises:
    ValueError: a function cannot be imported, names an input that does not
      exist, or does not take its keywords; or two have the same text.
  """
  found: list[Own] = []
  for term in reward_terms.terms(text):
    name, mark, _ = term.name.partition("(")
    function = functions.load(name)
    if not callable(function):
      raise ValueError(f"{name!r} is not a function")
    signature = functions.signature_of(function)
    functions.check_inputs(name, signature.inputs, known)
    given = reward_terms.keywords(term.name) if mark else {}
    functions.check_arguments(name, name, signature, given)
    weights = getattr(function, "token_weights", None)
    if weights is not None:
      inputs = functions.signature_of(weights).inputs
      functions.check_inputs(f"{name}.token_weights", inputs, OF_WEIGHTS)
    if term.name in [x.label for x in found]:
      raise ValueError(f"has {term.name} twice: name it once, with one weight")
    bound = functools.partial(function, **given)
    found.append(Own(term.name, bound, *term[1:], weights, signature.inputs))
  return tuple(found)


def of_loss() -> tuple[str, ...]:
  """`OF_LOSS`, and such arrays of features."""
  of_features = (x.inputs.get(OWN_TERMS, ()) for x in features.declared())
  return OF_LOSS + tuple(itertools.chain(*of_features))


def terms(c) -> tuple[Own, ...]:
  """The user's own terms of the loss."""
  return listed(c.loss.terms, of_loss())


def metrics(c) -> tuple[Own, ...]:
  """The user's own metrics of a step."""
  found = listed(c.log.metrics, OF_STEP)
  for x in found:
    if (x.first, x.last) != (1, 1):
      raise ValueError(f"{x.label} is logged as it is: leave its weight out")
  return found
