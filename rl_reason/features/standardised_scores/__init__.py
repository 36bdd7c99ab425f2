"""Scores of reward models, standardised by those of the run so far.

`reward.model_scale` and `reward.model_clip`; see README.md.
"""

from rl_reason.base import config, feature
from rl_reason.base.fields import choice, number


class _StandardisedScores(feature.Declaration):

  def fields(self, c) -> None:
    config.extend(
        c,
        "reward",
        # Of the scores of reward models in training; running: (score - mean) /
        # std of all scores of the run so far.
        model_scale=choice("none", "running", needs="a reward model"),
        # Bound of such a score, in standard deviations; 0 is off.
        model_clip=number(5.0, low=0, needs="reward.model_scale"),
    )

  def used(self, c) -> bool:
    return c.reward.model_scale == "running"

  def scale(self, c, term):
    from rl_reason.features.standardised_scores import running_scores

    return running_scores.RunningScores(term.label, c.reward.model_clip)


FEATURE = _StandardisedScores()
