"""The fields of a config: their defaults, types and bounds."""

from typing import Any, NamedTuple

import ml_collections

from rl_reason.base import kinds

REQUIRED = object()  # the default of an argument that has none
COMPUTED = object()  # a default that is no literal


class Spec(NamedTuple):
  """The values that a field or an argument may have.

  Attributes:
    default: its value if none is set.
    kind: bool, int, float, str or tuple; None for any.
    low: smallest value; None for no bound.
    high: largest value.
    choices: all values, if they are few.
  """

  default: Any = REQUIRED
  kind: type | None = None
  low: float | None = None
  high: float | None = None
  choices: tuple[Any, ...] = ()

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
    return "" if inside else f"must be {text}"


NAMES_OF_TYPES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a tuple",
}


def _is_a(value: Any, kind: type) -> bool:
  """isinstance, but an int is a float and a bool is no number."""
  if isinstance(value, bool):
    return kind is bool
  return isinstance(value, (int, float) if kind is float else kind)


# Every field of configs/base.py by its full name; `section` fills this in.
FIELDS: dict[str, Spec] = {}


# What has become of a field of earlier versions.
RENAMED = {
    "log.tensorboard": "log.loggers, names such as 'tensorboard,wandb' or ''",
    "reward.scorers": "reward.functions, whose text is the same",
}


def number(default, low=None, high=None) -> Spec:
  """A field with a number; an integer if the default is one."""
  return Spec(default, type(default), low, high)


def choice(*values) -> Spec:
  """A field with one of a few values; the first is the default."""
  return Spec(values[0], choices=tuple(dict.fromkeys(values)))


def section(name: str, /, **fields) -> ml_collections.ConfigDict:
  """A section of a config, and a record of the values that its fields may have.

  Args:
    name: full name of the section; '' for the top.
    **fields: `number`, `choice`, a plain default, or a section.
  """
  c = ml_collections.ConfigDict()
  for field, value in fields.items():
    if not isinstance(value, ml_collections.ConfigDict):
      spec = value if isinstance(value, Spec) else Spec(value, type(value))
      FIELDS[f"{name}.{field}".lstrip(".")] = spec
      value = spec.default
    c[field] = value
  return c


def function(kind: str, name: str = "") -> ml_collections.ConfigDict:
  """A section that names a function, by default none; no arguments are set.

  Args:
    kind: see `functions.KINDS`.
    name: of the function.
  """
  known = kinds.KINDS[kind]
  c = section(known.field, name=name or known.off)
  c.args = ml_collections.ConfigDict()
  return c
