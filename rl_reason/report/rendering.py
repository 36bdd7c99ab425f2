"""Renders HTML pages from templates: a common head, and data as JSON."""

import json
import pathlib
from typing import Any

HERE = pathlib.Path(__file__).parent
# Colors of curves on white, for pages and figures: distinguishable with color
# blindness, and with dashes also in grey.
PALETTE = ("#0a4f93", "#cf5a0a", "#12805c", "#9a3b82", "#8a6d00", "#7b8491")


def render(
    name: str, data: dict[str, Any] | None, folder: pathlib.Path = HERE
) -> str:
  """The page NAME.html.in of a folder with the common head and its data."""
  page = (folder / f"{name}.html.in").read_text(encoding="utf-8")
  head = (HERE / "head.html.in").read_text(encoding="utf-8")
  colors = " ".join(f"--c{i}: {x};" for i, x in enumerate(PALETTE))
  head = head.replace("@PALETTE@", colors)
  return page.replace("@HEAD@\n", head).replace("@DATA@", embed(data))


def embed(data) -> str:
  """JSON in ASCII without characters that are special in HTML."""
  text = json.dumps(data, separators=(",", ":"))
  for letter in "<>&":
    text = text.replace(letter, f"\\u{ord(letter):04x}")
  return text


def as_text(values: dict[str, Any]) -> list[tuple[str, str]]:
  """The rows of a table of names and values."""
  return [
      (name, x if isinstance(x, str) else json.dumps(x))
      for name, x in values.items()
  ]
