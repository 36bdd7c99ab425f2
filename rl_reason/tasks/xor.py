"""Parities of blocks of eight bits, written out or guessed at once.

A letter of the prompt is a bit, and a capital letter is 1. Prompt
`aBcdEfghIjklmnoPqrstuvwx:`: three blocks of eight letters. The response states
the parity of each block after its last letter: `h0p0x0`. A block may also be
written out, with the parity so far after each letter:
`a0b1c1d1e0f0g0h0p0x0`. A small transformer learns to compute one step, and
cannot compute the parity of a block at once, which is right half of the time.

Difficulty 1 is a single block. Difficulty 2 names one to three of four blocks
in the prompt (`...13:`), which the response has to write out. Difficulty 3 has
three blocks and leaves the choice to the response. In the style `mixed` the
demonstrations of difficulty 3 write out 5% of their blocks, and all three in
one of 8,000 responses; no demonstration of difficulty 2 writes out all blocks.
"""

import string
from collections.abc import Iterable, Sequence

import numpy as np

from rl_reason.tasks import Row

SIZE = 8  # letters of a block
LETTERS = string.ascii_lowercase + "αβγδεζ"  # four blocks
ALPHABET = LETTERS + LETTERS.upper() + "01234:"
DIFFICULTIES = SINGLE, NAMED, FREE = 1, 2, 3
BLOCKS = {SINGLE: 1, NAMED: 4, FREE: 3}
MAX_RESPONSE = 2 * len(LETTERS) + 1
STYLES = ("mixed", "steps")  # steps: every block is written out
# Blocks that are written out: their first letters.
BEHAVIOURS = {"written_out": f"[{LETTERS[::SIZE]}][01]"}
SHARE = 0.05  # of the blocks that `mixed` writes out


def longest(difficulty: int) -> str:
  """A prompt of the maximum length."""
  named = "123" if difficulty == NAMED else ""
  return LETTERS[: SIZE * BLOCKS[difficulty]] + named + ":"


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """Random bits, and the blocks to write out; the answer are the parities."""
  count, first, named = BLOCKS[difficulty], 0, ""
  if difficulty == SINGLE:
    first = SIZE * int(rng.integers(BLOCKS[NAMED]))
  if difficulty == NAMED:
    chosen = rng.permutation(count)[: rng.integers(1, count)] + 1
    named = "".join(map(str, sorted(chosen)))
  letters = LETTERS[first : first + SIZE * count]
  bits = rng.integers(0, 2, len(letters))
  prompt = in_case(letters, bits)
  answer = "".join(str(x) for x in bits.reshape(-1, SIZE).sum(1) % 2)
  return Row(f"{prompt}{named}:", answer, difficulty)


def renumber(row: Row, rng: np.random.Generator) -> Row:
  """Other bits of the same letters, and their parities."""
  letters = row.prompt.rstrip(":1234").lower()
  bits = rng.integers(0, 2, len(letters))
  cases = in_case(letters, bits)
  answer = "".join(str(x) for x in bits.reshape(-1, SIZE).sum(1) % 2)
  return Row(cases + row.prompt[len(letters) :], answer, row.difficulty)


def rename(row: Row, rng: np.random.Generator) -> Row:
  """The same bits, whose letters change places; the answer stays."""
  letters = row.prompt.rstrip(":1234")
  order = rng.permutation(len(letters))
  others = [letters[i].lower() for i in order]
  cases = in_case(others, [x.isupper() for x in letters])
  return Row(cases + row.prompt[len(letters) :], row.answer, row.difficulty)


def in_case(letters: Sequence[str], upper: Iterable[bool]) -> str:
  """The letters, in upper case where `upper` says so."""
  pairs = zip(letters, upper, strict=True)
  return "".join(x.upper() if up else x for x, up in pairs)


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """A correct response in one of STYLES."""
  blocks, named = _read(row.prompt)
  written = rng.random(len(blocks)) < SHARE
  if row.difficulty == NAMED:
    written = np.isin(np.arange(len(blocks)), named)
  if row.difficulty == SINGLE or style == "steps":
    written[:] = True
  out = ""
  for block, whole in zip(blocks, written, strict=True):
    steps = [f"{letter}{parity}" for letter, parity in block.items()]
    out += "".join(steps if whole else steps[-1:])
  return out


def answer(text: str, row: Row) -> str:
  """The parities after the last letters of the blocks."""
  lasts = [next(reversed(block)) for block in _read(row.prompt)[0]]
  stated = dict(zip(text[::2], text[1::2], strict=False))
  return "".join(stated.get(x, "") for x in lasts)


def verify(text: str, row: Row) -> bool:
  """Whether every stated parity is correct, so that errors cannot cancel.

  The letters must be in order, with the last letter of each block among them,
  and all letters of blocks that the prompt names.
  """
  blocks, named = _read(row.prompt)
  known = {x: parity for block in blocks for x, parity in block.items()}
  stated = text[::2]
  needed = {next(reversed(block)) for block in blocks}
  needed |= {x for k in named for x in blocks[k]}
  in_order = list(stated) == [x for x in known if x in {*stated}]
  correct = all(
      str(known.get(x)) == y for x, y in zip(stated, text[1::2], strict=False)
  )
  return len(text) % 2 == 0 and in_order and needed <= {*stated} and correct


def blocks(
    response, row: Row, *, so_far: bool = False
) -> list[tuple[int, float]]:
  """A reward for each block, at the parity after its last letter.

  For `reward.functions`, as "rl_reason.tasks.xor:blocks". A block that is
  stated with correct parities only, its letters in order, is rewarded with 1
  divided by the number of blocks, another one with 0. The blocks after a block
  whose last letter is missing are no steps.

  Keyword: with so_far, a block counts only after correct blocks. These numbers
  are potentials: they fall to 0 as soon as the response cannot be correct.
  """
  text, out, start = response.text, [], 0
  found, _ = _read(row.prompt)
  for block in found:
    last = text.find(next(reversed(block)), start)
    if last < 0 or last + 1 == len(text):
      break
    end = last + 2
    pairs = [text[i : i + 2] for i in range(start, end, 2)]
    stated = [f"{x}{parity}" for x, parity in block.items()]
    correct = pairs == [x for x in stated if x in pairs]
    correct &= not so_far or all(reward for _, reward in out)
    out.append((end, correct / len(found)))
    start = end
  return out


def _read(prompt: str) -> tuple[list[dict[str, int]], list[int]]:
  """Letters of each block with the parity so far, and the named blocks."""
  letters = prompt.rstrip(":1234")
  named = [int(x) - 1 for x in prompt[len(letters) : -1]]
  blocks = []
  for k in range(0, len(letters), SIZE):
    block = letters[k : k + SIZE]
    parities = np.cumsum([x.isupper() for x in block]) % 2
    blocks.append(dict(zip(block.lower(), parities.tolist(), strict=True)))
  return blocks, named
