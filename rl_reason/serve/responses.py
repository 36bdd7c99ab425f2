"""A response as a client sees it: text and tokens up to the first stop."""

from collections.abc import Collection, Sequence
from typing import Any

from rl_reason.data import tokenizer


class Response:
  """One response, which grows.

  Attributes:
    ids, logps: its tokens, the one that ends it included.
    pieces: the text of each token, '' for the one that ends it.
    text: so far, without a stop string.
    finish: 'stop', 'length', 'content_filter', 'error', or None if it goes on.

  Args:
    tok: the tokenizer.
    ends: ids that end a response, and are no text.
    stop: texts that end a response, and are cut off.
  """

  def __init__(self, tok: Any, ends: Collection[int], stop: Sequence[str] = ()):
    self.ids: list[int] = []
    self.logps: list[float] = []
    self.pieces: list[str] = []
    self.text = ""
    self.finish: str | None = None
    self._ends, self._stop = frozenset(ends), [x for x in stop if x]
    self._detokenizer = tokenizer.Detokenizer(tok)
    self._sent = 0  # characters

  def add(self, ids: list[int], logps: list[float], finish: str | None) -> None:
    """Adds new tokens; what is behind a stop is left out."""
    for token, logp in zip(ids, logps, strict=True):
      self.ids.append(token)
      self.logps.append(logp)
      ends = token in self._ends
      self.pieces.append("" if ends else self._detokenizer.add(token))
      if ends:
        finish = "stop"
      elif self._append(self.pieces[-1]):
        self.finish = "stop"
        return
      if ends:
        break
    if finish:
      stopped = self._append(self._detokenizer.rest())
      self.finish = "stop" if stopped else finish

  def _append(self, piece: str) -> bool:
    """Adds text; whether it completes a stop string."""
    first = max(0, len(self.text) - max(map(len, self._stop), default=0))
    self.text += piece
    found = [self.text.find(x, first) for x in self._stop]
    cut = min((x for x in found if x >= 0), default=-1)
    if cut >= 0:
      self.text = self.text[:cut]
    return cut >= 0

  def refuse(self) -> None:
    """Withholds all of it."""
    self.ids, self.logps, self.pieces, self.text = [], [], [], ""
    self.finish = "content_filter"

  def take(self) -> str:
    """Text that was not taken before, and cannot be part of a stop string."""
    pending = 0
    if not self.finish:
      ends = (x[:n] for x in self._stop for n in range(1, len(x)))
      pending = max((len(x) for x in ends if self.text.endswith(x)), default=0)
    first, self._sent = self._sent, max(self._sent, len(self.text) - pending)
    return self.text[first : self._sent]
