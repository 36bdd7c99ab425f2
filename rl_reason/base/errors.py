"""Errors that a user can correct, and the exit code of a lost process."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
  """What is wrong with a config: a line for each fault.

  A line has the field, its value, and the remedy.

  Attributes:
    lines: the lines, at least one.
    fields: names of the fields whose values are not known because of these
      faults.
  """

  def __init__(self, *lines: str, fields: Iterable[str] = ()):
    super().__init__(*lines)
    self.lines, self.fields = lines, frozenset(fields)

  def __str__(self) -> str:
    return "\n".join(self.lines)


def one_line(e: BaseException) -> str:
  """The message of an error in one line, or else its type."""
  return " ".join(str(e).split()) or type(e).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """'; did you mean X?' for the most similar name, or ''."""
  near = difflib.get_close_matches(name, list(known), 1)
  return f"; did you mean {near[0]}?" if near else ""


# The exit code of a run that lost a process or stands still: launchers start it
# again. It is above the codes of processes that a signal ended (129 to 159),
# since SLURM reports the highest code of a job's processes.
LOST = 175


class RunError(RuntimeError):
  """What a user can mend; shown as one line, without a traceback."""


class Stopped(Exception):
  """The run was stopped by a signal; its state is saved."""
