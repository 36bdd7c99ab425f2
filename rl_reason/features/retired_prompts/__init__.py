"""Prompts that are no longer drawn once the policy solves them.

`rollout.retire_after` and `rollout.retire_rate`; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import number


class _RetiredPrompts(feature.Declaration):
  remedies = {"Few groups with signal": "rollout.retire_after 3"}

  def fields(self, c) -> None:
    config.extend(
        c,
        "rollout",
        retire_after=number(0, low=0),  # groups solved in a row; 0: never
        # Share of correct responses of a group that is solved.
        retire_rate=number(1.0, low=1e-6, high=1, needs="rollout.retire_after"),
    )

  def used(self, c) -> bool:
    return bool(c.rollout.retire_after)

  def rules(self, c) -> Iterator[feature.Rule]:
    from rl_reason.checks import config_facts

    if config_facts.no_verifier(c):
      yield "rollout.retire_after", (
          "nothing says which responses are correct: there is no verifier:"
          " leave it at 0"
      )

  def drawn(self, c):
    from rl_reason.features.retired_prompts import retirement

    return retirement.Retirement(c.rollout.retire_after, c.rollout.retire_rate)


FEATURE = _RetiredPrompts()
