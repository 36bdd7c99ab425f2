"""Rows of plain text for language modelling (`streams.text`).

A document is a file that ends in .txt, or the column `text` of a row of any
other source. Its tokens stand between a BOS (EOS where the tokenizer has none)
and an EOS. A document that is longer than a row becomes several rows: each
begins with the last token of the row before it, so that every token is
predicted exactly once.
"""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rl_reason.base.structs import Array
from rl_reason.data import datasets, tokenizer

COLUMN, SUFFIX = "text", ".txt"


def read(
    field: str,
    sources: str,
    tok: Any,
    slots: int,
    say: Callable[[str], None],
    *,
    revisions: Mapping[str, str] = datasets.EMPTY,
) -> tuple[list[list[Array]], list[float]]:
  """Returns the rows of each source, token ids, and the weights of the sources.

  Args:
    field: field of the config, for messages.
    sources: sources in the syntax of data.train.
    tok: the tokenizer.
    slots: L, tokens of a row.
    say: shows a message.
    revisions: revisions of repositories on the hub by their ids.

  Raises:
    DataError: a source has no text.
  """
  parts, weights = [], []
  for source, weight in datasets.parse_all(sources, "train", revisions):
    found = list(_documents(source))
    texts = [x for x in found if isinstance(x, str) and x]
    lacking = len(found) - len(texts)
    why = f" ({lacking:,} lack the column {COLUMN!r})" * bool(lacking)
    about = f"{field}: {len(texts):,} of {len(found):,} documents of"
    about += f" {source.text}{why}"
    if not texts:
      raise datasets.DataError(
          f"{about}: none is left; name a file that ends in {SUFFIX}, or a"
          f" source whose rows have a column {COLUMN!r}"
      )
    ids = tokenizer.encode(tok, texts)
    rows = [row for x in ids for row in cut(_enclosed(x, tok), slots)]
    say(f"{about}: {sum(map(len, ids)):,} tokens in {len(rows):,} rows")
    parts.append(rows)
    weights.append(weight)
  if any(weights):
    return parts, [1.0 if x is None else x for x in weights]
  return parts, [float(len(x)) for x in parts]  # rows equally often


def cut(ids: list[int], slots: int) -> list[Array]:
  """Rows of at most `slots` tokens that share one token with the row before."""
  firsts = range(0, len(ids) - 1, slots - 1)
  return [np.array(ids[first : first + slots], np.int32) for first in firsts]


def pack(rows: list[Array], slots: int, pad: int) -> tuple[Array, Array, Array]:
  """Rows as prompts of one token and responses, as `packing.pack` takes them.

  Args:
    rows: token ids, B of them.
    slots: L.
    pad: token that fills the rest of a row.

  Returns:
    tokens [B, L] int32, start [B] int32 (zeros), mask [B, L - 1] bool.
  """
  tokens_BL = np.full((len(rows), slots), pad, np.int32)
  for b, row in enumerate(rows):
    tokens_BL[b, : len(row)] = row
  predicted_B1 = np.array([[len(row) - 1] for row in rows])
  return (
      tokens_BL,
      np.zeros(len(rows), np.int32),
      np.arange(slots - 1) < predicted_B1,
  )


def _enclosed(ids: list[int], tok: Any) -> list[int]:
  """The tokens of a document with what stands before and after them."""
  if tokenizer.prompt_start(tok):
    return [*tokenizer.begun(tok, ids), tok.eos_token_id]
  has_bos = tok.bos_token_id is not None
  before = tok.bos_token_id if has_bos else tok.eos_token_id
  return [before, *ids, tok.eos_token_id]


def _documents(source: datasets.Source) -> Iterator[Any]:
  """The text of each document; what is no text is no document."""
  place = pathlib.Path(source.place)
  if place.suffix == SUFFIX and place.is_file():
    try:
      text = place.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
      raise datasets.DataError(
          f"{place}: is not UTF-8 ({e}): convert it, as with iconv -t UTF-8"
      ) from None
    yield text
    return
  for _, row in datasets.read(source):
    yield (row or {}).get(COLUMN)
