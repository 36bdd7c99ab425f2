"""Supervised fine-tuning, and a second stage of it for the built-in tasks.

SFT imitates the responses of rows, or the demonstrations of a task, and
measures what it has taught. The habits are more SFT in configs for the built-in
tasks: hasty demonstrations, after which a model that can do the task mostly
answers incorrectly. RL has to unlearn them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rl_reason import tasks
from rl_reason.base import config as config_lib, feature
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import config_facts
from rl_reason.data import sample_files
from rl_reason.data.pipelines import RowSource
from rl_reason.devices.randomness import host_seed
from rl_reason.models import decoder
from rl_reason.stages import (
    build_step,
    demonstrations,
    evaluate as evaluate_lib,
    optimizers,
    scorer,
    supervised,
    trained_parameters,
)
from rl_reason.stages.run_output import Output
from rl_reason.stages.session import Session
from rl_reason.stages.trained_parameters import PARTS
from rl_reason.tasks import reward_terms

# What random keys of the data are made of: with other names the built-in tasks
# would have other demonstrations.
PURPOSES = {"sft": "skill", "habits": "habits"}


class TooWeak(RunError):
  """SFT ended below its threshold: RL would have no signal."""


def run(c, session: Session) -> Tree:
  """Runs, resumes or skips SFT and the habits; returns the parameters.

  SFT starts from config.model.path, if set. A part of 0 steps is skipped.
  With config.sft.reuse the parameters come from another work directory.

  Raises:
    TooWeak: SFT ended below its threshold.
    RunError: a checkpoint to resume or reuse does not match the config.
    Stopped: SIGTERM; everything is saved.
  """
  model, output = session.model, session.output
  if c.sft.reuse:
    return trained_parameters.sft(c, model=model, output=output)
  rewards = functools.partial(scorer.rewards, c, session, model.mesh)
  evaluate = functools.partial(
      evaluate_lib.evaluate,
      c,
      session,
      rewards=functools.cache(rewards) if _scores(c) else None,
  )
  params = None
  steps = {x: config_lib.at(c, PARTS[x]).steps for x in PARTS}
  update = supervised.program(
      c,
      functools.partial(
          supervised.sft_update,
          cfg=dataclasses.replace(model.cfg, router_aux=c.loss.router_aux),
      ),
      title="SFT",
      table=decoder.table(model.cfg),
      mesh=model.mesh,
      display=output.display,
  )
  names = [x for x in PARTS if steps[x]]
  if names == list(PARTS):  # habits that have begun need no SFT
    habits = checkpoint.Checkpoints(output.workdir / "checkpoints" / "habits")
    names = names[habits.newest(output.display.say) is not None :]
  for name in names:
    check = None
    if name == "sft" and not config_facts.no_verifier(c):
      task = session.row_source.task
      check = functools.partial(_evaluate, c, evaluate, output, task)
    params = _train_part(
        c,
        session,
        name,
        params,
        update=update,
        rates=max(steps.values()),
        check=check,
    )
  if params is None:
    return trained_parameters.imported(c, model, output.display)
  return params


def _train_part(
    c,
    session: Session,
    name: str,
    params: Tree | None,
    *,
    update: Callable,
    rates: int,
    check: Callable[[Tree], None] | None,
) -> Tree:
  """Runs or resumes one part, from `params`, the checkpoint, or at random."""
  model, output = session.model, session.output
  first, rate = None, optimizers.sft_rate(config_lib.at(c, PARTS[name]))
  if params is not None:
    first = lambda _: params  # noqa: E731
  elif c.model.path:
    first = lambda _: trained_parameters.imported(c, model, output.display)  # noqa: E731
  return supervised.train(
      c,
      name,
      mesh=model.mesh,
      output=output,
      title="SFT" if name == "sft" else f"SFT: {name}",
      prefix="sft",
      table=decoder.table(model.cfg),
      first=first,
      stream=_stream(c, session, name),
      rows=packer(c, session),
      update=update,
      steps=rate.pop("total"),
      rates=rates,
      **rate,
      final_check=check,
  )


def packer(c, session: Session) -> Callable:
  """`demonstrations.pack` in the shapes of a config."""
  player = feature.first(c, "player")
  return functools.partial(
      demonstrations.pack,
      session.tok,
      prompt_slots=c.rollout.max_prompt,
      response_slots=c.rollout.max_tokens,
      encode=player.encoder(session) if player else None,
  )


def _stream(c, session: Session, name: str):
  """Batches of a part of SFT."""
  part, batch = config_lib.at(c, PARTS[name]), c.sft.batch
  row_source, tok = session.row_source, session.tok
  say = session.output.display.say

  def counted(rows: int) -> None:
    passes = f"{part.steps * batch / rows:.2g} passes over {rows:,} rows"
    say(f"SFT: {part.steps:,} steps of {batch} rows are {passes}")

  return batches(c, part, PURPOSES[name], batch, row_source, tok, say, counted)


def batches(
    c,
    part,
    purpose: str,
    batch: int,
    row_source: RowSource,
    tok: Any,
    say: Callable[[str], None],
    counted: Callable[[int], None],
):
  """Batches of (prompt, response): of the task, or of sft.samples.

  Args:
    c: the config.
    part: its section with the mixture of styles.
    purpose: decides the order, or the demonstrations.
    batch: rows of a batch.
    row_source: the rows of the task.
    tok: the tokenizer.
    say: shows a line.
    counted: called with the number of rows.
  """
  if not c.sft.samples:
    mixture = config_facts.styles(part.mixture, row_source.task)
    levels = tuple(c.sft.difficulties) or row_source.difficulties
    return demonstrations.batches(
        dataclasses.replace(row_source, difficulties=levels),
        purpose,
        batch,
        mixture,
        counted,
    )
  slots = c.rollout.max_prompt, c.rollout.max_tokens
  parts, weights = sample_files.read(
      "sft.samples",
      c.sft.samples,
      tok,
      slots,
      say,
      revisions=config_facts.revisions(c),
  )
  seed = host_seed(c.seed, f"samples of {purpose}")
  counted(sum(map(len, parts)))
  return sample_files.iterate(parts, weights, seed, batch)


def _scores(c) -> bool:
  """Whether the reward scores the evaluation: its models are trained."""
  terms = build_step.terms(c)
  models = [name for x in terms for name in reward_terms.models_of(x.name)]
  return bool(terms) and all(map(trained_parameters.is_trained, models))


def _evaluate(
    c, evaluate: Callable, output: Output, task: Any, params: Tree
) -> None:
  """Logs the accuracy after SFT, if rows have reference answers.

  Raises:
    TooWeak: the greedy accuracy is below config.sft.threshold.
  """
  threshold = c.sft.threshold
  values, responses = evaluate(
      params,
      c.evaluate.interim_prompts,
      "evaluating SFT",
      purpose="choose",
  )
  output.log.metrics("sft", c.sft.steps, values)
  verified = [
      x
      for x in responses
      if any(tasks.has_verifier(task, row) for row in x.rows)
  ]
  if not verified:
    say = output.display.say
    return say("SFT: no accuracy, since no row has a reference answer")
  name = f"val-core/{verified[0].name}/acc/greedy"
  if name not in values:
    why = evaluate_lib.not_measured(verified[0])
    return output.display.say(
        f"warning: SFT: sft.threshold is not checked: {why}"
    )
  greedy = values[name]
  output.display.say(
      f"SFT: {greedy:.1%} of"
      f" {'validation' if verified[0].chooses else 'held-out'} prompts"
      " correct (greedy)"
  )
  if greedy < threshold:
    raise TooWeak(
        f"sft.threshold = {threshold:.0%}, reached {greedy:.1%} after"
        f" {c.sft.steps} steps: RL would have little signal. Raise"
        " sft.steps, try another seed, or lower the threshold"
    )
