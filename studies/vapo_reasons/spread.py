"""Decisions spread over a response of 256 tokens, and an end that is free.

A letter of the prompt is a bit, and a capital letter is 1: `aBcDefGhijKl:`. A
response has a part for each third letter: 63 tokens that decide nothing and are
always the same, then the letter's bit, which alone is right or wrong.
Demonstrations have the wrong bit in one of four, so that 32% of the responses
of a policy that imitates them are right: .75^4. After the last bit come tokens
that mean nothing, on average `REST` of them, until the response ends. A
response is right if its bits are, however it goes on: an advantage that favours
or disfavours the end changes the length of responses and nothing else, until
they are truncated.
"""

import numpy as np

from rl_reason.tasks import Row
from rl_reason.tasks.xor import in_case

PARTS, FILLER, REST = 4, 63, 24
LETTERS = "abcdefghijkl"
BITS = "01"
FIRST, IDLE = 0x4E00, "~"
BETWEEN = [
    "".join(chr(FIRST + FILLER * part + i) for i in range(FILLER))
    for part in range(PARTS)
]
ALPHABET = LETTERS + LETTERS.upper() + BITS + ":" + IDLE + "".join(BETWEEN)
DIFFICULTIES = (1,)
STYLES = ("noisy", "right", "wrong")
SHARE = 0.75  # of the bits that `noisy` has right
UNFINISHED = 0.5  # of the responses in the style `wrong`
LONGEST = PARTS * (FILLER + 1)
MAX_RESPONSE = LONGEST + 6 * REST


def longest(difficulty: int) -> str:
  """A prompt of the maximum length."""
  del difficulty
  return LETTERS + ":"


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """Random bits."""
  bits = rng.integers(0, 2, len(LETTERS))
  text = "".join(map(str, bits[:: len(LETTERS) // PARTS]))
  return Row(in_case(LETTERS, bits) + ":", text, difficulty)


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """A response in one of STYLES; `wrong` has a wrong bit or ends too early."""
  share = dict(noisy=SHARE, right=1.0, wrong=0.5)[style]
  right = rng.random(PARTS) < share
  if style == "wrong":
    right[rng.integers(PARTS)] = False
  bits = "".join(
      bit if good else BITS[bit == "0"]
      for bit, good in zip(row.answer, right, strict=True)
  )
  idle = min(int(rng.geometric(1 / REST)), MAX_RESPONSE - LONGEST - 1)
  parts = "".join(x + bit for x, bit in zip(BETWEEN, bits, strict=True))
  if style == "wrong" and rng.random() < UNFINISHED:
    return parts[: rng.integers(1, LONGEST)]
  return parts + IDLE * idle


def answer(text: str, row: Row) -> str:
  """The bits of a response that has all parts; '' of another one."""
  del row
  bits = "".join(x for x in text if x in BITS)
  parts = "".join(x + bit for x, bit in zip(BETWEEN, bits, strict=False))
  if len(bits) != PARTS or text.rstrip(IDLE) != parts:
    return ""
  return bits


def verify(text: str, row: Row) -> bool:
  """Whether the response has all parts with the right bits."""
  return answer(text, row) == row.answer
