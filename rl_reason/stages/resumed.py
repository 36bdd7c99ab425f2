"""What a resumed run takes from its finished stages, without entering them.

Once RL has a checkpoint, SFT and value pretraining are over. A checkpoint of
theirs that is damaged or gone by now must not start them again: that would
cost hours, and cut what RL has logged since.
"""

from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checks import facts
from rl_reason.stages import initial_state, sft, value
from rl_reason.stages.session import Session, open_stage


def start(
    session: Session,
) -> tuple[Tree | None, Tree | None, dict[str, float] | None] | None:
  """The arguments of `rl.train`, or None if RL has no checkpoint yet.

  The policy is None if RL is complete, and the base of its LoRA factors lost:
  nothing is left to do.

  Raises:
    RunError: RL needs parameters of a finished stage that are lost.
  """
  c, rl = session.config, open_stage(session, "rl").checkpoints
  if not rl.steps():
    return None
  lost, needed = "", ""
  params = critic_params = counters = None
  try:
    params = sft.load(session)
  except RunError as e:
    lost = str(e)
    needed = "as the base of lora.rank" if c.lora.rank else ""
    if c.kl.kind != "none":
      needed = "as the reference of kl.kind"
  if params is not None and facts.has_critic(c):
    own = c.critic.pretrain_steps and not c.critic.reuse
    if own and not _is_complete(session, "value"):
      lost = f"{session.workdir}: its value pretraining is not complete"
      if c.critic.value_mixture.name != "none":
        needed = "for critic.value_mixture"
    else:
      critic_params, counters = value.run(session, params)
  if not lost:
    return params, critic_params, counters
  step = rl.newest(session.display.say)
  if step is None:
    session.display.say(f"{lost}, and no checkpoint of RL is: trained again")
    return None
  host = rl.host(step)
  complete = host["evaluated"] and step == c.rl.steps
  if needed and not complete:
    raise RunError(
        f"{lost}, and RL at step {step} needs it {needed}: put a copy of that"
        f" checkpoint back, or remove {session.workdir}/checkpoints/rl to train"
        " again"
    )
  ends = "is complete" if complete else "goes on without it"
  session.display.say(f"{lost}; RL at step {step} {ends}")
  if c.lora.rank and params is None:
    return None, None, None
  found, critic_params, _ = initial_state.load(
      session, "newest", lambda: params
  )
  return found if params is None else params, critic_params, counters


def _is_complete(session: Session, stage: str) -> bool:
  """Whether a stage of this run has a final checkpoint that is whole."""
  checkpoints = Checkpoints(session.workdir / "checkpoints" / stage)
  step = checkpoints.newest(session.display.say)
  return step is not None and checkpoints.host(step)["complete"]
