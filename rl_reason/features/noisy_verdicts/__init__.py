"""Noisy verdicts: a share of them is wrong in training (`reward.flip`).

How much noise an algorithm bears; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import number


class _NoisyVerdicts(feature.Declaration):
  marks = {
      "not_replayed": {
          "reward.flip": "flips verdicts of the batch as it is collected"
      },
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "reward",
        # Share of the verdicts that are wrong, in training alone.
        flip=number(
            0.0,
            low=0,
            high=1,
            needs="a verdict",
            not_with={"reward.shuffle": "which permutes all verdicts"},
        ),
    )

  def used(self, c) -> bool:
    return c.reward.flip > 0

  def rules(self, c) -> Iterator[feature.Rule]:
    own = feature.Declaration.collector
    for one in feature.used(c):
      if one is not self and type(one).collector is not own:
        name = type(one).__module__.rpartition(".")[2]
        yield "reward.flip", (
            f"{name} collects responses itself, without noise in its verdicts:"
            " leave one of them out"
        )

  def collector(self, c, session, engine, purpose: str) -> tuple[type, dict]:
    from rl_reason.devices.randomness import host_seed
    from rl_reason.features.noisy_verdicts import flipping_collector

    return flipping_collector.FlippingCollector, dict(
        share=c.reward.flip, seed=host_seed(c.seed, f"{purpose} flips")
    )

  def notes(self, lines, f) -> list[str]:
    share = f.get("reward.flip", 0)
    return [f"{share:.0%} of the verdicts are wrong in training."] * bool(share)


FEATURE = _NoisyVerdicts()
