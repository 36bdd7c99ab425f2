"""Continual learning: RL that starts where another run ended, and forgetting.

`rl.init` names a finished run, whose last state is the first one of this run;
each evaluation then measures what has been forgotten; see README.md.
"""

import pathlib
from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import field, path


def _checkpoints(workdir: str) -> str:
  """A hash of the checkpoints of RL: later stages add to a work directory."""
  from rl_reason.checks import path_contents

  return path_contents.of_files([pathlib.Path(workdir, "checkpoints", "rl")])


class _ContinualLearning(feature.Declaration):
  marks = {
      "movable": ("rl.init",),
      "content": {"rl.init": _checkpoints},
      "all_sets": ("rl.init",),
  }
  measures = {
      "forgetting/mean": (
          "forgetting",
          "best held-out score so far minus this one",
      )
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "rl",
        # Work directory of a finished run, from whose last state RL starts.
        init=path(),
        init_optimizer=field(True, needs="rl.init"),  # its optimizer state, too
    )

  def used(self, c) -> bool:
    return bool(c.rl.init)

  def files(self, c, tok, trains) -> Iterator[feature.Rule]:
    if not pathlib.Path(c.rl.init).is_dir():
      yield "rl.init", (
          "there is no such directory; name the work directory of a run"
      )

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.continual_learning import continued_run

    return continued_run.ContinuedRun(c, loop)


FEATURE = _ContinualLearning()
