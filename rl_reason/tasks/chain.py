"""A rare long chain: a value that is guessed at once or written out in full.

A letter of the prompt is an instruction for a value from 0 to 9 that begins at
0: a capital letter adds 1, a small letter multiplies by 3, both modulo 10. The
response states the last value, `7`, which is a guess and right one time in ten,
or writes the chain out, with the value after each letter: `a0b1c3d9...`. A
small transformer learns to compute one step, and cannot compute many at once.
The first token of the response is the decision.

Difficulties 1 and 2 have 32 letters, a chain of 64 tokens; 3 and 4 have 64
letters, a chain of 128 tokens. Difficulties 5 and 6 have 64 letters and four
tokens for each: the letter, the instruction, and the values before and after
it, `aA01bb13cC34...`, a chain of 256 tokens. The prompts of 1, 3 and 5 end with
`!` and ask for the chain. Those of 2, 4 and 6 end with `:` and leave the choice
to the response; in the style `mixed`, 3% of their demonstrations write the
chain out.
"""

import string

import numpy as np

from rl_reason.tasks import Row
from rl_reason.tasks.xor import in_case

LETTERS = string.ascii_lowercase + "αβγδεζηθικλμνξοπρστυφχψω" + "бвгджзийклмнпф"
ALPHABET = LETTERS + LETTERS.upper() + string.digits + ":!"
SIZES = {1: 32, 2: 32, 3: 64, 4: 64, 5: 64, 6: 64}  # letters
DIFFICULTIES = tuple(SIZES)
ASKED = (1, 3, 5)
IN_FULL = (5, 6)  # four tokens for a letter; two in the others
STYLES = ("mixed", "steps")  # steps: every chain is written out
SHARE = 0.03  # of the chains that `mixed` writes out
MAX_RESPONSE = 4 * len(LETTERS) + 1
BEHAVIOURS = {"written_out": "^a[aA0-9]"}


def longest(difficulty: int) -> str:
  """A prompt of the maximum length."""
  return LETTERS[: SIZES[difficulty]] + ":"


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """Random instructions; the answer is the last value."""
  letters = LETTERS[: SIZES[difficulty]]
  prompt = in_case(letters, rng.integers(0, 2, len(letters)))
  mark = "!" if difficulty in ASKED else ":"
  return Row(prompt + mark, _chain(prompt, difficulty)[-1], difficulty)


def renumber(row: Row, rng: np.random.Generator) -> Row:
  """Other instructions of the same letters, and their last value."""
  letters, mark = [x.lower() for x in row.prompt[:-1]], row.prompt[-1]
  prompt = in_case(letters, rng.integers(0, 2, len(letters)))
  return Row(prompt + mark, _chain(prompt, row.difficulty)[-1], row.difficulty)


def rename(row: Row, rng: np.random.Generator) -> Row:
  """The same instructions, whose letters change places; the answer stays."""
  letters, mark = row.prompt[:-1], row.prompt[-1]
  others = [letters[i].lower() for i in rng.permutation(len(letters))]
  prompt = in_case(others, [x.isupper() for x in letters])
  return Row(prompt + mark, row.answer, row.difficulty)


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """A response in one of STYLES: a chain, or the last value alone."""
  asked = row.difficulty in ASKED
  if asked or style == "steps" or rng.random() < SHARE:
    return _chain(row.prompt[:-1], row.difficulty)
  return row.answer


def answer(text: str, row: Row) -> str:
  """The last value of a response."""
  del row
  return text[-1:]


def verify(text: str, row: Row) -> bool:
  """Whether a response is the last value, or the chain without an error."""
  chain = _chain(row.prompt[:-1], row.difficulty)
  return text == chain or (text == row.answer and row.difficulty not in ASKED)


def _chain(letters: str, difficulty: int) -> str:
  """The letters in lower case, with the value after each."""
  out, value = "", 0
  for letter in letters:
    before = f"{letter}{value}" if difficulty in IN_FULL else ""
    value = (value + 1 if letter.isupper() else 3 * value) % 10
    out += f"{letter.lower()}{before}{value}"
  return out
