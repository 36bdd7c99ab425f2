"""The log of groups of responses, as a config asks for it."""

import functools
from collections.abc import Callable
from typing import Any

from rl_reason import tasks
from rl_reason.algorithms import kl
from rl_reason.base import functions
from rl_reason.base.structs import Array
from rl_reason.checks import facts
from rl_reason.collect.collector import RolloutCollector
from rl_reason.monitoring.samples import SampleLog
from rl_reason.stages import build_step
from rl_reason.stages.session import Session


def make(
    session: Session,
    collector: RolloutCollector,
    new_logps: Callable[[Any], Array],
) -> SampleLog:
  """The log of groups of responses.

  Args:
    session: of the run.
    collector: draws the prompts.
    new_logps: plan -> log-probs [B, T] of the current policy.
  """
  c = session.config
  estimate = functools.partial(kl.estimate, c.kl.kind)
  return SampleLog(
      session.log,
      session.display,
      session.tok,
      collector.prompts.row,
      every=c.log.samples_every,
      groups=c.log.groups,
      responses=c.log.samples,
      by_reward=facts.by_reward(c),
      steps=c.rl.steps,
      is_verified=functools.partial(tasks.has_verifier, session.task),
      reward=build_step.make_reward(c),
      surrogate=functions.bind("surrogate", c.surrogate),
      estimate_kl=None if c.kl.kind == "none" else estimate,
      has_values=facts.has_critic(c),
      new_logps=new_logps if c.log.ratios else None,
  )
