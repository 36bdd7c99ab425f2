"""RL of reasoning language models in JAX, as a small set of pure functions.

`train` is the entry from Python; see `rl_reason/api.py`.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
  """`train`, imported when it is asked for: the package imports nothing."""
  if name != "train":
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  from rl_reason.api import train

  return train
