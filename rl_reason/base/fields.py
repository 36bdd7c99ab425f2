"""The fields of a config: default, type, bounds, and what a field needs.

configs/base.py and configs/variants.py state each field once:

  max_rounds=number(10, low=1, needs="dynamic_sampling.enabled"),

A field that `needs` another field does nothing unless the other field is set. A
field is set if its value is not the default. `checks/relations.py` enforces one
rule for fields that are set but do nothing:

- A switch, which is off by default (0, False, "", (), none), is refused in a
  file as well as on the command line.
- A setting, such as a learning rate or a limit, is refused on the command line.
  A file may keep the settings of an algorithm that an override replaces: there
  the setting is a warning.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from rl_reason.base import function_kinds

RATES = (
    "a step changes each weight by about the learning rate, and weights are"
    " about 0.02: take about 1e-6 for a pretrained model, and up to 1e-2 for a"
    " small new one"
)
REQUIRED = object()  # the default of an argument that has none
NAMES_OF_TYPES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a tuple, such as (1, 2) or ('a',)",
}


class Removed(NamedTuple):
  """A field whose feature was taken out; docs/scope.md has its last commit.

  Attributes:
    off: the value without the feature, with which old runs can continue.
    instead: what is closest now.
  """

  off: Any
  instead: str


class Spec(NamedTuple):
  """The values that a field or an argument may have.

  Attributes:
    default: its value if none is set.
    kind: bool, int, float, str or tuple; None for any.
    low: smallest value; None for no bound.
    high: largest value.
    choices: all values, if they are few.
    needs: fields without which the field does nothing, or facts of
      `relations.FACTS`; each may be alternatives, 'a or b'.
    at_most: the field whose value this one must not exceed.
    not_with: fields that cannot be set together with this one -> the reason.
    is_path: whether the value is a path, or a list of items with paths.
    reason: why a value out of bounds cannot work; '' if the bounds say it.
  """

  default: Any = REQUIRED
  kind: type | None = None
  low: float | None = None
  high: float | None = None
  choices: tuple[Any, ...] = ()
  needs: tuple[str, ...] = ()
  at_most: str = ""
  not_with: Mapping[str, str] = {}
  is_path: bool = False
  reason: str = ""

  def problem(self, value: Any) -> str:
    """What is wrong with a value, as 'must be ...'; '' if nothing is."""
    if self.choices:
      known = ", ".join(map(str, self.choices))
      return "" if value in self.choices else f"must be one of {known}"
    if self.kind is not None and not _is_a(value, self.kind):
      return f"must be {NAMES_OF_TYPES[self.kind]}"
    bounds = (("least", self.low), ("most", self.high))
    # NaN compares as False, so it is outside of any bounds.
    inside = (self.low is None or value >= self.low) and (
        self.high is None or value <= self.high
    )
    text = " and ".join(f"at {x} {y:g}" for x, y in bounds if y is not None)
    above = self.high is not None and value > self.high
    reason = f": {self.reason}" if self.reason and above else ""
    return "" if inside else f"must be {text}{reason}"


def _is_a(value: Any, kind: type) -> bool:
  """isinstance, but an int is a float and a bool is no number."""
  if isinstance(value, bool):
    return kind is bool
  return isinstance(value, (int, float) if kind is float else kind)


# Every field of configs/base.py by its full name; `section` fills this in.
FIELDS: dict[str, Spec] = {}
# What all fields of a section need, as in Spec.needs.
SECTION_NEEDS: dict[str, str] = {}
# What has become of a field of earlier versions.
RENAMED = {
    "log.tensorboard": "log.loggers, names such as 'tensorboard,wandb' or ''",
    "rollout.allow_top_p": "rollout.allow_filters",
    "reward.scorers": "reward.functions, whose text is the same",
    "sft.skill.steps": "sft.steps",
    "sft.skill.lr": "sft.lr",
    "sft.skill.schedule": "sft.schedule",
    "sft.skill.mixture": "sft.mixture",
    "sft.skill.threshold": "sft.threshold",
}
_COVARIANCE = (
    "an entropy bonus (loss.entropy_coef) is closest, or your own surrogate"
)
_PRIORITY = (
    "data.curriculum is closest, and prompts that retire once they are solved,"
    " with dynamic_sampling.enabled"
)
_SURPLUS = "dynamic_sampling.batches sets how many responses a round samples"
_PARTIAL = (
    "sampling ahead while the policy learns is closest: see"
    " rl_reason/features/README.md"
)
_PHASES = (
    "examples/phases.py runs the phases of a plan one after the other, and"
    " goes on with a phase in WORKDIR/phase-K"
)
_ROUNDS = (
    "examples/rejection_sampling.py and examples/iterative_grpo.py run rounds"
    " one after the other"
)
# Fields of earlier versions whose feature was taken out.
REMOVED = {
    "rounds.count": Removed(0, _ROUNDS),
    "rounds.steps": Removed(200, _ROUNDS),
    "rounds.lr": Removed(2e-5, _ROUNDS),
    "rounds.replay": Removed(0.0, _ROUNDS),
    "rounds.weight": Removed(1.0, _ROUNDS),
    "rounds.verdict": Removed(False, _ROUNDS),
    "phases": Removed([], _PHASES),
    "covariance.name": Removed("none", _COVARIANCE),
    "covariance.args": Removed({}, _COVARIANCE),
    "dynamic_sampling.surplus": Removed("discard", _SURPLUS),
    "rollout.partial_groups": Removed(0, _PARTIAL),
    "rollout.partial_across_steps": Removed(False, _PARTIAL),
    "rollout.priority.name": Removed("none", _PRIORITY),
    "rollout.priority.args": Removed({}, _PRIORITY),
    "critic.fallback": Removed(
        False,
        "critic.pretrain_steps is closest, or an advantage without a critic",
    ),
}


def removed(name: str) -> str:
  """Where a field that was taken out is told of, and what is closest.

  Args:
    name: of a field, or of an argument of a function; '' if it never was one.
  """
  found = REMOVED.get(name.partition(".args.")[0] + ".args") or REMOVED.get(
      name
  )
  return taken_out(found.instead) if found else ""


def taken_out(instead: str) -> str:
  """What an error says of a feature that is gone."""
  where = "docs/scope.md names the last commit that has it"
  return f"was taken out: {instead}; {where}"


def used(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a run, without removed ones of features that it left off."""
  return {
      name: x
      for name, x in fields.items()
      if name not in REMOVED or x != REMOVED[name].off
  }


