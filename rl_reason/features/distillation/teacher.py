"""The reference of a KL that is a teacher, as the steps of RL read it.

A teacher (kl.reference) is another run, or a checkpoint of transformers. Its
shape may differ from the policy's; its tokenizer and template must not. With
`kl.privileged` the reference reads the answer with the prompt, so that the
policy itself can be the teacher.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from rl_reason import hf
from rl_reason.base import feature
from rl_reason.base.structs import Array, Tree
from rl_reason.features.distillation import (
    divergence,
    privileged,
    privileged_prompts,
    reference_policy,
    teacher_facts,
    teacher_server,
)
from rl_reason.models import decoder
from rl_reason.stages import build_step, compile_ahead, trained_parameters
from rl_reason.stages.model import Model, critic_config, model_config
from rl_reason.stages.run_output import Output
from rl_reason.training.packing import PackingPlan

# (plan, policy of the step, its number) -> log-probs of the reference, [B, T].
LogProbs = Callable[[PackingPlan, Tree, int], Array]
PROMPTS = 4  # prompts by which the tokenizer of a server is compared


class Teacher(feature.Part):
  """The reference of a KL: its prompts, its log-probs, or its parameters.

  Args:
    c: the config.
    loop: of RL.

  Raises:
    ConfigError, RunError: the teacher cannot be used.
  """

  def __init__(self, c, loop: feature.Loop):
    self._c, self._loop, self._params = c, loop, loop.first
    if c.kl.reference and not teacher_facts.on_server(c):
      session = loop.session
      self._params = load(
          c, model=session.model, tok=session.tok, output=session.output
      )

  def planning(
      self, plan_rows: Callable[..., PackingPlan]
  ) -> Callable[..., PackingPlan]:
    """Adds the prompts of the reference, with `kl.privileged`."""
    c = self._c
    if not c.kl.privileged:
      return plan_rows
    prompts = functools.partial(
        privileged_prompts.prompts,
        c.kl.privileged,
        row=self._loop.collector.prompts.row,
        tok=self._loop.session.tok,
        slots=teacher_facts.prompt_slots(c),
    )
    return functools.partial(
        privileged.plan, plan_rows=plan_rows, prompts=prompts
    )

  def reference(self, logps: Callable[..., tuple[Array, ...]]) -> LogProbs:
    """The log-probs of the teacher, after the prompts of the reference."""
    c, session = self._c, self._loop.session
    display = session.output.display
    if teacher_facts.on_server(c):
      row = self._loop.collector.prompts.row
      prompts = [row(x).prompt for x in range(PROMPTS)]
      asked = teacher_server.log_probs(c, session.tok, display, prompts)
      return lambda plan, *rest: asked(
          privileged.plan_of_reference(plan), *rest
      )
    if c.kl.reference:
      cfg, _, mesh = session.model
      logps = build_step.logps(c, shape(c, cfg), mesh, display)

    def of_model(plan: PackingPlan, policy: Tree, _: int) -> Array:
      read = privileged.plan_of_reference(plan)
      return logps(policy if _is_current(c) else self._params, read)[0]

    return of_model

  def beside(self) -> dict[str, Tree]:
    """The parameters that the full KL compares with."""
    c = self._c
    reads = teacher_facts.is_full(c) and not _is_current(c)
    return dict(compared=self._params) if reads else {}


def _is_current(c) -> bool:
  """Whether the reference has the parameters of the step."""
  return c.kl.self_teacher == "current"


def shape(c, cfg: decoder.ModelConfig) -> decoder.ModelConfig:
  """The static shape of the reference; `cfg` is of the policy."""
  if not c.kl.reference or teacher_facts.on_server(c):
    return cfg
  theirs, source = reference_policy.find(c)
  vocab = source.cfg.vocab if source else cfg.vocab
  return model_config(theirs, vocab=vocab, tokens=cfg.tokens)


def update(c, cfg: decoder.ModelConfig) -> dict[str, Any]:
  """The static argument `compare` of `step.rl_update`, of the full KL."""
  compare = functools.partial(divergence.chunked, shape(c, cfg), c.kl.jsd_beta)
  return dict(compare=(teacher_facts.ARRAY, compare))


def abstract(c, shapes: compile_ahead.Shapes) -> dict[str, Any]:
  """The shapes of `Teacher.beside`, and of packed rows with `kl.privileged`."""
  out: dict[str, Any] = {}
  if c.kl.privileged:
    theirs = shapes.packed_M.replace(source_BT=None)
    out["packed_M"] = shapes.packed_M.replace(further=theirs)
  if teacher_facts.is_full(c) and not _is_current(c):
    out["compared"] = shapes.policy
    if c.kl.reference:
      cfg = shape(c, shapes.cfg)
      out["compared"] = compile_ahead.abstract_model(cfg, shapes.mesh)
  return out


def load(c, *, model: Model, tok: Any, output: Output) -> Tree:
  """The parameters of config.kl.reference, in its `shape`.

  Of a run they are those of its newest checkpoint; its weights are arrays.

  Raises:
    ConfigError: it reads other tokens than the policy writes, or is damaged.
    RunError: the run has no complete checkpoint.
  """
  reference_policy.check(c, tok)
  theirs, source = reference_policy.find(c)
  cfg, place = shape(c, model.cfg), pathlib.Path(c.kl.reference)
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
