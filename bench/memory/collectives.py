"""What a compiled program sends between devices, from its text."""

import math
import re

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_OP = re.compile(
    rf"^\s*(?:ROOT )?%?\S+ = (.+?) ({'|'.join(KINDS)})(?:-start)?\(", re.M
)
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+)(?:e\d+m\d+\w*)?\[([\d,]*)\]")
_CALL = re.compile(
    r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def size_of(text: str) -> int:
  """Bytes of the largest array of a type such as (f32[8,4], u32[])."""
  sizes = [0]
  for kind, shape in _SHAPE.findall(text):
    bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
    sizes.append(
        math.prod(map(int, filter(None, shape.split(",")))) * bits // 8
    )
  return max(sizes)


def largest(text: str, most: int = 3) -> list[dict]:
  """The collectives that move most, each with its number of calls.

  Args:
    text: of a compiled program.
    most: length of the result.

  Returns:
    for each kind and size: kind, bytes of the result on a device, and calls of
    one run of the program. Loops whose length depends on the data (over
    micro-batches) count once.
  """
  bodies, entry = {}, ""
  for block in re.split(r"\n(?=\S)", text):
    head = re.match(r"(ENTRY )?%?([\w.-]+) \(", block)
    if head:
      bodies[head[2]] = block
      entry = head[2] if head[1] else entry
  calls: dict[tuple[str, int], int] = {}

  def walk(name: str, times: int) -> None:
    for line in bodies[name].splitlines()[1:]:
      if op := _OP.match(line):
        key = op[2], size_of(op[1])
        calls[key] = calls.get(key, 0) + times
      trips = _TRIPS.search(line)
      inner = times * int(trips[1]) if trips else times
      called = _CALL.findall(line)
      for group in _BRANCHES.findall(line):
        called += [x.strip(" %") for x in group.split(",")]
      for other in called:
        if other in bodies:
          walk(other, inner)

  walk(entry, 1)
  ranked = sorted(calls.items(), key=lambda x: -x[0][1] * x[1])
  return [
      dict(kind=kind, bytes=size, calls=count)
      for (kind, size), count in ranked[:most]
  ]
