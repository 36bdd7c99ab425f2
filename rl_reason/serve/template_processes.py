"""Chat templates in processes of their own, with limits.

A chat template is a program that comes with a model. It may not return, or use
all memory, and a thread cannot be killed.
"""

import contextlib
import functools
import resource
from collections.abc import Mapping, Sequence
from typing import Any

from rl_reason.data import templates, tokenizer
from rl_reason.data.templates import PromptError, Shown
from rl_reason.verifiers import workers

SECONDS = 5.0  # of CPU time for a prompt; a new process needs 1 to 3 of them
WALL_SECONDS = 60.0
MEMORY = 512 << 20  # bytes that rendering may add to a process
PROCESSES = 2
ESCAPED = 12  # bytes of a character in JSON, at most


class Renderer:
  """Renders chats by the template of a tokenizer.

  Args:
    tok: the tokenizer.
    characters: maximum length of a rendered prompt.
  """

  def __init__(self, tok: Any, characters: int):
    self._tok, self._characters = tok, characters
    self._pool = workers.Pool(
        f"{__name__}:render",
        PROCESSES,
        SECONDS,
        wall_seconds=WALL_SECONDS,
        megabytes=1 << 22,  # `render` has a limit of its own
        max_reply=ESCAPED * characters + workers.MAX_REPLY,
    )
    with contextlib.suppress(PromptError):  # starts a process for the first one
      if tok.chat_template:
        self._pool.submit([self._item([dict(role="user", content="1")], {})])

  def render(
      self, turns: Sequence[Mapping[str, Any]], args: Mapping[str, Any]
  ) -> Shown:
    """The text of a chat; see `templates.render_all`.

    Raises:
      PromptError: the template refuses the turns, leaves out one of them, or
        exceeds a limit.
    """
    item = self._item(turns, args)
    [outcome] = self._pool.results(self._pool.submit([item]))
    if outcome.failure:
      raise PromptError(
          "the tokenizer's chat template does not end for these messages:"
          f" {_LIMITS.get(outcome.failure, outcome.failure)}; correct the"
          " template (chat_template.jinja next to tokenizer.json), or send"
          " fewer messages"
      )
    text, renamed, fault = outcome.value
    if fault:
      raise PromptError(fault)
    return Shown(text, renamed)

  def _item(self, turns, args) -> tuple:
    try:
      template = self._tok.get_chat_template()
    except ValueError as e:  # several templates, none of which is the default
      raise PromptError(f"the tokenizer's chat template: {e}") from None
    # data.template_args; see `tokenizer.load`.
    always = getattr(self._tok.apply_chat_template, "keywords", {})
    args = {**self._tok.special_tokens_map, **always, **args}
    return template, list(turns), args, self._characters

  def close(self) -> None:
    """Ends the processes."""
    self._pool.close()


_LIMITS = {
    "time": f"it takes more than {SECONDS:g} seconds of CPU time",
    "memory": f"it takes more than {MEMORY >> 20} MiB of memory",
    "crash": "its process has died",
}


def render(
    template: str,
    turns: list[dict[str, Any]],
    args: dict[str, Any],
    characters: int,
) -> tuple[str, int, str]:
  """In a worker: the text, the number of renamed roles, and a fault or ''."""
  _limit_memory()
  tok = _tokenizer(template)
  call = functools.partial(templates.render, tok=tok, chat=True, args=args)
  try:
    text, renamed = templates.render_all(turns, call)
  except PromptError as e:
    if isinstance(e.__cause__, MemoryError):
      raise MemoryError from None
    return "", 0, str(e)
  if len(text) > characters:
    fault = (
        f"the tokenizer's chat template makes {len(text):,} characters of these"
        f" messages, and this server takes {characters:,} (serve.max_prompt)"
    )
    return "", 0, fault
  return text, renamed, ""


@functools.lru_cache(maxsize=1)
def _tokenizer(template: str) -> Any:
  """A tokenizer with a template and no vocabulary."""
  tok = tokenizer.characters("")
  tok.chat_template = template
  return tok


@functools.cache
def _limit_memory() -> None:
  """Limits the address space beyond what the imported libraries have."""
  try:
    with open("/proc/self/statm", encoding="ascii") as file:
      used = int(file.read().split()[0]) * resource.getpagesize()
  except OSError:  # not Linux
    used = 4 << 30
  resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
