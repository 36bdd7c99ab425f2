"""The stage `--stage=reward_model`: scores of responses from preferences.

A Bradley-Terry model on pairs of responses, which begins with the policy of
SFT; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import feature
from rl_reason.base.fields import choice, number, path, rate, section

_STYLES = "reward_model.chosen", "reward_model.rejected"


class _RewardModelStage(feature.Declaration):
  stages = {
      "reward_model": feature.Stage(
          run="rl_reason.features.reward_model_stage.reward_model:run",
          about="SFT, and a reward model",
          rate="reward_model.lr",
          rows=lambda c: {"reward_model.batch": 2 * c.reward_model.batch},
          other_names=("rm",),
      )
  }
  marks = {
      "smoke": {"reward_model.steps": 20, "reward_model.evaluate_pairs": 64},
      "sources": ("reward_model.samples",),
      "movable": ("reward_model.init",),
      "mixtures": _STYLES,
  }

  def fields(self, c) -> None:
    c.reward_model = section(  # --stage=reward_model
        "reward_model",
        steps=number(300, low=1),
        batch=number(64, low=1),  # pairs
        lr=rate(1e-3),
        schedule=choice("cosine", "constant", "linear"),
        chosen="",  # style:weight of correct responses; '' is any
        rejected="",  # style:weight of incorrect responses
        evaluate_pairs=number(1000, low=1),  # held out
        samples=path(),  # sources of pairs: of --stage=generate, or ratings
        init=path(),  # a reward model that goes on learning; '' is the policy
    )

  def used(self, c) -> bool:
    r = c.reward_model
    return bool(r.chosen or r.rejected or r.samples or r.init)

  def rules(self, c) -> Iterator[feature.Rule]:
    from rl_reason.checks import data_rules

    return data_rules.styles(c, _STYLES)


FEATURE = _RewardModelStage()
