"""Combinations of fields with which rounds cannot work, or do nothing."""

from rl_reason.base import config, fields
from rl_reason.checks.combinations import fail
from rl_reason.checks.facts import environment, no_verifier

OF_SFT, OF_MODELS = ("steps", "lr"), ("weight", "verdict")


def check(c) -> None:
  """Checks rounds of samples of the policy and what is learned from them.

  Raises:
    Fault: the first combination that cannot work.
  """
  keep, pairs = c.generate.keep, c.generate.keep == "pairs"

  def refuse_set(names, why):
    for name in (f"rounds.{x}" for x in names):
      if config.at(c, name) != fields.FIELDS[name].default:
        fail(f"{name}: {why}")

  if not c.rounds.count:
    return refuse_set(c.rounds, "does nothing without rounds.count: set both")
  if environment(c):
    fail("rounds.count: --stage=generate plays no environments: leave it at 0")
  if keep == "all":
    fail(
        "generate.keep: would imitate incorrect responses, too: use 'correct',"
        " 'best', 'majority', or 'pairs' for a reward model"
    )
  if keep == "correct" and no_verifier(c):
    fail("generate.keep: nothing says which are correct: use 'best'")
  if pairs and not c.rl.steps:
    fail("rl.steps: nothing would learn from the reward model of a round")
  learner = "a reward model" if pairs else "SFT"
  unread = OF_SFT if pairs else OF_MODELS
  refuse_set(unread, f"a round trains {learner} with generate.keep = {keep!r}")
