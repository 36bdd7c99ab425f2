"""Groups of responses for the page of a run, within a budget of bytes.

samples.jsonl may be larger than memory: one pass finds the groups, and only the
groups that the page shows are read.
"""

import contextlib
import json
import pathlib
import re
from typing import Any, NamedTuple

from rl_reason.base import json_files
from rl_reason.monitoring.run_log import DOUBTFUL
from rl_reason.report.charts import thin

# Numbers of each token that a line can have.
NUMBERS = (
    *("advantage", "logp", "entropy", "ratio", "clipped", "kl", "value"),
    *("turn", "turn_reward"),
)
MAX_STEPS, MAX_GROUPS = 40, 120  # that the page can show
END_TOKENS, END_CHARACTERS = 150, 600  # head and tail of a cut response
MAX_PROMPT = 2000  # characters
MAX_DOUBTFUL = 200  # lines that are read
_HEAD = re.compile(
    rb'\{"stage": "(\w+)", "step": (\d{1,18})(?:, "group": (-?\d{1,18}))?'
)


class Place(NamedTuple):
  """The place of a line in the file."""

  offset: int
  size: int


def doubtful(path: pathlib.Path, budget: int) -> tuple[list[dict], int]:
  """The newest rejected responses that may be correct, and their number.

  Their JSON has at most `budget` bytes; repeated responses count once.
  """
  places = [x for group in index(path, doubtful=True).values() for x in group]
  rows: dict[tuple, dict] = {}
  newest = places[: -MAX_DOUBTFUL - 1 : -1] if budget else []
  for row in read(path, newest) if newest else []:
    rows.setdefault((row["answer"], row["response"]), row)
  out = list(rows.values())
  while sum(map(_size, out)) > budget:
    out.pop()
  return out, len(places)


def index(
    path: pathlib.Path, *, doubtful: bool = False
) -> dict[tuple, list[Place]]:
  """The lines of each group, by (stage, step, group or offset), in order.

  `doubtful`: only doubtful responses are wanted; else all others.
  """
  out: dict[tuple, list[Place]] = {}
  if not path.exists():
    return out
  with path.open("rb") as file:
    offset = 0
    for line in file:
      found = _HEAD.match(line)
      stage = found[1].decode() if found else ""
      wanted = (stage == DOUBTFUL) == doubtful
      if found and wanted and line.endswith(b"\n"):
        step = int(found[2])
        group = offset if found[3] is None else int(found[3])
        place = Place(offset, len(line))
        out.setdefault((stage, step, group), []).append(place)
      offset += len(line)
  return out


def read(path: pathlib.Path, places: list[Place]) -> list[dict]:
  """Parses lines; leaves damaged lines out."""
  out = []
  with path.open("rb") as file:
    for offset, size in places:
      file.seek(offset)
      with contextlib.suppress(ValueError, RecursionError):
        out.append(json_files.parse(file.read(size)))
  return [x for x in out if isinstance(x, dict)]


def groups(
    path: pathlib.Path, found: dict[tuple, list[Place]], budget: int
) -> tuple[list[dict], str]:
  """The groups that the page shows, and a note if some are left out.

  Returns:
    groups of at most `budget` bytes as stage, step, prompt, answer, discarded
    and responses. A response that does not fit has only its head and tail, and
    `gap` counts the tokens (or characters) between them.
  """
  steps = thin(list(dict.fromkeys(key[:2] for key in found)), MAX_STEPS)
  keys = [key for key in found if key[:2] in set(steps)]
  keys = thin(keys, MAX_GROUPS)
  full = [g for key in keys if (g := _group(read(path, found[key])))]
  short = [_shortened(group) for group in full]
  sizes = [_size(group) for group in short]
  kept = _fitting(sizes, budget)  # without their middles
  # The middles of the newest groups, as far as they fit.
  room = budget - sum(sizes[i] for i in kept)
  shown = {i: short[i] for i in kept}
  for i in reversed(kept):
    middle = _size(full[i]) - sizes[i]
    if middle <= room:
      shown[i], room = full[i], room - middle
  out = [shown[i] for i in kept]
  notes = []
  if len(out) < len(found):
    notes.append(f"{len(out)} of {len(found)} groups")
  cut = sum(1 for group in out for x in group["responses"] if x.get("gap"))
  if cut:
    notes.append(f"{cut} responses are cut in the middle")
  return out, f"{', '.join(notes)}; samples.jsonl has all." if notes else ""


