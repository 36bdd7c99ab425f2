"""Ordered lists: answers of `math` whose order counts, as in a sorting task.

A bare list, "7, 3, 5", is a set for `math`. Here it equals only a list, with or
without brackets, that has the same values in the same order. All other answers
are compared as in `math`.
"""

from rl_reason.verifiers import equality, lenient_match, lexer, math, numeric
from rl_reason.verifiers.value_types import Quantity, Seq

answer = math.answer
usable = math.usable
lenient = lenient_match.reading


def verify(text: str, reference: str, *, tolerance: float = 0.0) -> bool:
  """Whether the final answer is the reference answer, in its order.

  Args:
    text: a response; any text.
    reference: the correct answer, plain or LaTeX.
    tolerance: see `math.verify`.
  """
  if not math.verify(text, reference, tolerance=tolerance):
    return False
  if not math.is_bare_list(reference):
    return True
  found = answer(text) or ""
  try:
    ours, theirs = _items(reference), _items(found)
    pairs = zip(theirs, ours, strict=True)
    return all(equality.same(x, y) for x, y in pairs)
  except (lexer.Unreadable, numeric.Hard, RecursionError, ValueError):
    return False


def _items(text: str) -> tuple:
  """The values of a list in their order."""
  value = math.read(text)
  if isinstance(value, Quantity):
    value = value.value
  return value.items if isinstance(value, Seq) else (value,)
