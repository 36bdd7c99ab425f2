"""Thoughts: what a reasoning model writes between <think> and </think>."""

import re

OPEN, CLOSE = "<think>", "</think>"
_THOUGHT = re.compile(f"{OPEN}.*?(?:{CLOSE}|$)", re.DOTALL)


def joined(thought: str, content: str) -> str:
  """A response of a thought and what follows it, as R1 and Qwen3 write it.

  A content with a thought of its own is returned as it is, and so is one
  without a thought.
  """
  if not thought or CLOSE in content:
    return content
  return f"{OPEN}\n{thought}\n{CLOSE}\n\n{content}"


def whole(prompt: str, response: str) -> str:
  """The response, with the <think> with which its prompt may end."""
  opens = prompt.rstrip().endswith(OPEN)
  return OPEN + response if opens else response


def outside(text: str) -> str:
  """The text without its thoughts; one that is not closed reaches the end.

  The tag that opens the first thought may be missing: the prompt may have it.
  """
  before, closed, after = text.partition(CLOSE)
  if closed and OPEN not in before:
    text = after
  return _THOUGHT.sub("", text)


def continued(prompt: str, response: str) -> str:
  """The response after a prompt, without the <think> that both have.

  Raises:
    ValueError: the prompt closes the thought, and the response opens another.
  """
  end, start = prompt.rstrip(), response.lstrip()
  if not start.startswith(OPEN):
    return response
  if end.endswith(CLOSE):
    raise ValueError("the prompt closes the thought that the response begins")
  if not end.endswith(OPEN):
    return response
  rest = start.removeprefix(OPEN)
  return rest if end == prompt else rest.lstrip()
