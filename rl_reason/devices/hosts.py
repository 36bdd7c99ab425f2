"""Host data of the processes of a run: ownership of prompts, all-gather."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def own(ids: Sequence[int] | np.ndarray) -> np.ndarray:
  """Whether each prompt belongs to this process, by its id: bool, as `ids`."""
  return np.asarray(ids) % jax.process_count() == jax.process_index()


def everyones(value: Any) -> list[Any]:
  """The JSON values of all processes, in order; a collective operation."""
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
