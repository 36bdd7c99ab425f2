"""What the policy reads after a turn, as token ids.

An observation is text from outside: a web page, a file, what a program printed.
If it contained the end of a turn as one token, it could close the turn of the
tool and speak as the user. So markup gets its tokens only where the chat
template writes it; in an observation it is spelled, as any other text is.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_reason.data import templates, tokenizer
from rl_reason.environments.tools import Messages

# Stands inside of markup that is spelled; Unicode reserves it for such uses.
_BREAK = "\ufdd0"
_TURN = "THE TURN OF THE ASSISTANT"  # stands for it in the template


class Observer:
  """Encodes observations.

  Args:
    tok: the tokenizer.
    special_tokens: whether the text of an observation may become special
      tokens, as the text of the chat template does.
  """

  def __init__(self, tok: Any, *, special_tokens: bool = False):
    self._tok, self._special = tok, special_tokens
    texts = map(tok.convert_ids_to_tokens, sorted(templates.reserved(tok)))
    # The longest first; a single character is no markup.
    markup = sorted((x for x in texts if len(x) > 1), key=len, reverse=True)
    self._markup = re.compile(f"({'|'.join(map(re.escape, markup)) or '(?!)'})")
    self._plain = tokenizer.plain(tok, markup)

  def text(self, text: str) -> list[int]:
    """The ids of a text that stands alone.

    Raises:
      ConfigError: the tokenizer cannot encode it.
    """
    return self._joint(text) if self._special else self._plain(text)

  def answer(
      self,
      observation: Messages | str,
      offered: Sequence,
      *,
      chat: bool,
      ended: str,
  ) -> list[int]:
    """The ids of what follows a turn of the policy, up to its next one.

    Args:
      observation: a text, or messages.
      offered: the tools of the environment.
      chat: whether the prompt came from the chat template: a text is then a
        turn of the user.
      ended: what the policy has ended its turn with, a token or a stop string.

    Raises:
      ConfigError: the tokenizer cannot encode it.
    """
    if isinstance(observation, str) and not chat:
      return self.text(observation)
    if not self._special:
      observation = self._broken(observation)
    text = observation_text(self._tok, observation, offered, ended)
    if _BREAK not in text:
      return self._joint(text)
    ids: list[int] = []
    for part in self._markup.split(text):
      if self._markup.fullmatch(part):  # of the template
        ids.append(self._tok.convert_tokens_to_ids(part))
      else:
        ids += self._plain(part.replace(_BREAK, ""))
    return ids

  def _joint(self, text: str) -> list[int]:
    return tokenizer.encode(self._tok, [text])[0]

  def _broken(self, value: Any) -> Any:
    """The same messages with a break in each piece of markup."""
    if isinstance(value, str):
      return self._markup.sub(lambda x: x[0][0] + _BREAK + x[0][1:], value)
    if isinstance(value, dict):
      return {k: self._broken(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
      return [self._broken(x) for x in value]
    return value


def prompt_text(tok: Any, prompt: Messages | str, tools: Sequence) -> str:
  """A prompt as the policy reads it; messages go through the chat template."""
  if isinstance(prompt, str):
    return prompt
  return _rendered(tok, prompt, tools)


def observation_text(
    tok: Any, observation: Messages | str, tools: Sequence, ended: str
) -> str:
  """What follows a turn in a chat, up to the start of the policy's next one.

  Args:
    tok: the tokenizer.
    observation: messages, or the text of a turn of the user.
    tools: of the environment.
    ended: what the policy has ended its turn with; what the template writes
      there is not repeated.
  """
  if isinstance(observation, str):
    observation = [dict(role="user", content=observation)]
  before = [
      dict(role="user", content="."),
      dict(role="assistant", content=_TURN),
  ]
  text = _rendered(tok, [*before, *observation], tools)
  _, _, text = text.partition(_TURN)  # an observation may repeat it
  both = range(min(len(ended), len(text)), 0, -1)
  return text[next((n for n in both if ended.endswith(text[:n])), 0) :]


def _rendered(
    tok: Any, messages: Sequence[Mapping[str, str]], tools: Sequence
) -> str:
  return tok.apply_chat_template(
      list(messages),
      tools=list(tools) or None,
      add_generation_prompt=True,
      tokenize=False,
  )
