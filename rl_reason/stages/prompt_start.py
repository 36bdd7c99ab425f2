"""What prompts begin with: tokens such as BOS, and who writes them."""

import contextlib
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

from rl_reason.base import config as config_lib
from rl_reason.base.errors import ConfigError
from rl_reason.data import templates, tokenizer

FIELD = "rollout.add_special_tokens"


def settle(
    c,
    tok: Any,
    workdir: pathlib.Path,
    say: Callable[[str], None],
    *,
    keep: bool,
) -> None:
  """Says what prompts begin with.

  Prompts of a run of an earlier version lack what the tokenizer adds, and its
  later stages go on so.

  Args:
    c: the config.
    tok: the tokenizer.
    workdir: of the run.
    say: shows a line.
    keep: whether the config is the one of the work directory; otherwise the
      config itself has to say that the run goes on so.

  Raises:
    ConfigError: it does not.
  """
  if not (c.tokenizer or c.model.path):
    return
  written = _written(c, tok)
  whole = tokenizer.with_start(written, tokenizer.added(tok))
  is_special = templates.reserved(tok, special=True).__contains__
  first = list(itertools.takewhile(is_special, whole))
  shown = " ".join(map(repr, tok.convert_ids_to_tokens(first)))
  if whole == written:
    if first:
      say(f"prompts begin with {shown}, which the chat template writes")
    elif not keep:
      say("prompts begin with their text: the tokenizer adds no token")
    return
  saved = workdir / "config.json"
  is_earlier = saved.exists() and FIELD not in config_lib.load(saved)
  if is_earlier and c.rollout.add_special_tokens:
    if not keep:
      raise ConfigError(
          f"--workdir = {workdir}: holds a run of an earlier version, whose"
          f" prompts begin without {shown}, which the tokenizer adds: set"
          f" {FIELD} = False to go on so, or choose another --workdir"
      )
    c.rollout.add_special_tokens = False
    tokenizer.begin_with(tok, ())
  if c.rollout.add_special_tokens:
    say(f"prompts begin with {shown}, which the tokenizer adds")
    return
  why = ", as in the version that began this run" * is_earlier
  say(
      f"warning: prompts begin without {shown}, which the tokenizer adds:"
      f" {FIELD} = False{why}"
  )


def _written(c, tok: Any) -> list[int]:
  """The tokens of a prompt's text, of the chat template where there is one."""
  text = ""
  if c.data.chat and tok.chat_template:
    with contextlib.suppress(templates.PromptError):
      turns = [dict(role="user", content="1+1?")]
      text = templates.render(turns, tok, chat=True)
  return tokenizer.encode(tok, [text])[0]
