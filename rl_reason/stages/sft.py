"""Supervised fine-tuning: first a skill, then habits.

The skill phase imitates careful demonstrations until held-out accuracy says
that the model can do the task. The habits phase mixes in hasty ones, after
which the model mostly answers incorrectly: RL has to unlearn these habits.
"""

import functools
from collections.abc import Callable
from typing import Any

from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import facts
from rl_reason.collect.environment_runner import Environments
from rl_reason.data import sample_files
from rl_reason.data.pipelines import RowSource
from rl_reason.devices.randomness import host_seed
from rl_reason.models import decoder
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.stages import (
    demonstrations,
    evaluate as evaluate_lib,
    supervised,
    trained,
)
from rl_reason.stages.model import Model
from rl_reason.stages.output import Output
from rl_reason.stages.trained import PHASES


class TooWeak(RunError):
  """The skill phase ended below its threshold: RL would have no signal."""


def run(
    c,
    *,
    model: Model,
    output: Output,
    row_source: RowSource,
    tok: Any,
    engine: RolloutEngine,
    environments: Environments | None,
) -> Tree:
  """Runs, resumes or skips both phases; returns the parameters.

  SFT starts from config.model.path, if set. Phases of 0 steps are skipped.
  With config.sft.reuse the parameters come from another work directory.
  `parts` describes the keywords; the engine measures the skill.

  Raises:
    TooWeak: the skill ended below its threshold.
    RunError: a checkpoint to resume or reuse does not match the config.
    Stopped: SIGTERM; everything is saved.
  """
  if c.sft.reuse:
    return trained.sft(c, model=model, output=output)
  evaluate = functools.partial(
      evaluate_lib.evaluate,
      c,
      mesh=model.mesh,
      output=output,
      row_source=row_source,
      tok=tok,
      engine=engine,
      environments=environments,
  )
  params = None
  names = [name for name in PHASES if c.sft[name].steps]
  if names == list(PHASES):  # habits that have begun need no skill
    habits = checkpoint.Checkpoints(output.workdir / "checkpoints" / "habits")
    names = names[habits.newest(output.display.say) is not None :]
  for name in names:
    check = None
    if name == "skill" and not facts.no_verifier(c):
      check = functools.partial(_require_skill, c, evaluate, output)
    params = _train_phase(
        c,
        name,
        params,
        model=model,
        output=output,
        stream=_stream(c, name, row_source, tok, output.display.say),
        pack=functools.partial(
            demonstrations.pack,
            tok,
            prompt_slots=c.rollout.max_prompt,
            response_slots=c.rollout.max_tokens,
            observe=environments.observer.text if environments else None,
        ),
        check=check,
    )
  if params is None:
    return trained.imported(c, model, output.display)
  return params


def _train_phase(
    c,
    name: str,
    params: Tree | None,
    *,
    model: Model,
    output: Output,
    stream: Any,
    pack: Callable,
    check: Callable[[Tree], None] | None,
) -> Tree:
  """Runs or resumes one phase, from `params`, the checkpoint, or at random."""
  phase, first = c.sft[name], None
  if params is not None:
    first = lambda _: params  # noqa: E731
  elif c.model.path:
    first = lambda _: trained.imported(c, model, output.display)  # noqa: E731
  return supervised.train(
      c,
      name,
      mesh=model.mesh,
      output=output,
      title=f"SFT: {name}",
      prefix="sft",
      table=decoder.table(model.cfg),
      first=first,
      stream=stream,
      rows=pack,
      update=functools.partial(
          supervised.sft_update, cfg=model.cfg, router_aux=c.loss.router_aux
      ),
      steps=phase.steps,
      lr=phase.lr,
      schedule=phase.schedule,
      final_check=check,
  )


def _stream(c, name: str, row_source: RowSource, tok: Any, say: Callable):
  """Batches of (prompt, response): of the task, or of sft.samples."""
  if not c.sft.samples:
    mixture = facts.mixture(c.sft[name].mixture)
    return demonstrations.batches(row_source, name, c.sft.batch, mixture)
  slots = c.rollout.max_prompt, c.rollout.max_tokens
  parts, weights = sample_files.read(
      "sft.samples",
      c.sft.samples,
      tok,
      slots,
      say,
      revisions=facts.revisions(c),
  )
  seed = host_seed(c.seed, f"samples of {name}")
  return sample_files.iterate(parts, weights, seed, c.sft.batch)


def _require_skill(c, evaluate: Callable, output: Output, params: Tree) -> None:
  """Logs the greedy accuracy of the skill.

  Raises:
    TooWeak: it is below config.sft.skill.threshold.
  """
  threshold = c.sft.skill.threshold
  values, responses = evaluate(
      params,
      c.evaluate.interim_prompts,
      "evaluating the skill",
      purpose="choose",
  )
  greedy = values[f"val-core/{responses[0].name}/acc/greedy"]
  output.log.metrics("skill", c.sft.skill.steps, values)
  output.display.say(
      f"skill: {greedy:.1%} of"
      f" {'validation' if responses[0].chooses else 'held-out'} prompts"
      " correct (greedy)"
  )
  if greedy < threshold:
    raise TooWeak(
        f"sft.skill.threshold = {threshold:.0%}, reached {greedy:.1%} after"
        f" {c.sft.skill.steps} steps: RL would have little signal. Raise"
        " sft.skill.steps, try another seed, or lower the threshold"
    )
