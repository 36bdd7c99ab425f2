"""The text of a phase: 'until=20; task.difficulties=(2, 3); refresh=reference'.

A phase has the end `until`, a step of the whole run; the fields of the config
that are other ones in this phase; and what is new at its start, `refresh`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNTIL, REFRESH = "until", "refresh"
REFERENCE, OPTIMIZER = "reference", "optimizer"


class Phase(NamedTuple):
  """A part of RL.

  Attributes:
    until: step of the whole run at which the phase ends.
    fields: full name of a field -> its value as text.
    refresh: 'reference', 'optimizer', both or nothing.
  """

  until: int
  fields: Mapping[str, str]
  refresh: tuple[str, ...] = ()


def parse(texts: Sequence[str]) -> tuple[Phase, ...]:
  """The phases of a config.

  Raises:
    ValueError: a text has another form, or phases end in another order.
  """
  out: list[Phase] = []
  for text in texts:
    if not isinstance(text, str):
      raise ValueError(f"{text!r} is no text such as 'until=20; seed=1'")
    items = [x.strip() for x in text.split(";") if x.strip()]
    pairs = [[y.strip() for y in x.partition("=")[::2]] for x in items]
    fields = dict(pairs)
    if len(fields) < len(pairs) or not all(map(all, pairs)):
      raise ValueError(
          f"{text!r}: must look like 'until=20; FIELD=VALUE; ...', each name"
          " once"
      )
    end, last = fields.pop(UNTIL, ""), out[-1].until if out else 0
    if not end.isdigit() or int(end) <= last:
      raise ValueError(
          f"{text!r}: until must be a step of the run after step {last}"
      )
    refresh = [x.strip() for x in fields.pop(REFRESH, "").split(",") if x]
    if wrong := sorted({*refresh} - {REFERENCE, OPTIMIZER}):
      raise ValueError(
          f"{text!r}: refresh = {wrong[0]}: must be {REFERENCE}, {OPTIMIZER} or"
          " both, with a comma"
      )
    if refresh and not out:
      raise ValueError(
          f"{text!r}: refresh: the first phase has no earlier state: leave it"
          " out"
      )
    out.append(Phase(int(end), fields, tuple(refresh)))
  return tuple(out)


def lengths(phases: Sequence[Phase]) -> tuple[int, ...]:
  """RL steps of each phase."""
  ends = [0, *(x.until for x in phases)]
  return tuple(b - a for a, b in zip(ends, ends[1:], strict=False))


def with_ends(texts: Sequence[str], ends: Sequence[int]) -> tuple[str, ...]:
  """The texts of phases that end elsewhere."""
  out = []
  for text, end in zip(texts, ends, strict=True):
    items = [x.strip() for x in text.split(";")]
    kept = [x for x in items if x.partition("=")[0].strip() != UNTIL]
    out.append("; ".join(filter(None, [f"{UNTIL}={end}", *kept])))
  return tuple(out)
