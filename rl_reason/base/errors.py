"""Errors that a user can correct, and the exit code of a lost process."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
  """One line: the field, its value, and the remedy."""


def one_line(e: BaseException) -> str:
  """The message of an error in one line, or else its type."""
  return " ".join(str(e).split()) or type(e).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """'; did you mean X?' for the most similar name, or ''."""
  known, last = list(known), name.rpartition(".")[2]
  # A field may have moved to another section under the same last name.
  same = [x for x in known if x.rpartition(".")[2] == last]
  near = difflib.get_close_matches(name, known, 1) or same[:1]
  return f"; did you mean {near[0]}?" if near else ""


# The exit code of a run that lost a process or stands still: launchers start it
# again. It is above the codes of processes that a signal ended (129 to 159),
# since SLURM reports the highest code of a job's processes.
LOST = 175


class RunError(RuntimeError):
  """What a user can mend; shown as one line, without a traceback."""


class Stopped(Exception):
  """The run was stopped by a signal; its state is saved."""
