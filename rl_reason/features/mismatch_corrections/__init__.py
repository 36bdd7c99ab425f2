"""Corrections of the mismatch between the sampler and the trainer.

`correction.name` names a function of the two policies' log-probs, whose result
multiplies the advantages; see README.md.
"""

import functools
from collections.abc import Callable

from rl_reason.base import feature, functions
from rl_reason.base.fields import function
from rl_reason.base.function_kinds import Kind

_KIND = "correction"


class _MismatchCorrections(feature.Declaration):
  kinds = {
      _KIND: Kind(
          _KIND,
          ("features.mismatch_corrections.corrections",),
          ("old_logps_BT", "sampler_logps_BT", "mask_BT", "advantages_BT"),
          off="none",
          results=("BT", "B1"),
      )
  }
  remedies = {
      "Sampler-trainer mismatch": "correction.name 'truncate' or 'two_sided'"
  }
  marks = {
      "corrects": {f"{_KIND}.name": "truncate"},
      "replayed": (f"{_KIND}.",),
      "shown": {f"{_KIND}.name": "correction {}"},
  }

  def fields(self, c) -> None:
    c.correction = function(_KIND)  # of sampler/trainer mismatch: truncate

  def used(self, c) -> bool:
    return c.correction.name != "none"

  def early_logps(self, c) -> bool:
    return True

  def adjustment(self, c) -> Callable:
    from rl_reason.features.mismatch_corrections import corrections

    return functools.partial(
        corrections.corrected, correction=functions.bind(_KIND, c.correction)
    )


FEATURE = _MismatchCorrections()
