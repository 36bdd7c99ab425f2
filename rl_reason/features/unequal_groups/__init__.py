"""Groups of unequal sizes: how many responses each prompt of a batch gets.

`rollout.group_sizes` names a function of the expected accuracy or length of
each prompt; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import config, feature
from rl_reason.base.fields import function
from rl_reason.base.function_kinds import Kind


class _UnequalGroups(feature.Declaration):
  kinds = {
      "group_sizes": Kind(
          "rollout.group_sizes",
          ("features.unequal_groups.group_sizes",),
          ("expected_length_N", "expected_accuracy_N", "num_responses"),
          off="equal",
      )
  }

  marks = {"types": ("rollout.group_sizes.name",)}

  def fields(self, c) -> None:
    c.rollout.group_sizes = function("group_sizes")  # by_length, by_variance

  def used(self, c) -> bool:
    return c.rollout.group_sizes.name != "equal"

  def rules(self, c) -> Iterator[feature.Rule]:
    least = config.at(c, "rollout.group_sizes.args").get("least", 0)
    if least > c.rollout.group_size:
      yield "rollout.group_sizes.args.least", (
          f"must not exceed rollout.group_size = {c.rollout.group_size}"
      )

  def sizes(self, c):
    from rl_reason.base import functions

    return functions.bind("group_sizes", c.rollout.group_sizes)


FEATURE = _UnequalGroups()
