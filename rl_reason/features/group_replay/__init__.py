"""Replay of older groups (`rollout.replay`): experience replay, bounded by age.

Each batch has some graded groups of earlier steps in place of new ones, and the
policy samples fewer responses; see README.md.
"""

import pathlib
from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import number, path
from rl_reason.checks import config_facts

# Arrays of an advantage that are of the responses of its own step.
_OF_STEP = {"past_rewards_H", "prefix_returns_BT"}


class _GroupReplay(feature.Declaration):
  marks = {
      "movable": ("rollout.replay_from",),
      "older_groups": ("rollout.replay",),
      "older_policy": ("rollout.replay",),
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "rollout",
        # Groups of earlier steps in each batch, in place of new ones.
        replay=number(
            0,
            low=0,
            not_with={
                "rl.staleness": "batches in flight would be without them",
                "rollout.group_sizes.name": (
                    "groups of different sizes do not fill the same places"
                ),
            },
        ),
        # Directory of --stage=generate with keep = "all": the first older
        # groups.
        replay_from=path(
            needs="rollout.replay",
            not_with={
                "reward.functions": "files have no scores of single functions",
                "rollout.replay_routing": "files have no experts",
                "kl.privileged": "files have no reference answers",
            },
        ),
        replay_age=number(
            4, low=1, needs="rollout.replay"
        ),  # RL steps, at most
    )

  def used(self, c) -> bool:
    return bool(c.rollout.replay)

  def rules(self, c) -> Iterator[feature.Rule]:
    r = c.rollout
    prompts = r.batch // r.group_size
    if r.replay >= prompts:
      yield "rollout.replay", (
          f"must be less than the {prompts} groups of a batch, some of which"
          " are new"
      )
    if not feature.marked("corrects", c):
      yield "rollout.replay", (
          "an older policy has sampled replayed groups: their importance"
          " weights are the correction: set correction.name = 'truncate'"
      )
    if _OF_STEP & {*config_facts.advantage_inputs(c)}:
      yield "rollout.replay", (
          f"{c.advantage.name} reads responses of its own step: set it to 0, or"
          " another advantage.name"
      )
    if r.replay_from and config_facts.type_field(c) and r.types != "difficulty":
      yield "rollout.replay_from", (
          f"files have no {r.types} as the run counts it: set rollout.types ="
          " 'difficulty'"
      )

  def files(self, c, tok, trains) -> Iterator[feature.Rule]:
    place = c.rollout.replay_from
    if place and not pathlib.Path(place).is_dir():
      yield "rollout.replay_from", (
          "there is no such directory; name one of --stage=generate, such as"
          " WORKDIR/generated/STEP"
      )

  def arrays(self, c) -> dict:
    from rl_reason.features.group_replay import older_groups

    return older_groups.empty(c)

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.group_replay import older_groups

    return older_groups.start(c, loop)


FEATURE = _GroupReplay()
