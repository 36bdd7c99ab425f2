"""Prompts and observations as the policy reads them.

An observation is text from outside, such as a web page, a file, or the output
of a program. If its text could become the token that ends a turn, an
observation could end the turn of the tool and speak as the user. Markup
therefore becomes special tokens only where the chat template writes it, and
ordinary tokens within an observation.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_reason.data import templates, tokenizer
from rl_reason.features.environments.tools import Messages

# Inserted into markup of observations; Unicode reserves it for internal use.
_BREAK = "\ufdd0"
_TURN = "THE TURN OF THE ASSISTANT"  # placeholder in the chat template


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
    # The longest first; a single character is not markup.
    markup = sorted((x for x in texts if len(x) > 1), key=len, reverse=True)
    self._markup = re.compile(f"({'|'.join(map(re.escape, markup)) or '(?!)'})")
    self._plain = tokenizer.plain(tok, markup)

  def text(self, text: str) -> list[int]:
    """The token ids of a text outside of a chat.

    Raises:
      ConfigError: the tokenizer cannot encode the text.
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
    """The token ids between a turn of the policy and its next turn.

    Args:
      observation: a text, or messages.
      offered: tools of the environment.
      chat: whether the chat template rendered the prompt; a text is then a turn
        of the user.
      ended: the token or stop string that ended the turn of the policy.

    Raises:
      ConfigError: the tokenizer cannot encode the observation.
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
    """The messages with a break character in each piece of markup."""
    if isinstance(value, str):
      return self._markup.sub(lambda x: x[0][0] + _BREAK + x[0][1:], value)
    if isinstance(value, dict):
      return {k: self._broken(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
      return [self._broken(x) for x in value]
    return value


def prompt_text(tok: Any, prompt: Messages | str, tools: Sequence) -> str:
  """A prompt as text; the chat template renders messages."""
  if isinstance(prompt, str):
    return prompt
  return _rendered(tok, prompt, tools)


def observation_text(
    tok: Any, observation: Messages | str, tools: Sequence, ended: str
) -> str:
  """The text of a chat between the end of a turn and the policy's next turn."""
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