def field(default, needs: str | tuple[str, ...] = (), **rules) -> Spec:
  """A field of any type; see `Spec` for its rules."""
  needs = (needs,) if isinstance(needs, str) else needs
  return Spec(default, **{"kind": type(default)} | rules, needs=needs)


def number(default, low=None, high=None, **rules) -> Spec:
  """A field with a number; an integer if the default is one."""
  return field(default, low=low, high=high, **rules)


def path(default="", **rules) -> Spec:
  """A field with a path, or with items such as 'NAME@PATH*2,PATH'.

  A `~` at the beginning of a path is the home directory; see `config.expand`.
  """
  return field(default, is_path=True, **rules)


def rate(default: float, **rules) -> Spec:
  """A field with a learning rate; see also `model_rules.rates`."""
  return number(default, low=0, high=1, reason=RATES, **rules)


def choice(*values, **rules) -> Spec:
  """A field with one of a few values; the first is the default."""
  known = tuple(dict.fromkeys(values))
  return field(values[0], kind=None, choices=known, **rules)


def widen(name: str, *values) -> None:
  """Adds values of a feature to those that a `choice` may have."""
  known = dict.fromkeys((*FIELDS[name].choices, *values))
  FIELDS[name] = FIELDS[name]._replace(choices=tuple(known))


def section(
    name: str, needs: str = "", /, **fields
) -> ml_collections.ConfigDict:
  """A section of a config, and a record of the values that its fields may have.

  Args:
    name: full name of the section; '' for the top.
    needs: of all fields of the section; see `Spec`.
    **fields: `number`, `choice`, `field`, a plain default, or a section.
  """
  c = ml_collections.ConfigDict()
  if needs:
    SECTION_NEEDS[name] = needs
  for key, value in fields.items():
    if not isinstance(value, ml_collections.ConfigDict):
      spec = value if isinstance(value, Spec) else field(value)
      FIELDS[f"{name}.{key}".lstrip(".")] = spec
      value = spec.default
    c[key] = value
  return c


def function(kind: str, name: str = "", **rules) -> ml_collections.ConfigDict:
  """A section that names a function, by default none; no arguments are set.

  Args:
    kind: see `function_kinds.KINDS`.
    name: of the function.
    **rules: of the field with the name; see `Spec`.
  """
  known = function_kinds.KINDS[kind]
  c = section(known.field, name=field(name or known.off, **rules))
  c.args = ml_collections.ConfigDict()
  return c


def needs(name: str) -> tuple[str, ...]:
  """What a field, or an argument of a function, needs; see `Spec`."""
  starts = [x for x in SECTION_NEEDS if name.startswith(f"{x}.")]
  of_function = name.partition(".args.")[0] + ".name"
  spec = FIELDS.get(name) or FIELDS.get(of_function) or Spec()
  return (*(SECTION_NEEDS[x] for x in starts), *spec.needs)
