"""Stop strings: texts that end a response, however it is split into tokens.

An automaton (Aho and Corasick 1975, doi:10.1145/360825.360855) reads the bytes
of the tokens: its state is the longest end of the text that begins a stop
string. A token moves the state, and may complete a string on its way. Both are
tables, so the decode loop finds the end on the device, at the token that
completes a string.

Shapes here: V tokens of the vocabulary; C classes of tokens that move every
state alike; S states; K bytes of the longest string; R rows of the queue; B
slots.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array

# The characters that byte-level vocabularies write for bytes.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [x for x in range(256) if x not in _PRINTED]
_BYTES = {chr(x): x for x in _PRINTED}
_BYTES |= {chr(256 + n): x for n, x in enumerate(_OTHERS)}
_UNKNOWN = "\ufffd"  # stands for bytes that are no character


class StopStrings:
  """Tells on the device whether a token ends a response.

  A static argument of the sampler, which compares it by identity.

  Args:
    tok: the tokenizer.
    vocab: V.
    strings: that end a response.
    ids: tokens that end a response, too, such as EOS.
  """

  def __init__(
      self, tok: Any, vocab: int, strings: Sequence[str], ids: Sequence[int]
  ):
    self._ids = np.array(ids)
    texts = [x.encode() for x in strings]
    self._window = max(map(len, texts)) - 1
    states_VS, hits_VS = _moves(token_bytes(tok), texts)
    known: dict[tuple[bytes, bytes], int] = {}
    # Slots of the vocabulary beyond the tokenizer are never sampled.
    self._class_V = np.zeros(max(vocab, len(states_VS)), np.int32)
    first = []  # token of each class
    for v, (states, hits) in enumerate(zip(states_VS, hits_VS, strict=True)):
      moves = states.tobytes(), hits.tobytes()
      if moves not in known:
        first.append(v)
      self._class_V[v] = known.setdefault(moves, len(known))
    self._states_CS, self._hits_CS = states_VS[first], hits_VS[first]

  def __call__(
      self, token_B: Array, tokens_RT: Array, row_B: Array, t_B: Array
  ) -> Array:
    """Whether the new tokens end their responses: bool [B].

    Args:
      token_B: the new tokens.
      tokens_RT: the responses before them.
      row_B: the row of each slot.
      t_B: the place of the new token in its response.
    """
    class_V = jnp.asarray(self._class_V)
    states_CS = jnp.asarray(self._states_CS, jnp.int32)
    # A string of n bytes has n tokens at most, so the last ones are enough.
    at_WB = t_B - jnp.arange(self._window, 0, -1)[:, None]
    before_WB = class_V[tokens_RT[row_B, jnp.maximum(at_WB, 0)]]

    def read(state_B, token):
      class_B, exists_B = token
      return jnp.where(exists_B, states_CS[class_B, state_B], 0), None

    start_B = jnp.zeros_like(token_B)
    state_B, _ = jax.lax.scan(read, start_B, (before_WB, at_WB >= 0))
    hit_B = jnp.asarray(self._hits_CS)[class_V[token_B], state_B] > 0
    return hit_B | jnp.isin(token_B, self._ids)


def _moves(
    pieces: Sequence[bytes], texts: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
  """The next state after each token, and whether it completes a text.

  Returns:
    int16 [V, S] and int16 [V, S]; state 0 is the beginning.
  """
  prefixes = sorted({x[:n] for x in texts for n in range(len(x))}, key=len)
  number = {prefix: n for n, prefix in enumerate(prefixes)}
  next_SX, hit_SX = np.zeros((2, len(prefixes), 256), np.int16)
  for n, prefix in enumerate(prefixes):
    for byte in range(256):
      text = prefix + bytes([byte])
      hit_SX[n, byte] = text.endswith(tuple(texts))
      tails = (text[i:] for i in range(len(text) + 1))
      next_SX[n, byte] = next(number[x] for x in tails if x in number)
  start_S = np.arange(len(prefixes), dtype=np.int16)
  states_VS = np.tile(start_S, (len(pieces), 1))
  hits_VS = np.zeros_like(states_VS)
  lengths_V = np.array([*map(len, pieces)])
  # Pad the tokens to one length.
  whole = b"".join(x.ljust(lengths_V.max(), b"\0") for x in pieces)
  bytes_VX = np.frombuffer(whole, np.uint8).reshape(len(pieces), -1)
  for at in range(lengths_V.max()):
    rows = np.flatnonzero(lengths_V > at)
    byte_V1 = bytes_VX[rows, at, None]
    hits_VS[rows] |= hit_SX[states_VS[rows], byte_V1]
    states_VS[rows] = next_SX[states_VS[rows], byte_V1]
  return states_VS, hits_VS


def token_bytes(tok: Any) -> list[bytes]:
  """The bytes that each token adds within a text."""
  ids = range(len(tok))
  names = tok.convert_ids_to_tokens([*ids])
  alone = tok.batch_decode([[i] for i in ids])
  # Decoders drop the space at the start of a text: decode after a letter.
  letters = (i for i in ids if alone[i].isascii() and alone[i].isalnum())
  first = next((i for i in letters if tok.decode([i, i]) == 2 * alone[i]), None)
  texts = alone
  if first is not None:
    after = tok.batch_decode([[first, i] for i in ids])
    texts = [x.removeprefix(alone[first]) for x in after]
  return [
      _raw(name) if _UNKNOWN in text else text.encode()
      for name, text in zip(names, texts, strict=True)
  ]


def _raw(name: str) -> bytes:
  """The bytes of a token that is no whole character, by its name."""
  if found := re.fullmatch("<0x([0-9A-F]{2})>", name):
    return bytes.fromhex(found[1])
  if all(x in _BYTES for x in name):
    return bytes(_BYTES[x] for x in name)
  return name.encode()
