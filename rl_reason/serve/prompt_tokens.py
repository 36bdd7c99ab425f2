"""Prompts of requests: texts, chats and ids become ids within the limits.

Tokenising takes seconds per megabyte. Therefore texts that are too long are
refused by their number of characters before they are tokenised, and
tokenisation runs outside of the event loop.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason.base import errors
from rl_reason.data import templates, tokenizer
from rl_reason.serve import protocol, template_processes
from rl_reason.serve.device_programs import Programs
from rl_reason.serve.protocol import ApiError

CHARACTERS = 32  # of a token, at most, for the limit of a prompt in characters


class Prompt(NamedTuple):
  """One prompt.

  Attributes:
    text: text of the ids.
    ids: at least one id.
    kept: prompt of ratings: the text, or the turns of a chat.
  """

  text: str
  ids: tuple[int, ...]
  kept: Any


class Prompts:
  """Reads prompts.

  Args:
    tok: the tokenizer.
    programs: the device programs, with the limits of a prompt.
    most: maximum number of responses of a request.
    say: shows a line.
  """

  def __init__(
      self,
      tok: Any,
      programs: Programs,
      most: int,
      say: Callable[[str], None],
  ):
    self._tok, self._programs, self._most = tok, programs, most
    self._say = functools.cache(say)  # each line once
    longest = max(map(len, tok.get_vocab()))
    self._characters = programs.max_prompt * min(longest, CHARACTERS)
    self._renderer = template_processes.Renderer(tok, self._characters)

  def close(self) -> None:
    """Ends the processes that render chats."""
    self._renderer.close()

  def of_completion(self, body: protocol.Completion) -> list[Prompt]:
    """The prompts of a completion.

    Raises:
      ApiError: there are too many prompts or responses, or a prompt is too long
        or cannot be tokenised.
    """
    prompts: Sequence[Any] = body.prompt
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
      prompts = [prompts]
    if not prompts:
      raise ApiError(400, "prompt: is empty", param="prompt")
    self._check_count(len(prompts), body.n)
    return [
        self._of_text(x, body) if isinstance(x, str) else self.of_ids(x)
        for x in prompts
    ]

  def of_chat(self, body: protocol.Chat) -> list[Prompt]:
    """The prompt of a chat, rendered by the template of the tokenizer.

    Raises:
      ApiError: the messages are too long, or the template refuses them.
    """
    self._check_count(1, body.n)
    has_template = bool(self._tok.chat_template)
    try:
      turns = body.turns
      if len(turns) > 1 and not has_template:
        raise ValueError(
            "messages: the tokenizer has no chat template: send a single"
            " message of the user"
        )
      self._check_size(sum(len(x["content"]) for x in turns), "messages")
      args = body.chat_template_kwargs
      templates.check_names(args)
      if args and not has_template:
        raise ValueError(
            "chat_template_kwargs: the tokenizer has no chat template: leave"
            " it out"
        )
      if has_template:
        text, renamed = self._renderer.render(turns, args)
      else:
        text, renamed = turns[-1]["content"], 0
    except (ValueError, templates.PromptError) as e:
      raise ApiError(400, str(e), param="messages") from None
    if renamed:
      self._say(
          "the chat template does not show messages with the role 'developer':"
          " the server gives them the role 'system'"
      )
    prompt = self._of_text(text, body)
    # A rating keeps the turns, so that any chat template can render them.
    return [prompt._replace(kept=turns) if has_template else prompt]

  def of_tokens(self, body: protocol.Generate) -> list[Prompt]:
    """The prompt of a request with ids.

    Raises:
      ApiError: the prompt is too long, or an id is out of range.
    """
    self._check_count(1, body.sampling_params.n)
    return [self.of_ids(body.token_ids)]

  def of_ids(self, ids: Sequence[int]) -> Prompt:
    """A prompt given as ids.

    Raises:
      ApiError: the prompt is empty or too long, or an id is out of range.
    """
    p = self._programs
    if not ids:
      raise ApiError(400, "prompt: has no token", param="prompt")
    if len(ids) > p.max_prompt:
      raise _too_long(f"the prompt has {len(ids)} tokens", p.max_prompt)
    known = p.cfg.tokens or p.cfg.vocab
    if max(ids) >= known:
      raise ApiError(
          400, f"prompt: {max(ids)} is no id below {known}", param="prompt"
      )
    try:
      text = tokenizer.Detokenizer(self._tok).text(ids)
    except BaseException as e:  # a panic of `tokenizers` is no Exception
      raise ApiError(
          400, f"prompt: has no text: {errors.one_line(e)}", param="prompt"
      ) from None
    return Prompt(text, tuple(ids), text)

  def _of_text(self, text: str, body: protocol.Streamed) -> Prompt:
    self._check_size(len(text), "the prompt")
    encode = tokenizer.encode
    if body.add_special_tokens:
      encode = tokenizer.encode_prompts
    try:
      [ids] = encode(self._tok, [text])
    # A tokenizer without an unknown token; a panic of it is no Exception.
    except BaseException as e:
      raise ApiError(
          400,
          f"prompt: cannot be tokenised: {errors.one_line(e)}",
          param="prompt",
      ) from None
    return self.of_ids(ids)._replace(text=text, kept=text)

  def _check_count(self, prompts: int, n: int) -> None:
    if prompts * n > self._most:
      raise ApiError(
          400,
          f"{prompts} prompts x n = {n} are {prompts * n:,} responses, and this"
          f" server takes {self._most:,} at a time (serve.queue): send several"
          " requests",
          param="n",
      )

  def _check_size(self, characters: int, what: str) -> None:
    if characters > self._characters:
      raise _too_long(
          f"{what}: {characters:,} characters, more than {self._characters:,}",
          self._programs.max_prompt,
      )


def _too_long(what: str, most: int) -> ApiError:
  return ApiError(
      400,
      f"{what}, and this server takes {most} tokens (serve.max_prompt)",
      param="prompt",
      code="context_length_exceeded",
  )
