"""A rule of a config, and the one reader of rules.

A group of rules is a generator: where a rule is broken, it yields the field and
the remedy. Later rules may rely on earlier ones.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import NoReturn

from rl_reason.base.config import at
from rl_reason.base.errors import ConfigError

Rule = tuple[str, str]


def broken(c, rules: Iterable[Rule]) -> Iterator[str]:
  """The rules that a config breaks, as 'field = value: remedy'."""
  for field, remedy in rules:
    yield f"{field} = {at(c, field)!r}: {remedy}"


def check(c, rules: Iterable[Rule]) -> None:
  """Checks a config.

  Raises:
    ConfigError: the first rule that the config breaks.
  """
  for line in broken(c, rules):
    raise ConfigError(line)


def refuse(c, field: str, remedy: str) -> NoReturn:
  """Raises the error of a field: its name, its value, and the remedy."""
  raise ConfigError(f"{field} = {at(c, field)!r}: {remedy}")


@contextlib.contextmanager
def reading(c, field: str) -> Iterator[None]:
  """Refuses a field if reading its value raises a ValueError."""
  try:
    yield
  except ValueError as e:
    refuse(c, field, str(e))
