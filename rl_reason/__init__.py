"""RL of reasoning language models in JAX, as a small set of pure functions.

`train` is the entry from Python; see `rl_reason/api.py`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
  # A clone needs no installation that would say it.
  raise (SystemExit if sys.argv[:1] == ["-m"] else ImportError)(
      "rl_reason needs Python 3.11 or newer, and {} is Python {}.{}: make an"
      " environment with a newer one, as by `python3.11 -m venv env`".format(
          sys.executable, *sys.version_info[:2]
      )
  )

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
  # `python -m rl_reason.main` searches the working directory first, where a
  # file of the user may have the name of a module of Python or of a library.
  sys.path.append(sys.path.pop(0))

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
  """`train`, imported when it is asked for: the package imports nothing."""
  if name != "train":
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  from rl_reason.api import train

  return train