def _group(rows: list[dict]) -> dict[str, Any] | None:
  """One group as the page reads it."""
  if not rows:
    return None
  first = rows[0]
  return dict(
      stage=first["stage"],
      step=first["step"],
      discarded=first.get("discarded", False),
      prompt=_ends(str(first["prompt"]), MAX_PROMPT),
      answer=_ends(str(first["answer"]), MAX_PROMPT),
      responses=[_response(row) for row in rows],
  )


def _response(row: dict) -> dict[str, Any]:
  """One response: its tokens with their numbers, or its text."""
  out = {k: row.get(k) for k in ("correct", "truncated", "reward")}
  out["advantage"] = row.get("advantage_mean")
  tokens = row.get("tokens")
  out["length"] = row.get("length", len(tokens or ""))
  if not tokens:
    return out | dict(text=[row["response"]])
  numbers = {}
  for name in NUMBERS:
    values = row.get(name)
    if isinstance(values, list) and values:
      same = all(x == values[0] for x in values)
      numbers[name] = values[0] if same else values
  return out | dict(tokens=tokens, numbers=numbers)


def _ends(text: str, size: int) -> str:
  if len(text) <= 2 * size:
    return text
  gap = f"[... {len(text) - 2 * size:,} characters ...]"
  return f"{text[:size]} {gap} {text[-size:]}"


def _shortened(group: dict[str, Any]) -> dict[str, Any]:
  """The group with head and tail of each response."""
  responses = []
  for response in group["responses"]:
    response = dict(response)
    if "tokens" in response:
      # Numbers belong to tokens: both are cut in the same place.
      n, end = len(response["tokens"]), END_TOKENS
      if n > 2 * end:
        tokens = response["tokens"]
        response["tokens"] = [*tokens[:end], *tokens[-end:]]
        response["numbers"] = {
            k: [*x[:end], *x[-end:]] if isinstance(x, list) else x
            for k, x in response["numbers"].items()
        }
        response["gap"] = n - 2 * end
    else:
      # Most responses are logged without tokens.
      (text,) = response["text"]
      end = END_CHARACTERS
      if len(text) > 2 * end:
        response["text"] = [text[:end], text[-end:]]
        response["gap"] = len(text) - 2 * end
    responses.append(response)
  return group | dict(responses=responses)


def _size(value: Any) -> int:
  """Bytes of a value on the page, where <, > and & take six."""
  text = json.dumps(value, separators=(",", ":"))
  return len(text) + 5 * sum(map(text.count, "<>&")) + 1


def _fitting(sizes: list[int], budget: int) -> list[int]:
  """Indices of items that fit: drops every other item until they do."""
  kept = list(range(len(sizes)))
  while sum(sizes[i] for i in kept) > budget:
    kept = kept[1 - len(kept) % 2 :: 2] if kept[1:] else []
  return kept


def pairs(
    path: pathlib.Path, found: dict[tuple, list[Place]], budget: int
) -> tuple[list[dict], str]:
  """Responses to the same held-out prompts, before and after RL.

  Their JSON has at most `budget` bytes; a note says if some do not fit.
  """
  keys = [key for key in found if key[0] == "evaluate"]
  rows = [
      row
      for key in keys
      if key[1] in (keys[0][1], keys[-1][1])
      for row in read(path, found[key])
  ]
  by_prompt: dict[str, dict] = {}
  for row in rows:
    side = {k: row[k] for k in ("step", "correct", "truncated")}
    side["response"] = _ends(row["response"], MAX_PROMPT)
    if row["step"] == rows[0]["step"]:
      prompt, answer = (_ends(row[k], MAX_PROMPT) for k in ("prompt", "answer"))
      one = dict(prompt=prompt, answer=answer, sides=[side])
      by_prompt[row["prompt"]] = one
    elif row["prompt"] in by_prompt:
      by_prompt[row["prompt"]]["sides"][1:] = [side]
  found_pairs = list(by_prompt.values())
  kept = _fitting([_size(pair) for pair in found_pairs], budget)
  shown = [found_pairs[i] for i in kept]
  note = f"{len(shown)} of {len(by_prompt)} prompts; samples.jsonl has all."
  return shown, note if len(shown) < len(by_prompt) else ""
