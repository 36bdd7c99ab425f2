"""Fields that nothing reads with a config.

On the command line they are a mistake, and refused. A file may set them for an
algorithm that an override replaces: then they are only said.
"""

from rl_reason.base import config, fields, resume_rules
from rl_reason.checks import facts
from rl_reason.checks.combinations import fail
from rl_reason.checks.facts import environment

TURNS = "responses have one turn: task.name has no step"
GIVEN = "the environment gives the rewards"


def _reasons(c) -> dict[str, str]:
  """What names of fields start with -> why nothing reads these fields."""
  d, single = c.dynamic_sampling, environment(c) is None
  readers = {
      "advantage.history": (facts.has_history(c), "is for 'temporal'"),
      "critic.": (facts.has_critic(c), f"{c.advantage.name} has no critic"),
      "critic.pretrain_ev": (c.critic.pretrain_steps, "no pretrain_steps"),
      "critic.pretrain_loss": (c.critic.pretrain_steps, "no pretrain_steps"),
      "dynamic_sampling.max_rounds": (d.enabled, "it is not enabled"),
      "dynamic_sampling.shortfall": (
          d.enabled or c.rollout.partial_across_steps,
          "it is not enabled",
      ),
      "environment.": (not single, TURNS),
      "lora.alpha": (c.lora.rank, "is for lora.rank > 0"),
      "lora.targets": (c.lora.rank, "is for lora.rank > 0"),
      "reward.correct": (single, GIVEN),
      "reward.incorrect": (single, GIVEN),
      "reward.overlong_coef": (c.reward.overlong_buffer, "no overlong_buffer"),
  }
  return {start: why for start, (reads, why) in readers.items() if not reads}


def refuse(c, given: tuple[str, ...]) -> None:
  """Refuses fields of the command line.

  Raises:
    Fault: the first one that nothing reads.
  """
  reasons = _reasons(c)
  for name in given:
    if c.model.path and resume_rules.is_shape(name):
      fail(f"{name}: model.path = {c.model.path!r} decides it: leave it out")
    for start, why in reasons.items():
      if name.startswith(start):
        fail(f"{name}: nothing reads it: {why}: leave this out")


def warnings(c) -> list[str]:
  """A line for each such field that differs from its default."""
  values = {name: config.at(c, name) for name in fields.FIELDS}
  return [
      f"{name} = {values[name]!r}: nothing reads it: {why}"
      for start, why in _reasons(c).items()
      for name, spec in fields.FIELDS.items()
      if name.startswith(start) and values[name] != spec.default
  ]
