"""The policy of a work directory, whichever stage it has reached."""

import functools

from rl_reason.base.structs import Tree
from rl_reason.stages import initial_state, sft
from rl_reason.stages.session import Session, open_stage


def load(session: Session, which: str) -> tuple[Tree, int, str]:
  """The parameters of a policy, their step of RL, and where they are from.

  Args:
    session: of the run.
    which: 'newest', 'best', a step of RL, or 'sft'. Where RL has not begun,
      'newest' is the policy of SFT, or without SFT that of model.path.

  Raises:
    RunError: there is no such checkpoint.
  """
  sft_params = functools.partial(sft.load, session)
  trained = open_stage(session, "rl").checkpoints.steps()
  if which == "sft" or (which == "newest" and not trained):
    c = session.config.sft
    has_sft = c.reuse or c.skill.steps or c.habits.steps
    about = "SFT" if has_sft else session.config.model.path
    return sft_params(), 0, f"the policy of {about}"
  params, _, step = initial_state.load(session, which, sft_params)
  about = f"the policy of step {step} of RL in {session.workdir}"
  return params, step, about
