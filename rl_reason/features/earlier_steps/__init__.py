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
_LOOKED_BACK = 16  # steps, at most, of the warning about prompts


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
          "advantage.history_responses": "the run remembers as many responses",
          "advantage.history_prompts": "the run remembers as many prompts",
      },
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "advantage",
        # RL steps that `temporal` looks back.
        history=number(
            2,
            low=1,
            needs=_NEED,
            not_with={
                "advantage.history_responses": "it looks back at all steps",
            },
        ),
        # Responses of each prompt that are remembered, of whatever step; 0: all
        # of the last `advantage.history` steps.
        history_responses=number(0, low=0, needs=_NEED),
        # Prompts whose responses are remembered.
        history_prompts=number(
            1024, low=1, needs="advantage.history_responses"
        ),
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
    a, prompts = c.advantage, c.rollout.batch // c.rollout.group_size
    if a.history_responses and a.history_prompts < prompts:
      yield "advantage.history_prompts", (
          f"must be at least {prompts}, the prompts of a batch"
      )

  def cautions(self, c) -> Iterator[feature.Rule]:
    name, steps = "advantage.name", c.advantage.history
    more = "use fewer task.difficulties, or raise advantage.history"
    if c.advantage.history_responses:
      batch = max(c.rollout.batch // c.rollout.group_size, 1)
      steps = min(
          c.advantage.history_prompts // batch, c.rl.steps, _LOOKED_BACK
      )
      more = "use fewer task.difficulties, or raise advantage.history_prompts"
    alone = "prompts without earlier responses get leave_one_out's baseline"
    if c.task.name == tasks.FILES and not c.advantage.history_responses:
      yield name, (
          "prompts of files come again only after a pass over data.train; "
          + alone
      )
    elif c.task.name != tasks.FILES and _share_returning(c, steps) < 0.1:
      yield name, (
          f"fewer than 10% of prompts come again within {steps} steps; {alone}:"
          f" {more}"
      )

  def early_logps(self, c) -> bool:
    return True

  def passes(self, c) -> float:
    return self.axes(c)["H"] // c.rollout.batch

  def axes(self, c) -> dict[str, int]:
    """H: a multiple of the batch, whose log-probs the trainer computes."""
    batches, kept = c.advantage.history, c.advantage.history_responses
    if kept:
      prompts = c.rollout.batch // c.rollout.group_size
      batches = -(-prompts * kept // c.rollout.batch)
    return dict(H=c.rollout.batch * batches)

  def arrays(self, c) -> dict:
    from rl_reason.features.earlier_steps import history, prompt_history

    by_prompt = c.advantage.history_responses
    kind = prompt_history if by_prompt else history
    return dict(history=kind.of_config(c))

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.earlier_steps import history, prompt_history

    options = dict(
        logps=loop.logps,
        batch=c.rollout.batch,
        ratio_limit=c.advantage.history_ratio,
    )
    if c.advantage.history_responses:
      return prompt_history.EarlierResponses(
          prompt_history.of_config(c), self.axes(c)["H"], **options
      )
    return history.EarlierSteps(history.of_config(c), **options)


def _share_returning(c, steps: int) -> float:
  """Share of a step's prompts that occurred within some steps."""
  count = min(c.rollout.batch // c.rollout.group_size, 256)
  rows = cautions.draws(c, count * (1 + steps))
  earlier = {row.prompt for row in rows[count:]}
  return sum(row.prompt in earlier for row in rows[:count]) / count


FEATURE = _EarlierSteps()
