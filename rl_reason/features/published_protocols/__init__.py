"""Evaluations by published protocols: sampled as the source of a score does.

`evaluate.sampling = "published"` samples each known set by the protocol of its
source, and every evaluation says in what it differs from it; see README.md.
"""

from rl_reason.base import config, feature
from rl_reason.base.fields import choice


class _PublishedProtocols(feature.Declaration):
  marks = {
      "free": ("evaluate.sampling",),
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "evaluate",
        # --stage=evaluate: by these fields, or published: sets that have a
        # protocol are sampled by it.
        sampling=choice(
            *("config", "published"),
            needs="rows of files",
        ),
    )

  def used(self, c) -> bool:
    return c.evaluate.sampling == "published"

  def evaluator(self, c, stage: feature.Evaluating) -> feature.Evaluator:
    from rl_reason.features.published_protocols import protocols

    return protocols.Protocols(c, stage.display.say, replaces=self.used(c))


FEATURE = _PublishedProtocols()
