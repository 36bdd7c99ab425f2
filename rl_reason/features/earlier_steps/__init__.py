"""Responses of earlier steps, for advantages that compare with them.

They are inputs of an advantage function, such as `advantage_variants.temporal`,
which asks for them by the names of its parameters; see README.md.
"""

from collections.abc import Iterator

from rl_reason import tasks
from rl_reason.base import config, feature
from rl_reason.base.fields import number
from rl_reason.checks import cautions, config_facts

_NEED = "earlier steps"


def _reads(c) -> bool:
  """Whether the advantage is computed from responses of earlier steps."""
  return "past_rewards_H" in config_facts.advantage_inputs(c)


class _EarlierSteps(feature.Declaration):
  inputs = {
      "advantage": ("past_rewards_H", "past_problems_H", "past_weights_H")
  }
  needs = {
      _NEED: lambda c: (
          not _reads(c)
          and f"{c.advantage.name} reads no earlier steps, as temporal does"
      )
  }
  marks = {
      "not_replayed": {
          "advantage.history": "the history of the run has another length",
          "advantage.history_ratio": "earlier steps are weighed as in the run",
      },
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "advantage",
        # RL steps that `temporal` looks back.
        history=number(2, low=1, needs=_NEED),
        # Upper bound of its importance weights.
        history_ratio=number(2.0, low=0, needs=_NEED),
    )

  def used(self, c) -> bool:
    return _reads(c)

  def rules(self, c) -> Iterator[feature.Rule]:
    if c.kl.place == "reward":
      yield "kl.place", (
          f"{c.advantage.name} compares rewards with rewards of earlier steps:"
          " use 'loss'"
      )
    if c.rollout.get("replay_routing"):
      yield "advantage.name", (
          "no routes are kept of earlier steps: leave it out, or set"
          " rollout.replay_routing = False"
      )

  def cautions(self, c) -> Iterator[feature.Rule]:
    name, steps = "advantage.name", c.advantage.history
    alone = "prompts without earlier responses get leave_one_out's baseline"
    if c.task.name == tasks.FILES:
      yield name, (
          "prompts of files come again only after a pass over data.train; "
          + alone
      )
    elif _share_returning(c, steps) < 0.1:
      yield name, (
          f"fewer than 10% of prompts come again within {steps} steps; {alone}:"
          " use fewer task.difficulties, or raise advantage.history"
      )

  def early_logps(self, c) -> bool:
    return True

  def passes(self, c) -> float:
    return c.advantage.history

  def axes(self, c) -> dict[str, int]:
    return dict(H=c.rollout.batch * c.advantage.history)

  def arrays(self, c) -> dict:
    from rl_reason.features.earlier_steps import history

    return dict(history=history.of_config(c))

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.earlier_steps import history

    return history.EarlierSteps(
        history.of_config(c),
        logps=loop.logps,
        batch=c.rollout.batch,
        ratio_limit=c.advantage.history_ratio,
    )


def _share_returning(c, steps: int) -> float:
  """Share of a step's prompts that occurred within some steps."""
  count = min(c.rollout.batch // c.rollout.group_size, 256)
  rows = cautions.draws(c, count * (1 + steps))
  earlier = {row.prompt for row in rows[count:]}
  return sum(row.prompt in earlier for row in rows[:count]) / count


FEATURE = _EarlierSteps()
