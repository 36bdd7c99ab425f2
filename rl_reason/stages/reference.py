"""The reference policy of a KL: the policy that RL starts from, or a teacher.

A teacher (kl.reference) is another run, or a checkpoint of transformers. Its
shape may differ from the policy's; its tokenizer and template must not. With
`kl.privileged` the reference reads the answer with the prompt, so that the
policy itself can be the teacher.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from rl_reason import hf, tasks
from rl_reason.base.structs import Array, Tree
from rl_reason.checks import config_facts, reference_policy
from rl_reason.data import privileged_prompts
from rl_reason.models import decoder
from rl_reason.stages import build_step, teacher_server, trained_parameters
from rl_reason.stages.model import Model, critic_config, reference_shape
from rl_reason.stages.run_output import Output
from rl_reason.training import privileged
from rl_reason.training.packing import PackingPlan

# The log-probs [B, T] of the reference: (plan, policy of the step, its number).
LogProbs = Callable[[PackingPlan, Tree, int], Array]
PROMPTS = 4  # prompts by which the tokenizer of a server is compared


def planner(
    c, mesh: jax.sharding.Mesh, tok: Any, row: Callable[[int], tasks.Row]
) -> Callable[..., PackingPlan]:
  """`build_step.planner`, with prompts of the reference for `kl.privileged`.

  Args:
    c: the config.
    mesh: the devices that learn.
    tok: the tokenizer.
    row: the row of a prompt by its id.
  """
  plan_rows = build_step.planner(c, mesh)
  if not c.kl.privileged:
    return plan_rows
  prompts = functools.partial(
      privileged_prompts.prompts,
      c.kl.privileged,
      row=row,
      tok=tok,
      slots=config_facts.prompt_slots(c),
  )
  return functools.partial(
      privileged.plan, plan_rows=plan_rows, prompts=prompts
  )


def of_kl(
    c,
    first: Tree,
    logps: Callable[..., tuple[Array, Array]],
    row: Callable[[int], tasks.Row],
    *,
    model: Model,
    tok: Any,
    output: Output,
) -> tuple[LogProbs | None, Tree | None]:
  """What an RL step reads of the reference.

  Args:
    c: the config.
    first: the policy that RL starts from, as the model reads it.
    logps: `build_step.logps` of the policy.
    row: the row of a prompt by its id.
    model: shapes and devices.
    tok: the tokenizer.
    output: work directory and screen.

  Returns:
    its log-probs if the KL is estimated from the sampled tokens, and its
    parameters if the update compares whole distributions; None otherwise, and
    where it is the policy itself.

  Raises:
    ConfigError, RunError: the teacher cannot be used.
  """
  if config_facts.teacher_server(c):
    prompts = [row(x).prompt for x in range(PROMPTS)]
    asked = teacher_server.log_probs(c, tok, output.display, prompts)
    return (
        lambda plan, *rest: asked(privileged.plan_of_reference(plan), *rest),
        None,
    )
  params = first
  if c.kl.reference:
    params = teacher(c, model=model, tok=tok, output=output)
    shape = reference_shape(c, model.cfg)
    logps = build_step.logps(c, shape, model.mesh, output.display)
  is_current = c.kl.self_teacher == "current"
  if c.kl.kind == "full":
    return None, None if is_current else params
  if not config_facts.estimates_kl(c):
    return None, None

  def estimated(plan: PackingPlan, policy: Tree, _: int) -> Array:
    read = privileged.plan_of_reference(plan)
    return logps(policy if is_current else params, read)[0]

  return estimated, None


def teacher(c, *, model: Model, tok: Any, output: Output) -> Tree:
  """The parameters of config.kl.reference, in the shape `reference_shape`.

  Of a run they are those of its newest checkpoint; its weights are arrays.

  Raises:
    ConfigError: it reads other tokens than the policy writes, or is damaged.
    RunError: the run has no complete checkpoint.
  """
  reference_policy.check(c, tok)
  theirs, source = reference_policy.find(c)
  cfg, place = reference_shape(c, model.cfg), pathlib.Path(c.kl.reference)
  if source and not reference_policy.is_run(c):
    params, about = hf.load(source, decoder.table(cfg), model.mesh), str(place)
  else:
    of_run = Model(cfg, critic_config(theirs, cfg), model.mesh)
    there = output._replace(workdir=place)
    params, _, _, about = trained_parameters.policy(
        theirs, "newest", model=of_run, output=there
    )
    params = trained_parameters.merged(params)
  output.display.say(f"kl.reference: {about}")
  return params
