"""A response as a client sees it: text and tokens up to the first stop."""

import array
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rl_reason.data import tokenizer


class Stops:
  """What ends the responses to one request, besides their length.

  Attributes:
    ids: ids that end a response, and are no text.
    texts: texts that end a response, and are cut off.
    longest: characters of the longest text.

  Args:
    ids: as above.
    texts: as above; empty ones end nothing.
  """

  def __init__(self, ids: Collection[int] = (), texts: Sequence[str] = ()):
    self.ids, self.texts = frozenset(ids), [x for x in texts if x]
    self.longest = max(map(len, self.texts), default=0)
    starts = {x[:n] for x in self.texts for n in range(1, len(x))}
    self._starts = tuple(sorted(starts, key=len, reverse=True))

  def pending(self, text: str) -> int:
    """Characters at the end of a text with which a stop text may begin."""
    if not text.endswith(self._starts):
      return 0
    return next(len(x) for x in self._starts if text.endswith(x))


class Response:
  """One response, which grows.

  Attributes:
    ids, logps: its tokens, the one that ends it included.
    pieces: the text of each token, '' for the one that ends it.
    text: so far, without a stop string.
    finish: 'stop', 'length', 'content_filter', 'error', or None if it goes on.

  Args:
    tok: the tokenizer.
    stops: of the request.
  """

  def __init__(self, tok: Any, stops: Stops):
    # A request may have millions of tokens: 16 bytes each, and the text.
    self.ids, self.logps = array.array("i"), array.array("f")
    self.pieces: list[str] = []  # equal ones are one object
    self.text = ""
    self.finish: str | None = None
    self._stops = stops
    self._detokenizer = tokenizer.Detokenizer(tok)
    self._sent = 0  # characters

  def add(self, ids: list[int], logps: list[float], finish: str | None) -> None:
    """Adds new tokens; what is behind a stop is left out."""
    for token, logp in zip(ids, logps, strict=True):
      self.ids.append(token)
      self.logps.append(logp)
      ends = token in self._stops.ids
      piece = "" if ends else self._detokenizer.add(token)
      self.pieces.append(sys.intern(piece))
      if ends:
        finish = "stop"
      elif self._append(piece):
        self.finish = "stop"
        return
      if ends:
        break
    if finish:
      stopped = self._append(self._detokenizer.rest())
      self.finish = "stop" if stopped else finish

  def _append(self, piece: str) -> bool:
    """Adds text; whether it completes a stop string."""
    first = max(0, len(self.text) - self._stops.longest)
    self.text += piece
    found = [self.text.find(x, first) for x in self._stops.texts]
    cut = min((x for x in found if x >= 0), default=-1)
    if cut >= 0:
      self.text = self.text[:cut]
    return cut >= 0

  def refuse(self) -> None:
    """Withholds all of it."""
    del self.ids[:], self.logps[:], self.pieces[:]
    self.text, self.finish = "", "content_filter"

  def take(self) -> str:
    """Text that was not taken before, and cannot be part of a stop string."""
    pending = 0 if self.finish else self._stops.pending(self.text)
    first, self._sent = self._sent, max(self._sent, len(self.text) - pending)
    return self.text[first : self._sent]
