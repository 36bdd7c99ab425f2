"""Thoughts: what a reasoning model writes between <think> and </think>.

Other models have other tags: [THINK] (Magistral), <seed:think>, <thinking>, the
channels of Harmony (gpt-oss) and of Gemma. Where a tag is missing, what is
certainly said remains: a thought that is not closed reaches to the end, and one
that is not opened begins at the start, since the prompt may have opened it.
"""

import re

OPEN, CLOSE = "<think>", "</think>"
_NAMES = r"(?:(?:seed:|longcat_)?think(?:ing)?|thoughts?|reasoning)\s*"
_OPENS = re.compile(
    rf"<{_NAMES}>|(?-i:\[THINK\])|\u25c1think\u25b7|<\|START_THINKING\|>"
    r"|<\|(?:begin_of_thought|inner_prefix)\|>|<unused94>|<\|channel>thought"
    r"|<\|channel\|>(?:analysis|commentary)[^<]{0,99}<\|message\|>",
    re.IGNORECASE,
)
_CLOSES = re.compile(
    rf"</{_NAMES}>|(?-i:\[/THINK\])|\u25c1/think\u25b7|<\|END_THINKING\|>"
    r"|<\|(?:end_of_thought|inner_suffix)\|>|<unused95>|<channel\|>"
    r"|(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)


def joined(thought: str, content: str) -> str:
  """A response of a thought and what follows it, as R1 and Qwen3 write it.

  A content with a thought of its own is returned as it is, and so is one
  without a thought.
  """
  if not thought or closed(content):
    return content
  return f"{OPEN}\n{thought}\n{CLOSE}\n\n{content}"


def whole(prompt: str, response: str) -> str:
  """The response, with the <think> with which its prompt may end."""
  return OPEN + response if opened(prompt) else response


def opened(prompt: str) -> str:
  """The tag that opens a thought at the end of a prompt, or ''."""
  end = prompt.rstrip()
  tags = [x[0] for x in _OPENS.finditer(end, max(0, len(end) - 40))]
  return tags[-1] if tags and end.endswith(tags[-1]) else ""


def closed(text: str) -> bool:
  """Whether a text closes a thought."""
  return bool(_CLOSES.search(text))


def outside(text: str) -> str:
  """The text without its thoughts."""
  *thoughts, last = _CLOSES.split(text)
  parts = [_OPENS.split(x, maxsplit=1) for x in thoughts]
  before = [x[0] for x in parts if len(x) > 1]
  return "".join([*before, _OPENS.split(last, maxsplit=1)[0]])


def after(text: str) -> str:
  """The text without its thoughts; the whole text if it closes none.

  A response that is cut short in its thought may have an answer there.
  """
  return outside(text) if closed(text) else text


def continued(prompt: str, response: str) -> str:
  """The response after a prompt, without the tag that both have.

  Raises:
    ValueError: the prompt closes the thought, and the response opens another.
  """
  end, start = prompt.rstrip(), response.lstrip()
  if not (tag := _OPENS.match(start)):
    return response
  if (found := [*_CLOSES.finditer(end)]) and found[-1].end() == len(end):
    raise ValueError("the prompt closes the thought that the response begins")
  if not opened(prompt):
    return response
  rest = start[tag.end() :]
  return rest if end == prompt else rest.lstrip()
