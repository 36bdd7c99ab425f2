"""Perturbed copies of held-out prompts, by which robustness is measured.

paraphrase   another wording around the question, of `templates.PARAPHRASES`
distractor   a sentence before the question that has a number and is beside the
             point, as in GSM-IC (Shi et al. 2023, arXiv:2302.00093)
numbers      the same problem with other numbers and another answer, as in
             GSM-Symbolic (Mirzadeh et al. 2024, arXiv:2410.05229); the task
             computes them
names        the same problem with other names for its parts, as in
             GSM-Symbolic

The first two are for rows of files, whose questions are texts; the others are
for tasks with a function `renumber(row, rng) -> Row` or `rename(row, rng) ->
Row`. The copies of a row depend on its prompt alone, so that evaluations with
other numbers of prompts have the same copies.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.data import screening, templates
from rl_reason.data.datasets import Example
from rl_reason.data.screening import Fault

PARAPHRASE, DISTRACTOR = "paraphrase", "distractor"
# Name -> the function of a task that makes a copy, and what it computes.
BY_TASK = {
    "numbers": ("renumber", "the answer for other numbers"),
    "names": ("rename", "the same problem with other names"),
}
NAMES = PARAPHRASE, DISTRACTOR, *BY_TASK
DISTRACTORS = (
    "The ferry to the island leaves at 7:40 on weekdays.",
    "A neighbour keeps 12 pigeons on the roof.",
    "It snowed on 17 days last winter.",
    "The oldest oak of the park is 240 years old.",
    "The library of the town has 3 floors.",
)
DRAWS = 1000  # of a copy, to find a held-out prompt

# Name of the copies -> index of a row -> its copy, or why it has none.
Copies = dict[str, dict[int, tasks.Row | Fault]]


def parse(text: str, task_name: str) -> list[str]:
  """The names in evaluate.perturb, which a task must be able to make.

  Raises:
    ValueError: a name is unknown, or the task cannot make such copies.
  """
  names = [x.strip() for x in text.split(",") if x.strip()]
  for name in names:
    if name not in NAMES:
      raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")
    if name in BY_TASK:
      function, computes = BY_TASK[name]
      if not hasattr(tasks.get(task_name), function):
        raise ValueError(
            f"the task {task_name} has no function {function}(row, rng), which"
            f" computes {computes}{_others(task_name)}"
        )
    elif task_name != tasks.FILES:
      raise ValueError(
          f"{name} is for questions of files (task.name = 'files'), since the"
          f" prompts of {task_name} have a form of their own"
          f"{_others(task_name)}"
      )
  return list(dict.fromkeys(names))


def _others(task_name: str) -> str:
  """Words on the copies that a task can have, after the reason of another."""
  found = [PARAPHRASE, DISTRACTOR]
  if task_name != tasks.FILES:
    task = tasks.get(task_name)
    found = [x for x, (name, _) in BY_TASK.items() if hasattr(task, name)]
  return f"; it can have {', '.join(found)}" if found else ""


def copies(
    names: Iterable[str],
    sets: Mapping[str, Sequence[tasks.Row]],
    task: Any,
    examples: Mapping[str, Sequence[Example]],
    build: Callable[[Example], dict[str, Any] | Fault],
) -> Copies:
  """Makes copies of the rows of evaluation sets, the same in each call.

  Args:
    names: of `parse`.
    sets: the rows of the evaluation sets.
    task: renumbers rows.
    examples: of rows of files: what the rows of each set were built from.
    build: builds the row of an example.

  Returns:
    the copies of each set as 'SET~NAME'.
  """
  out: Copies = {}
  for of_set, rows in sets.items():
    for name in names:
      out[f"{of_set}~{name}"] = {
          n: _by_task(task, BY_TASK[name][0], row)
          if name in BY_TASK
          else _reworded(name, examples[of_set][n], build)
          for n, row in enumerate(rows)
      }
  return out


def _reworded(
    name: str, example: Example, build: Callable[[Example], Any]
) -> tasks.Row | Fault:
  """The row of an example with another text around its question."""
  number, question = int(screening.key(example), 16), example.question
  if name == PARAPHRASE:  # the first wording leaves the question unchanged
    others = len(templates.PARAPHRASES) - 1
    question = templates.paraphrase(question, 1 + number % others)
  elif example.kind == "code":
    return Fault("a program may follow, and the sentence is none", question)
  else:
    question = f"{DISTRACTORS[number % len(DISTRACTORS)]} {question}"
  found = build(example._replace(question=question))
  if isinstance(found, Fault):
    return found
  plain = build(example)
  if not isinstance(plain, Fault) and plain["prompt"] == found["prompt"]:
    return Fault("the template writes the question itself", question)
  return tasks.Row(**{x: found[x] for x in tasks.Row._fields})


def _by_task(task: Any, function: str, row: tasks.Row) -> tasks.Row | Fault:
  """The copy that the task makes; its prompt is held out, too."""
  seed = hashlib.sha256(f"{function} {row.prompt}".encode()).digest()[:8]
  rng = np.random.default_rng(int.from_bytes(seed, "big"))
  for _ in range(DRAWS):
    found = getattr(task, function)(row, rng)
    if found.prompt != row.prompt and tasks.held_out(found.prompt):
      return found
  return Fault(f"no other copy is held out in {DRAWS} draws", row.prompt)
