"""Further tasks whose held-out problems a run evaluates: evaluate.tasks.

'arithmetic(2+3),countdown' names two of them, the first with difficulties. A
set has the name of its task, with its difficulties: 'arithmetic-2+3'. The item
that names the task of the run itself, with the same difficulties, only says
what the run's own set is called.
"""

import re
from typing import Any, NamedTuple

from rl_reason import tasks


class TaskSet(NamedTuple):
  """Held-out problems of a task.

  Attributes:
    task: name of the task.
    levels: difficulties; (0,) of a task that defines none.
  """

  task: str
  levels: tuple[int, ...] = (0,)

  @property
  def label(self) -> str:
    """The name of the set in metrics."""
    name = self.task.replace("/", ":")
    if self.levels == (0,):
      return name
    return f"{name}-{'+'.join(map(str, self.levels))}"

  @property
  def text(self) -> str:
    """The item of evaluate.tasks."""
    return f"{self.task}({'+'.join(map(str, self.levels))})"


def parse(text: str) -> tuple[TaskSet, ...]:
  """The sets that evaluate.tasks names, all difficulties filled in.

  Raises:
    ValueError: the text has another form, or a task cannot be evaluated next to
      the task of the run.
  """
  out = []
  for item in filter(None, (x.strip() for x in text.split(","))):
    found = re.fullmatch(r"([^()]+)(?:\(([\d+]*)\))?", item)
    if not found:
      raise ValueError(
          f"{item!r} is no task: must look like 'arithmetic(2+3),countdown'"
      )
    levels = tuple(int(x) for x in (found[2] or "").split("+") if x)
    out.append(of(found[1].strip(), levels))
  if len(set(out)) < len(out):
    raise ValueError("names a task twice with the same difficulties")
  return tuple(out)


def of(name: str, levels: tuple[int, ...]) -> TaskSet:
  """The held-out set of a task that generates its problems.

  Raises:
    ValueError: there is no such task or difficulty, or responses to the task
      are not verified by themselves.
  """
  task = tasks.get(name)
  if not isinstance(task, tasks.Task) or name.startswith(tasks.GYM):
    raise ValueError(
        f"{name} has sets of its own: name built-in tasks or tasks of yours;"
        " files are evaluated with data.evaluate"
    )
  if task.in_turns:
    raise ValueError(f"{name} has several turns, which only its own run plays")
  if not task.verifies:
    raise ValueError(f"{name} has no verifier, so it has no accuracy")
  known = task.DIFFICULTIES
  if wrong := [x for x in levels if known and x not in known]:
    raise ValueError(f"{wrong[0]} is none of {name}'s difficulties {known}")
  return TaskSet(name, levels or known or (0,))


def of_run(
    text: str, name: str, levels: tuple[int, ...]
) -> tuple[TaskSet | None, tuple[TaskSet, ...]]:
  """The item of evaluate.tasks for the task of the run, or None; the others.

  Args:
    text: of evaluate.tasks.
    name: of the task of the run.
    levels: its difficulties.

  Raises:
    ValueError: the text has another form.
  """
  found = parse(text)
  own = next((x for x in found if x == (name, levels)), None)
  return own, tuple(x for x in found if x != own)


class Several:
  """The task of a run, which also verifies rows of further tasks.

  The `source` of a row is the label of its set. Everything else is of the task
  of the run.

  Args:
    own: the task of the run.
    others: further tasks by the label of their set.
  """

  def __init__(self, own: Any, others: dict[str, Any]):
    self._own, self._others = own, others

  def __getattr__(self, name: str) -> Any:
    """Attributes of the task of the run."""
    if name[0] == "_":  # `copy` and `pickle` ask before `_own` is set
      raise AttributeError(name)
    found = getattr(self._own, name)
    if name != "read_leniently":
      return found

    def read(pairs):
      mine = [n for n, x in enumerate(pairs) if x[1].source not in self._others]
      out = [""] * len(pairs)
      for n, text in zip(mine, found([pairs[n] for n in mine]), strict=True):
        out[n] = text
      return out

    return read

  def answer(self, text: str, row: tasks.Row) -> str:
    """The final answer of a response, as its own task reads it."""
    return self._others.get(row.source, self._own).answer(text, row)

  def begin(self, pairs: list[tuple[str, tasks.Row]]):
    """Verifies (response, row) pairs; see `Task.begin`."""
    places: dict[str, list[int]] = {}
    for n, (_, row) in enumerate(pairs):
      label = row.source if row.source in self._others else ""
      places.setdefault(label, []).append(n)
    waits = {
        label: tasks.begin(
            self._others.get(label, self._own), [pairs[n] for n in of_set]
        )
        for label, of_set in places.items()
    }

    def wait() -> list[bool | None]:
      verdicts: list[bool | None] = [None] * len(pairs)
      for label, of_set in places.items():
        for n, verdict in zip(of_set, waits[label](), strict=True):
          verdicts[n] = verdict
      return verdicts

    return wait
