"""Rows of published layouts whose fields are more than one column each."""

from typing import Any

from rl_reason.data.known_sets import Field, Unclear, text


def question(field: Field) -> Field:
  """Reads a question; of Alpaca and Dolly, with the input.

  Preference pairs may have no question: it is then what both chats share.
  """

  def read(row):
    found = field(row)
    if not found:
      return _shared_prompt(row)
    more = row.get("input") or row.get("context")
    if found == row.get("instruction") and isinstance(more, str):
      return f"{text(found)}\n\n{more}"
    return found

  return read


def _shared_prompt(row: dict) -> Any:
  """The turns before the last of a preferred and a rejected chat; '' without.

  Raises:
    Unclear: the chats differ before their last turns.
  """
  chosen, rejected = row.get("chosen"), row.get("rejected")
  chats = [x for x in (chosen, rejected) if isinstance(x, list) and x[1:]]
  if len(chats) < 2:
    return ""
  if chats[0][:-1] != chats[1][:-1]:
    raise Unclear("chosen and rejected answer different prompts")
  return chats[0][:-1]


def response(field: Field) -> Field:
  """Reads a response; of Alpaca, its output."""

  def read(row):
    found = field(row)
    alpaca = found == "" and row.get("instruction")
    return row.get("output") or "" if alpaca else found

  return read
