"""The longest prompts of a task that generates its problems."""

from collections.abc import Callable
from typing import Any

from rl_reason import tasks
from rl_reason.base import errors
from rl_reason.tasks import evaluation_tasks


def check_prompts(
    c, task: Any, count: Callable[[list[str]], list[int]]
) -> None:
  """Refuses difficulties whose prompts are too long, or cannot be spelled.

  Args:
    c: the config.
    task: of config.task.name.
    count: the number of tokens of each of several texts.

  Raises:
    ConfigError: names the difficulties, or the characters.
  """
  _check_others(c, task, count)
  if c.task.name == tasks.FILES:
    return
  slots, levels = c.rollout.max_prompt, difficulties(c, task)
  levels = tuple(dict.fromkeys((*levels, *c.sft.difficulties)))
  texts = [task.longest(level) for level in levels]
  lacking = sorted(set("".join(texts)) - set(task.ALPHABET))
  if lacking and not (c.tokenizer or c.model.path):
    raise errors.ConfigError(
        f"tokenizer = '': the ALPHABET of {c.task.name} lacks the"
        f" characters {''.join(lacking)!r} of its prompts: name a tokenizer"
    )
  sizes = count(texts)
  if max(sizes) > slots:
    longest = texts[sizes.index(max(sizes))]
    too_long = [
        str(level)
        for level, size in zip(levels, sizes, strict=True)
        if size > slots
    ]
    raise errors.ConfigError(
        f"rollout.max_prompt = {slots}: {longest!r} has {max(sizes)} tokens;"
        f" raise it, or leave {', '.join(too_long)} out of task.difficulties"
        " and sft.difficulties"
    )


def _check_others(
    c, task: Any, count: Callable[[list[str]], list[int]]
) -> None:
  """Refuses prompts of evaluate.tasks, as `check_prompts` does."""
  levels = difficulties(c, task)
  _, sets = evaluation_tasks.of_run(c.evaluate.tasks, c.task.name, levels)
  for one in sets:
    other = tasks.get(one.task)
    texts = [other.longest(level) for level in one.levels]
    lacking = sorted({*other.ALPHABET, *"".join(texts)} - {*task.ALPHABET})
    if lacking and not (c.tokenizer or c.model.path):
      raise errors.ConfigError(
          f"evaluate.tasks = {c.evaluate.tasks!r}: the tokenizer of"
          f" {c.task.name} lacks the characters {''.join(lacking)!r} of"
          f" {one.task}: name a tokenizer"
      )
    if (size := max(count(texts))) > c.rollout.max_prompt:
      raise errors.ConfigError(
          f"rollout.max_prompt = {c.rollout.max_prompt}: prompts of {one.text}"
          f" in evaluate.tasks have up to {size} tokens; raise it"
      )


def difficulties(c, task: Any) -> tuple[int, ...]:
  """The difficulties of the problems of a run."""
  return tuple(c.task.difficulties) or task.DIFFICULTIES or (0,)
