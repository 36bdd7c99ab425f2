"""Values of prefixes by continuations: VinePPO (arXiv:2410.01679, section 4).

They are an input of an advantage function, such as `process.vine`, which asks
for them by the name of its parameter; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import number
from rl_reason.checks import config_facts

_INPUT, _NEED = "prefix_returns_BT", "continuations"


def _reads(c) -> bool:
  """Whether the advantage is computed from continuations of prefixes."""
  return _INPUT in config_facts.advantage_inputs(c)


class _PrefixValues(feature.Declaration):
  inputs = {"advantage": (_INPUT,)}
  needs = {
      _NEED: lambda c: (
          not _reads(c)
          and f"{c.advantage.name} reads no continuations, as vine does"
      )
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "advantage",
        # Of each prefix that ends with a step.
        continuations=number(4, low=1, needs=_NEED),
    )

  def used(self, c) -> bool:
    return _reads(c)

  def rules(self, c) -> Iterator[feature.Rule]:
    """Our sampler continues prefixes, and verdicts judge the continuations."""
    name, r = c.advantage.name, c.rollout
    slots = r.slots or r.batch
    if c.reward.process == "none":
      return  # the advantage asks for process rewards
    if c.advantage.continuations > slots:
      yield "advantage.continuations", f"must not exceed the {slots} slots"
    for field, value, off in (
        ("rollout.engine.name", r.engine.name, "own"),
        ("rollout.replay_routing", r.get("replay_routing", False), False),
        ("reward.shuffle", c.reward.shuffle, False),
        ("reward.process", c.reward.process, "rewards"),
        ("reward.truncated", c.reward.truncated, "terminal"),
        ("kl.place", c.kl.place, "loss"),
    ):
      if value != off:
        yield field, f"{name} continues prefixes of responses: use {off!r}"
    if feature.first(c, "sizes") is not None:
      yield "rollout.group_sizes.name", (
          f"{name} continues prefixes of responses: use 'equal'"
      )
    if config_facts.reward_models(c):
      yield "reward.functions", (
          f"{name} continues prefixes, in batches of another size than reward"
          " models score: leave them out"
      )
    if c.reward.get("model_scale") == "running":
      yield "reward.model_scale", (
          f"{name} samples continuations, whose scores would enter the running"
          " statistics: set it to 'none'"
      )

  def collector(self, c, session, engine, purpose: str) -> tuple[type, dict]:
    from rl_reason.devices import sharding
    from rl_reason.features.prefix_values import continuing_collector
    from rl_reason.stages import build_step

    shards = sharding.num_shards(engine.mesh, "batch")
    count, slots = c.advantage.continuations, c.rollout.slots or c.rollout.batch
    return continuing_collector.ContinuingCollector, dict(
        continuations=count,
        prefixes=max(slots // shards // count, 1) * shards,
        reward=build_step.reward(c),
        steps=c.rl.steps,
    )


FEATURE = _PrefixValues()
