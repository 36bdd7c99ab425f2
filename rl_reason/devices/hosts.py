"""What the processes of a run tell each other, apart from arrays of devices."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def own(ids: Sequence[int] | np.ndarray) -> np.ndarray:
  """Which prompts belong to this process, by their ids: bool, as `ids`."""
  return np.asarray(ids) % jax.process_count() == jax.process_index()


def everyones(value: Any) -> list[Any]:
  """The value of each process, on all of them; all processes call it.

  Args:
    value: what JSON can carry.
  """
  if jax.process_count() == 1:
    return [value]
  data = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(data)))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[: len(data)] = data
  found = multihost_utils.process_allgather(padded)
  return [
      json.loads(bytes(x[:size])) for x, size in zip(found, sizes, strict=True)
  ]
