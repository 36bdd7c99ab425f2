"""Supervised fine-tuning: first a skill, then habits.

The skill stage imitates careful demonstrations until held-out accuracy says
that the model can do the task; the habits stage mixes in hasty ones, so that
it mostly does not: what RL then has to unlearn, and to find again.
"""

import functools
import pathlib

from rl_reason import config as config_lib, hf
from rl_reason.checkpointing import checkpoint
from rl_reason.data import pipelines
from rl_reason.evaluation import evaluate
from rl_reason.models import decoder
from rl_reason.structs import RunError, Tree
from rl_reason.training import step, supervised
from rl_reason.training.session import Run, require_equal

PHASES = ("skill", "habits")


class TooWeak(RunError):
  """The skill stage ended below its threshold: RL would have no signal."""


def run(run: Run) -> Tree:
  """Runs, resumes or skips both stages; returns the parameters.

  They start from config.model.path, if there is one, and a stage of 0 steps is
  left out. With config.sft.reuse they come from another work directory.

  Raises:
    TooWeak: the skill ended below its threshold.
    RunError: what is to be resumed or reused does not fit.
    Stopped: SIGTERM; everything is saved.
  """
  if run.config.sft.reuse:
    return load(run)
  params = None
  for name in PHASES:
    if run.config.sft[name].steps:
      params = _phase(run, name, params)
  return _imported(run) if params is None else params


def _imported(run: Run) -> Tree:
  """The parameters of config.model.path."""
  source = hf.find(run.config.model.path)
  run.display.doing(f"reading {source.path}")
  params = hf.load(source, decoder.table(run.cfg), run.mesh)
  run.display.say(f"read {len(source.tensors)} tensors of {source.path}")
  return params


def load(run: Run) -> Tree:
  """The parameters that SFT ended with, here or in config.sft.reuse.

  Without SFT they are those of config.model.path.

  Raises:
    RunError: SFT is not complete there, or its model is another one.
  """
  c = run.config.sft
  if not (c.reuse or c.skill.steps or c.habits.steps):
    return _imported(run)
  workdir = pathlib.Path(c.reuse or run.workdir)
  for phase in reversed(PHASES):
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints" / phase)
    at = checkpoints.newest(run.display.say)
    if at is not None:
      break
  host = {} if at is None else checkpoints.host(at)
  # The last stage there was, or one that no other was to follow.
  last = phase == "habits" or (host and not host["config"]["sft.habits.steps"])
  if at is None or not last or at != host["config"][f"sft.{phase}.steps"]:
    raise RunError(f"{workdir}: its SFT is not complete; run --stage=sft there")
  require_equal(
      f"sft.reuse = {workdir}",
      config_lib.flat(run.config),
      host["config"],
      ("model.", "tokenizer", "task.name"),
  )
  tx, shardings = _optimizer(run, phase)
  like = step.abstract_state(decoder.table(run.cfg), tx, shardings)
  return checkpoints.restore(at, like).params


def _optimizer(run: Run, name: str):
  """The optimizer of a phase and the shardings of its state."""
  c = run.config.sft[name]
  return supervised.optimizer(
      run, decoder.table(run.cfg), lr=c.lr, schedule=c.schedule, steps=c.steps
  )


def _phase(run: Run, name: str, params: Tree | None) -> Tree:
  c = run.config.sft[name]

  def first(_) -> Tree:
    return _imported(run) if params is None else params

  def rows(pairs):
    return pipelines.pack_demonstrations(
        run.tok,
        pairs,
        run.config.rollout.max_prompt,
        run.config.rollout.max_tokens,
    )

  return supervised.fit(
      run,
      name,
      title=f"SFT: {name}",
      prefix="sft",
      table=decoder.table(run.cfg),
      first=first if params is not None or run.config.model.path else None,
      stream=run.demonstrations(
          name, run.config.sft.batch, config_lib.mixture(c.mixture)
      ),
      rows=rows,
      update=functools.partial(step.sft_update, cfg=run.cfg),
      steps=c.steps,
      lr=c.lr,
      schedule=c.schedule,
      # Only the skill has a threshold.
      finish=functools.partial(_require_skill, run)
      if name == "skill"
      else None,
  )


def _require_skill(run: Run, params: Tree) -> None:
  c, threshold = run.config, run.config.sft.skill.threshold
  values, told = evaluate.evaluate(
      run, params, c.evaluate.interim_prompts, "evaluating the skill"
  )
  greedy = values[f"val-core/{told[0].name}/acc/greedy"]
  run.log.metrics("skill", c.sft.skill.steps, values)
  run.display.say(f"skill: {greedy:.1%} of held-out prompts right (greedy)")
  if greedy < threshold:
    raise TooWeak(
        f"sft.skill.threshold = {threshold:.0%}, reached {greedy:.1%} after"
        f" {c.sft.skill.steps} steps: RL would have little to build on. Raise"
        " sft.skill.steps, try another seed, or lower the threshold"
    )
