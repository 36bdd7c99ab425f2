"""What fields need, must not exceed, and cannot be set together with.

The fields declare these relations. `base/fields.py` defines whether a field
that does nothing is an error or a warning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rl_reason import features, tasks
from rl_reason.base import feature, fields
from rl_reason.base.config import at
from rl_reason.base.fields import FIELDS
from rl_reason.base.function_kinds import KINDS
from rl_reason.base.resume_rules import is_shape
from rl_reason.checks import config_facts
from rl_reason.checks.rules import Rule
from rl_reason.tasks import reward_terms

# Filters of the next token in training.
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")
_NAMES = {f"{known.field}.name": known for known in KINDS.values()}
# What fields may need besides other fields -> '', or why it is missing.
FACTS: Mapping[str, Callable[[Any], Any]] = {
    "a critic": lambda c: (
        not config_facts.has_critic(c)
        and f"{c.advantage.name} has no critic, as gae has"
    ),
    "a reader of types": lambda c: (
        not config_facts.type_field(c)
        and "neither advantage.name and advantage.groups nor another function"
        " compares types of problems"
    ),
    "chat messages": lambda c: (
        not (c.data.chat or feature.judge(c))
        and "prompts are plain text: set data.chat = True"
    ),
    "a verdict": lambda c: (
        (who := feature.judge(c))
        and f"{who} gives the rewards"
        or config_facts.no_verifier(c)
        and "nothing verifies responses, and reward.functions are the reward"
    ),
    "rows of files": lambda c: (
        c.task.name != tasks.FILES
        and f"task.name = {c.task.name!r} makes problems, and reads no files"
    ),
    "rows of code": lambda c: (
        not any(
            config_facts.kind_of_rows(c, source) == "code"
            for use in ("train", "evaluate")
            for source, _ in config_facts.sources(c, use)
        )
        and "no source of data.train and data.evaluate has code"
    ),
    "a filter": lambda c: (
        not any(is_set(c, f"rollout.{x}") for x in FILTERS)
        and f"no filter is on: rollout.{', rollout.'.join(FILTERS)}"
    ),
    "rope by turns": lambda c: (
        not c.model.path
        and c.model.rope_type not in ("llama3", "yarn")
        and f"model.rope_type = {c.model.rope_type!r} counts no turns"
    ),
    "yarn": lambda c: (
        not c.model.path
        and c.model.rope_type != "yarn"
        and "it is of model.rope_type = 'yarn'"
    ),
    "moments": lambda c: (
        c.optimizer.name == "sgd"
        and "optimizer.name = 'sgd' has no moments and no weight decay"
    ),
    "a reward model": lambda c: (
        not any(
            reward_terms.is_model(x.name)
            for x in reward_terms.terms(c.reward.functions)
        )
        and "reward.functions names no reward model"
    ),
}


# Facts that are asked of the command line alone. A file may keep what belongs
# to a part of training that an override leaves out.
OF_COMMANDS: Mapping[str, Callable[[Any], Any]] = {
    "RL": lambda c: (
        not (c.rl.steps or c.critic.pretrain_steps)
        and "rl.steps = 0, and SFT has fields of its own, such as sft.lr"
    ),
    "SFT": lambda c: (
        not (c.sft.steps or c.sft.habits.steps)
        and "sft.steps = 0, and RL has fields of its own, such as optimizer.lr"
    ),
    "SFT of habits": lambda c: (
        not c.sft.habits.steps and "sft.habits.steps = 0"
    ),
    "styles": lambda c: (
        not tasks.get(c.task.name).STYLES
        and f"demonstrations of task.name = {c.task.name!r} have no styles"
    ),
    "several updates": lambda c: (
        c.updates.minibatches * c.updates.epochs == 1
        and "a rollout has one update (updates.minibatches, updates.epochs)"
    ),
}


def is_set(c, name: str) -> bool:
  """Whether a field has another value than its default.

  A field of a feature that is not there is not set.
  """
  return name in FIELDS and at(c, name) != FIELDS[name].default


def _is_off(name: str) -> bool:
  """Whether a field is off by default."""
  default = FIELDS[name].default
  if name in _NAMES:
    return default == _NAMES[name].off
  return default in (0, "", (), "none")


def in_vain(c, name: str, given: bool = False) -> str:
  """Why a field or an argument does nothing; '' if something reads it.

  Args:
    c: the config. If the model is a checkpoint, needs of its shape are checked
      once the shape is known: see `of_experts`.
    name: of the field or the argument.
    given: whether it is set on the command line.
  """
  for need in fields.needs(name):
    if need in OF_COMMANDS and not given:
      continue
    if fact := FACTS.get(need) or OF_COMMANDS.get(need) or _of_feature(need):
      if why := fact(c):
        return f"does nothing: {why}: leave this out"
      continue
    others = need.split(" or ")
    waits = c.model.path and any(map(is_shape, others))
    if not waits and not any(is_set(c, x) for x in others):
      remedy = "set one of them" if len(others) > 1 else "set both"
      return f"does nothing without {need}: {remedy}, or leave this out"
  return ""


def _of_feature(need: str) -> Callable[[Any], Any] | None:
  """What a field of a feature needs; None if it is no such fact."""
  found = (x.needs[need] for x in features.declared() if need in x.needs)
  return next(found, None)


def mistakes(c, given: Iterable[str]) -> Iterator[Rule]:
  """Fields that contradict each other; `given` are set on the command line."""
  for name, spec in FIELDS.items():
    if is_set(c, name) and _is_off(name):
      if why := in_vain(c, name):
        yield name, why
    if (other := spec.at_most) and at(c, name) > at(c, other):
      yield name, f"must not exceed {other} = {at(c, other)}"
    for other, why in spec.not_with.items():
      if other not in FIELDS:  # of a feature that was taken out
        continue
      if is_set(c, name) and is_set(c, other):
        yield name, f"not with {other} = {at(c, other)!r}: {why}"
  for name in given:
    function = name.partition(".args.")[0] + ".name"
    if function != f"{name}.name" and is_set(c, function):
      if in_vain(c, function):
        continue  # a switch, which is refused above, or a warning
    if c.model.path and is_shape(name):
      yield name, f"model.path = {c.model.path!r} decides it: leave it out"
    if name not in FIELDS or is_set(c, name):
      if why := in_vain(c, name, given=True):
        yield name, why


def idle_settings(c) -> Iterator[Rule]:
  """Settings of the file that do nothing."""
  for name in FIELDS:
    if is_set(c, name) and not _is_off(name):
      if why := in_vain(c, name):
        yield name, why


def of_experts(c) -> Iterator[Rule]:
  """Fields that need experts, once model.path has given the shape."""
  for name in FIELDS:
    if "model.experts" in fields.needs(name) and not is_shape(name):
      if is_set(c, name) and not c.model.experts:
        yield name, "does nothing without model.experts: leave this out"
