"""Supervised fine-tuning: first a skill, then habits.

The skill stage imitates careful demonstrations until held-out accuracy says
that the model can do the task; the habits stage mixes in hasty ones, so that
it mostly does not: what RL then has to unlearn, and to find again.
"""

import functools
import pathlib

import jax
import numpy as np

from rl_reason import (
    checkpoint,
    config as config_lib,
    data,
    evaluate,
    model,
    step,
)
from rl_reason.stages import Once, Run, Stopped
from rl_reason.structs import RunError, Tree


class TooWeak(RunError):
  """The skill stage ended below its threshold: RL would have no signal."""


def run(run: Run) -> Tree:
  """Runs, resumes or skips both stages; returns the parameters.

  With config.sft.reuse they come from another work directory.

  Raises:
    TooWeak: the skill ended below its threshold.
    RunError: what is to be resumed or reused does not fit.
    Stopped: SIGTERM; everything is saved.
  """
  if run.config.sft.reuse:
    return load(run)
  params = _phase(run, "skill", None)
  return _phase(run, "habits", params)


def load(run: Run) -> Tree:
  """The parameters that SFT ended with, here or in config.sft.reuse.

  Raises:
    RunError: SFT is not complete there, or its model is another one.
  """
  workdir = pathlib.Path(run.config.sft.reuse or run.workdir)
  checkpoints = checkpoint.Checkpoints(workdir / "checkpoints" / "habits")
  at = checkpoints.newest(run.display.say)
  host = {} if at is None else checkpoints.host(at)
  if at is None or at != host["config"]["sft.habits.steps"]:
    raise RunError(f"{workdir}: its SFT is not complete; run --stage=sft there")
  here = config_lib.flat(run.config)
  for name in here:
    if name.startswith(("model.", "tokenizer", "task.name")):
      if here[name] != host["config"].get(name):
        raise RunError(
            f"sft.reuse = {workdir}: {name} is {host['config'].get(name)!r}"
            f" there and {here[name]!r} here; make them equal"
        )
  tx, shardings = _optimizer(run, "habits")
  like = step.abstract_state(model.table(run.cfg), tx, shardings)
  return checkpoints.restore(at, like).params


def _optimizer(run: Run, name: str):
  """The optimizer of a phase and the shardings of its state."""
  c = run.config.sft[name]
  tx = run.optimizer(lr=c.lr, schedule=c.schedule, warmup=0, total=c.steps)
  return tx, step.state_shardings(model.table(run.cfg), tx, run.mesh)


def _phase(run: Run, name: str, params: Tree | None) -> Tree:
  c = run.config.sft[name]
  every = run.config.checkpoint.sft_every
  checkpoints = run.checkpoints(name)
  tx, shardings = _optimizer(run, name)
  stream = data.demonstrations(
      run.task,
      run.levels,
      run.seed(name),
      run.config.sft.batch,
      config_lib.mixture(c.mixture),
  )

  found = run.resume(checkpoints)
  checked = name != "skill"  # only the skill has a threshold
  if found:
    at, host = found
    like = step.abstract_state(model.table(run.cfg), tx, shardings)
    state = checkpoints.restore(at, like)
    stream.set_state(host["data"])
    checked = host["checked"]
    if at == c.steps and checked:
      checkpoints.close()
      return state.params
    run.display.say(f"SFT ({name}): goes on at step {at} of {c.steps}")
  else:
    at = 0
    if params is None:
      state = step.init_state(
          model.table(run.cfg), tx, shardings, run.key("parameters")
      )
    else:
      state = step.new_state(params, tx, shardings)

  run.begin()
  update = Once(
      f"update of SFT ({name})",
      jax.jit(
          functools.partial(step.sft_update, cfg=run.cfg, tx=tx),
          donate_argnums=0,
          out_shardings=(shardings, None),
      ),
      run.display,
  )
  late = None  # metrics are read one step behind, while the device works

  def flush() -> None:
    nonlocal late
    if late is not None:
      _log(run, name, *late)
    late = None

  def save() -> None:
    flush()
    host = run.host_state(data=stream.get_state(), checked=checked)
    checkpoints.save(at, state, host)

  run.display.stage(f"SFT: {name}", c.steps, at)
  try:
    while at < c.steps:
      run.check_stop()
      rows = data.pack_demonstrations(
          run.tok,
          next(stream),
          run.config.rollout.max_prompt,
          run.config.rollout.max_tokens,
      )
      rows_A = step.split(rows, run.config.sft.micro_batches)
      state, metrics = update(state, run.put(rows_A, None, "batch"))
      flush()
      at += 1
      late = at, metrics
      if at % every == 0 or at == c.steps:
        save()
    if not checked:
      _require_skill(run, state.params, c.threshold)
      checked = True
      save()
  except Stopped:
    if checkpoints.saved != at:
      save()
    raise
  finally:
    run.display.end_stage()
    checkpoints.close()
  return state.params


def _log(run: Run, name: str, now: int, metrics) -> None:
  values = {k: np.asarray(v) for k, v in jax.device_get(metrics).items()}
  run.display.step(now, loss=float(values["loss"]))
  if now % run.config.log.sft_every == 0:
    run.log.metrics(name, now, {f"sft/{k}": v for k, v in values.items()})


def _require_skill(run: Run, params: Tree, threshold: float) -> None:
  c = run.config
  values, _ = evaluate.evaluate(
      run, params, c.evaluate.interim_prompts, "evaluating the skill"
  )
  greedy = values[f"val-core/{c.task.name}/acc/greedy"]
  run.log.metrics("skill", c.sft.skill.steps, values)
  run.display.say(f"skill: {greedy:.1%} of held-out prompts right (greedy)")
  if greedy < threshold:
    raise TooWeak(
        f"sft.skill.threshold = {threshold:.0%}, reached {greedy:.1%} after"
        f" {c.sft.skill.steps} steps: RL would have little to build on. Raise"
        " sft.skill.steps, try another seed, or lower the threshold"
    )
