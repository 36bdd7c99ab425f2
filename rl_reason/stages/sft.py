"""Supervised fine-tuning: first a skill, then habits.

The skill phase imitates careful demonstrations until held-out accuracy says
that the model can do the task. The habits phase mixes in hasty ones, after
which the model mostly answers incorrectly: RL has to unlearn these habits.
"""

import functools
import pathlib

from rl_reason import hf
from rl_reason.base import config as config_lib
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import facts
from rl_reason.data import sample_files
from rl_reason.devices.randomness import host_seed
from rl_reason.evaluation import accuracy
from rl_reason.models import decoder
from rl_reason.stages import demonstrations, supervised
from rl_reason.stages.other_runs import require_equal
from rl_reason.stages.session import Session
from rl_reason.training.optimizer import (
    abstract_state,
    from_config,
    state_shardings,
)

PHASES = ("skill", "habits")


class TooWeak(RunError):
  """The skill phase ended below its threshold: RL would have no signal."""


def run(session: Session) -> Tree:
  """Runs, resumes or skips both phases; returns the parameters.

  SFT starts from config.model.path, if set. Phases of 0 steps are skipped.
  With config.sft.reuse the parameters come from another work directory.

  Raises:
    TooWeak: the skill ended below its threshold.
    RunError: a checkpoint to resume or reuse does not match the config.
    Stopped: SIGTERM; everything is saved.
  """
  if session.config.sft.reuse:
    return load(session)
  params = None
  names = [name for name in PHASES if session.config.sft[name].steps]
  if names == list(PHASES):  # habits that have begun need no skill
    habits = checkpoint.Checkpoints(session.workdir / "checkpoints" / "habits")
    names = names[habits.newest(session.display.say) is not None :]
  for name in names:
    params = _train_phase(session, name, params)
  return _imported(session) if params is None else params


def _imported(session: Session) -> Tree:
  """The parameters of config.model.path."""
  name = session.config.model.path
  revision = facts.revision(session.config, name)
  source = hf.find(name, revision=revision)
  session.display.doing(f"reading {source.path}")
  params = hf.load(source, decoder.table(session.cfg), session.mesh)
  session.display.say(f"read {len(source.tensors)} tensors of {source.path}")
  return params


def load(session: Session) -> Tree:
  """The final parameters of SFT, of this run or of config.sft.reuse.

  Without SFT they are those of config.model.path.

  Raises:
    RunError: SFT is not complete, or its model is a different one.
  """
  c = session.config.sft
  if not (c.reuse or c.skill.steps or c.habits.steps):
    return _imported(session)
  workdir = pathlib.Path(c.reuse or session.workdir)
  for phase in reversed(PHASES):
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints" / phase)
    step = checkpoints.newest(session.display.say)
    if step is not None:
      break
  host = {} if step is None else checkpoints.host(step)
  # The habits phase is the last one, unless it had no steps.
  last = phase == "habits" or (host and not host["config"]["sft.habits.steps"])
  if step is None or not last or step != host["config"][f"sft.{phase}.steps"]:
    raise RunError(f"{workdir}: its SFT is not complete; run --stage=sft there")
  if c.reuse:  # the run's own config was compared with all that it wrote
    require_equal(
        f"sft.reuse = {workdir}",
        config_lib.flat(session.config),
        host["config"],
        ("model.", "tokenizer", "task.name"),
    )
  # The optimizer of the phase decides the shapes of its checkpoint.
  table, p = decoder.table(session.cfg), c[phase]
  tx = from_config(
      session.config.optimizer, lr=p.lr, schedule=p.schedule, total=p.steps
  )
  shardings = state_shardings(table, tx, session.mesh)
  return checkpoints.restore(step, abstract_state(table, tx, shardings)).params


def _train_phase(session: Session, name: str, params: Tree | None) -> Tree:
  """Runs or resumes one phase, from `params`, the checkpoint, or at random."""
  c = session.config
  phase, slots = c.sft[name], (c.rollout.max_prompt, c.rollout.max_tokens)
  first, played = None, session.environments
  observe = played.observer.text if played else None
  if params is not None or c.model.path:
    first = lambda _: _imported(session) if params is None else params  # noqa: E731
  return supervised.train(
      session,
      name,
      title=f"SFT: {name}",
      prefix="sft",
      table=decoder.table(session.cfg),
      first=first,
      stream=_stream(session, name),
      rows=lambda pairs: demonstrations.pack(
          session.tok, pairs, *slots, observe
      ),
      update=functools.partial(
          supervised.sft_update, cfg=session.cfg, router_aux=c.loss.router_aux
      ),
      steps=phase.steps,
      lr=phase.lr,
      schedule=phase.schedule,
      # Only the skill has a threshold.
      final_check=functools.partial(_require_skill, session)
      if name == "skill" and not facts.no_verifier(c)
      else None,
  )


def _stream(session: Session, name: str):
  """Batches of (prompt, response): of the task, or of sft.samples."""
  c = session.config
  if not c.sft.samples:
    mixture = facts.mixture(c.sft[name].mixture)
    return demonstrations.batches(session.rows, name, c.sft.batch, mixture)
  slots = c.rollout.max_prompt, c.rollout.max_tokens
  parts, weights = sample_files.read(
      "sft.samples",
      c.sft.samples,
      session.tok,
      slots,
      session.display.say,
      revisions=facts.revisions(c),
  )
  seed = host_seed(c.seed, f"samples of {name}")
  return sample_files.iterate(parts, weights, seed, c.sft.batch)


def _require_skill(session: Session, params: Tree) -> None:
  """Logs the greedy accuracy of the skill.

  Raises:
    TooWeak: it is below config.sft.skill.threshold.
  """
  c, threshold = session.config, session.config.sft.skill.threshold
  values, responses = accuracy.evaluate(
      session,
      params,
      c.evaluate.interim_prompts,
      "evaluating the skill",
      purpose="choose",
  )
  greedy = values[f"val-core/{responses[0].name}/acc/greedy"]
  session.log.metrics("skill", c.sft.skill.steps, values)
  session.display.say(
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
