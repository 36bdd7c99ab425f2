"""The stages that train: SFT, then value pretraining and RL, or another stage.

Stages of features whose result is a policy may come between SFT and the rest.

Once RL has a checkpoint, SFT and value pretraining are over. If one of their
checkpoints is damaged or gone by then, they must not start again: that would
cost hours, and cut the lines that RL has logged since.
"""

import functools
import pkgutil
from collections.abc import Callable

from rl_reason.base import feature
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checks import config_facts
from rl_reason.stages import (
    compile_ahead,
    optimizers,
    rl,
    sft,
    trained_parameters,
    value,
)
from rl_reason.stages.model import Model
from rl_reason.stages.run_output import Output, open_stage
from rl_reason.stages.session import Session

# The arguments of `rl.train`: policy, critic, and cost of value pretraining.
Start = tuple[Tree | None, Tree | None, dict[str, float] | None]


def run(c, session: Session, stage: str) -> Tree | None:
  """Runs or resumes the stages up to one; returns the parameters of the policy.

  `stage` is 'sft', 'value', 'all' or one of `feature.stages`.
  """
  model, output, found = session.model, session.output, None
  pretrain = functools.partial(value.run, c, session)
  if stage == "all":
    found = resumed(c, pretrain, model=model, output=output)
  params, critic_params, counters = found or (None, None, None)
  update, saved = None, open_stage(c, output, "rl").checkpoints.steps()
  if stage == "all" and c.rl.steps not in (0, *saved):
    update = compile_ahead.policy_update(c, model, output.display)
  if found is None:
    params = sft.run(c, session)
    further = feature.stages()
    names = [stage] if stage in further else feature.before_rl(c)
    for name in names if stage != "sft" else ():
      trained = pkgutil.resolve_name(further[name].run)(c, session, params)
      params = trained if further[name].policy else params
    if stage in ("all", "value") and config_facts.has_critic(c):
      critic_params, counters = pretrain(params)
  if stage == "all" and params is not None:
    # Under the same name, to free an fp32 copy of frozen parameters.
    params = optimizers.learned(c).frozen(params, model.cfg.dtype) or params
    params = rl.train(
        c, session, params, critic_params, counters, update=update
    )
  return params


def resumed(
    c,
    pretrain: Callable[[Tree], tuple[Tree, dict[str, float]]],
    *,
    model: Model,
    output: Output,
) -> Start | None:
  """The arguments of `rl.train`, or None if RL has no checkpoint yet.

  The policy is None if RL is complete, and the parameters lost that it has to
  read: nothing is left to do. `pretrain` is `value.run` of the policy, which
  here reads its result.

  Raises:
    RunError: RL needs parameters of a finished stage that are lost.
  """
  checkpoints, say = open_stage(c, output, "rl").checkpoints, output.display.say
  if not checkpoints.steps():
    return None
  learned, lost, needed = optimizers.learned(c), "", ""
  params = critic_params = counters = None
  try:
    params = trained_parameters.start(c, model=model, output=output)
  except RunError as e:
    lost = str(e)
    needed = learned.needs_start
    if config_facts.compares_with_start(c):
      needed = "as the reference of kl.kind"
  if params is not None and config_facts.has_critic(c):
    own = c.critic.pretrain_steps and not c.critic.reuse
    if own and not _is_complete(output, "value"):
      lost = f"{output.workdir}: its value pretraining is not complete"
      fields = feature.marked("first_critic", c)
      needed = " and ".join(f"for {x}" for x in fields)
    else:
      critic_params, counters = pretrain(params)
  if not lost:
    return params, critic_params, counters
  step = checkpoints.newest(say)
  if step is None:
    say(f"{lost}. RL has no complete checkpoint: both are trained again")
    return None
  host = checkpoints.host(step)
  complete = host["evaluated"] and step == c.rl.steps
  if needed and not complete:
    raise RunError(
        f"{lost}. RL at step {step} needs this stage {needed}: restore a copy"
        " of the checkpoint of this stage, or remove"
        f" {output.workdir}/checkpoints/rl to train again"
    )
  ends = "is complete" if complete else "goes on without it"
  say(f"{lost}. RL at step {step} {ends}")
  if learned.needs_start and params is None:
    return None, None, None
  found, critic_params, _ = trained_parameters.rl(
      c, "newest", model=model, output=output, base=lambda: params
  )
  return found if params is None else params, critic_params, counters


def _is_complete(output: Output, stage: str) -> bool:
  """Whether a stage of this run has a final checkpoint that is whole."""
  checkpoints = Checkpoints(output.workdir / "checkpoints" / stage)
  step = checkpoints.newest(output.display.say)
  return step is not None and checkpoints.host(step)["complete"]
