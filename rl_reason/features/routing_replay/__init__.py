"""Training with the experts that the sampler chose (`rollout.replay_routing`).

The sampler records the experts of each token, which the forward passes of
training repeat; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import field


class _RoutingReplay(feature.Declaration):
  remedies = {
      "Log-probs of another policy": "rollout.replay_routing True for experts"
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "rollout",
        # Train with the experts that the sampler chose.
        replay_routing=field(False, needs="model.experts"),
    )

  def used(self, c) -> bool:
    return c.rollout.replay_routing

  def rules_of_model(self, c) -> Iterator[feature.Rule]:
    if c.model.experts and c.rollout.engine.name != "own":
      yield "rollout.engine.name", (
          "engines return no routes: leave it out, or set"
          " rollout.replay_routing = False"
      )

  def recorder(self, c):
    from rl_reason.features.routing_replay import recorded_routes

    return recorded_routes.RECORDER

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.routing_replay import recorded_routes

    return recorded_routes.Routes()


FEATURE = _RoutingReplay()
