"""A rule of a config, and the one reader of rules.

A group of rules is a generator: where a rule is broken, it yields the field and
the remedy. Rules rely on types, bounds and texts, which are checked before.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import NoReturn

from rl_reason.base.config import at
from rl_reason.base.errors import ConfigError

Rule = tuple[str, str]


class Faults:
  """Collects what is wrong with a config, to tell everything at once.

  Attributes:
    lines: one for each fault, in order.
    fields: the fields whose values are not known because of these faults.
  """

  def __init__(self) -> None:
    self.lines: list[str] = []
    self.fields: set[str] = set()

  def add(self, lines: Iterable[str], fields: Iterable[str] = ()) -> None:
    """Adds lines, each once, and the fields that they are about."""
    self.lines += [x for x in dict.fromkeys(lines) if x not in self.lines]
    self.fields |= set(fields)

  @contextlib.contextmanager
  def caught(self, *fields: str) -> Iterator[None]:
    """Adds the lines of a ConfigError, which are about these fields."""
    try:
      yield
    except ConfigError as e:
      self.add(e.lines, e.fields.union(fields))

  def end(self) -> None:
    """Raises a ConfigError if there is any fault."""
    if self.lines:
      raise ConfigError(*self.lines, fields=self.fields)


def line(c, field: str, remedy: str) -> str:
  """'field = value: remedy'."""
  return f"{field} = {at(c, field)!r}: {remedy}"


def broken(c, rules: Iterable[Rule]) -> Iterator[str]:
  """The rules that a config breaks, as lines."""
  for field, remedy in rules:
    yield line(c, field, remedy)


def check(c, rules: Iterable[Rule]) -> None:
  """Checks a config.

  Raises:
    ConfigError: the rules that the config breaks.
  """
  if lines := list(broken(c, rules)):
    raise ConfigError(*dict.fromkeys(lines))


def refuse(c, field: str, remedy: str) -> NoReturn:
  """Raises the error of a field: its name, its value, and the remedy."""
  raise ConfigError(line(c, field, remedy), fields=[field])
