"""Perturbed copies of held-out prompts, by which robustness is measured.

paraphrase   another wording around the question, of `templates.PARAPHRASES`
distractor   a sentence before the question that has a number and is beside the
             point, as in GSM-IC (Shi et al. 2023, arXiv:2302.00093)
numbers      the same problem with other numbers and another answer, as in
             GSM-Symbolic (Mirzadeh et al. 2024, arXiv:2410.05229); the task
             computes them

The first two are for rows of files, whose questions are texts; the last is for
tasks with a function `renumber(row, rng) -> Row`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.data import screening, templates
from rl_reason.data.datasets import Example
from rl_reason.data.screening import Fault

NAMES = PARAPHRASE, DISTRACTOR, NUMBERS = "paraphrase", "distractor", "numbers"
DISTRACTORS = (
    "The ferry to the island leaves at 7:40 on weekdays.",
    "A neighbour keeps 12 pigeons on the roof.",
    "It snowed on 17 days last winter.",
    "The oldest oak of the park is 240 years old.",
    "The library of the town has 3 floors.",
)
DRAWS = 1000  # of other numbers, to find a held-out prompt

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
    if name != NUMBERS and task_name != tasks.FILES:
      raise ValueError(
          f"{name} is for questions of files (task.name = 'files'), since the"
          f" prompts of {task_name} have a form of their own; use 'numbers'"
      )
    if name == NUMBERS and not hasattr(tasks.get(task_name), "renumber"):
      raise ValueError(
          f"the task {task_name} has no function renumber(row, rng), which"
          " computes the answer for other numbers"
      )
  return list(dict.fromkeys(names))


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
          n: _renumbered(task, row, n)
          if name == NUMBERS
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
  return tasks.Row(**{x: found[x] for x in tasks.Row._fields})


def _renumbered(task: Any, row: tasks.Row, index: int) -> tasks.Row | Fault:
  """The row with other numbers; its prompt is held out, too."""
  rng = np.random.default_rng((20261124, index))
  for _ in range(DRAWS):
    found = task.renumber(row, rng)
    if found.prompt != row.prompt and tasks.held_out(found.prompt):
      return found
  return Fault(f"no other numbers are held out in {DRAWS} draws", row.prompt)
