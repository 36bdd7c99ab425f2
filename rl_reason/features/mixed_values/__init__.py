"""A mixture of the pretrained critic and the critic in training.

`critic.value_mixture` names the function of the two; see README.md.
"""

import functools
from collections.abc import Callable

from rl_reason.base import config, feature
from rl_reason.base.fields import function
from rl_reason.base.function_kinds import Kind
from rl_reason.checks import config_facts

_KIND = "value_mixture"
_FIELD = f"critic.{_KIND}"


class _MixedValues(feature.Declaration):
  kinds = {
      _KIND: Kind(
          _FIELD,
          ("features.mixed_values.critic_mixture",),
          ("pretrained_BT", "values_BT", "progress", "explained_variance"),
          off="none",
          results=("BT",),
      )
  }
  marks = {"first_critic": (_FIELD,), "replayed": (f"{_FIELD}.",)}

  def fields(self, c) -> None:
    config.extend(
        c,
        "critic",
        # With the pretrained critic.
        value_mixture=function(_KIND, needs="critic.pretrain_steps"),
    )

  def used(self, c) -> bool:
    return c.critic.value_mixture.name != "none"

  def passes(self, c) -> float:
    return 1

  def advantage(self, c, advantage: Callable) -> Callable:
    from rl_reason.base import functions
    from rl_reason.features.mixed_values import critic_mixture

    return functools.partial(
        critic_mixture.advantage_of,
        advantage=advantage,
        mix=functions.bind(_KIND, c.critic.value_mixture),
        gamma=config_facts.discount(c),
    )

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.mixed_values import critic_mixture

    return critic_mixture.Pretrained(loop.values)


FEATURE = _MixedValues()
