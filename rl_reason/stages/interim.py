"""Between the steps of RL: evaluations, checkpoints, and the end."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from rl_reason.base import config as config_lib
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.resumable import ResumableStage
from rl_reason.checkpointing.rl_state import RLState
from rl_reason.evaluation import accuracy
from rl_reason.monitoring import alerts, bands, resources, run_log
from rl_reason.monitoring.health import HealthMonitor
from rl_reason.monitoring.step_logger import StepLogger
from rl_reason.report import calibration, scores as scores_lib
from rl_reason.stages import evaluate as evaluate_lib
from rl_reason.stages.run_output import Output
from rl_reason.stages.session import Session


def is_due(step: int, total: int, every: int) -> bool:
  """Whether an evaluation is due before RL step `step` + 1."""
  return step in (0, total) or bool(every and step % every == 0)


def is_complete(state: RLState, total: int, display: Any) -> bool:
  """Whether a restored run has nothing left to do.

  Raises:
    RunError: it is already beyond config.rl.steps.
  """
  if state.step > total:
    raise RunError(
        f"rl.steps = {total}: this run is at step {state.step} already; ask for"
        " more steps, or choose another --workdir"
    )
  complete = state.step == total and state.evaluated
  if complete:
    display.say(f"this run is complete: {state.step} of {total} RL steps")
  return complete


def between_steps(
    c,
    evaluate: Callable[[Tree, RLState], float | None],
    stage: ResumableStage,
    health: HealthMonitor,
    logger: StepLogger,
    clock: resources.Clock,
) -> Callable[[RLState, Tree], bool]:
  """(RL state, its policy) -> whether a step follows; evaluates and saves."""
  total, every, save_every = c.rl.steps, c.evaluate.every, c.checkpoint.every

  def goes_on(state: RLState, params: Tree) -> bool:
    if not state.evaluated and is_due(state.step, total, every):
      logger.flush()
      score = evaluate(params, state)
      state.evaluated = True
      stage.save(state, score)
      clock.skip()
    elif stage.due(state.step, save_every):
      stage.save(state)
      clock.lap("host")
    stage.check_stop()
    health.enforce(logger.flush)
    return state.step < total

  return goes_on


def evaluation(c, session: Session) -> Callable[..., float | None]:
  """(params, RL state) -> the score by which checkpoints compete; logs it."""
  output, answer = session.output, session.row_source.task.answer
  evaluate = functools.partial(evaluate_lib.evaluate, c, session)
  band = bands.Watch(config_lib.flat(c), output.display.say)
  return functools.partial(run, c, evaluate, output, band, answer)


def run(
    c,
    evaluate: Callable,
    output: Output,
    band: bands.Watch | None,
    answer: Callable[..., str],
    params: Tree,
    state: RLState,
) -> float | None:
  """Logs an evaluation; returns the score by which checkpoints compete.

  The score is None if it was not measured. `answer` is of the task, for the
  calibration before and after RL.
  """
  state.parts.wait()  # sampler and verifiers are shared
  say, start = output.display.say, time.monotonic()
  first_or_last = state.step in (0, c.rl.steps)
  count = c.evaluate.interim_prompts
  if first_or_last:
    count = c.evaluate.prompts
  values, responses = evaluate(
      params,
      count,
      "evaluating",
      rewards=lambda: state.collector.rewards,
      purpose="both" if first_or_last else "choose",
  )
  output.display.steps_begin(state.step)
  values |= resources.totals(state.counters)
  values |= state.parts.evaluated(values, state.step)
  values["timing_s/testing"] = time.monotonic() - start
  output.log.metrics("evaluate", state.step, values)
  if first_or_last and jax.process_index() == 0:
    held_out = [
        x
        for x in responses
        if not x.chooses and x.measure == "acc" and x.measured
    ]
    bins = {x.name: accuracy.calibration(x, answer) for x in held_out}
    calibration.write(output.workdir, state.step, bins)
  for of_set in responses:
    head = dict(stage=run_log.DOUBTFUL, step=state.step)
    output.log.samples([head | line for line in of_set.doubtful or ()])
    # The report compares responses before and after RL, none in between.
    if first_or_last:
      output.log.samples(
          [
              dict(stage="evaluate", step=state.step) | line
              for line in of_set.lines
          ]
      )
    measure = of_set.measure
    name = f"val-core/{of_set.name}/{measure}/mean@{c.evaluate.mean_of}"
    if name not in values:
      continue  # `evaluate.failures` says so
    mean, half = values[name], values[name + "/ci95"]
    suffix = f" of {of_set.name}" if responses[1:] else ""
    what, text = "accuracy", f"{mean:.1%} +- {half:.1%}"
    if measure == "reward":
      what, text = "reward", f"{mean:.4g} +- {half:.2g}"
    # A validation set chose the checkpoint: its score is no held-out one.
    kind = "held-out"
    if of_set.chooses:
      kind, suffix = of_set.name, ""
    say(f"{kind} {what}{suffix} at step {state.step}: {text}")
    terms = [
        f"{k.removeprefix(scores_lib.REWARD)} {x.text()}"
        for k, x in scores_lib.by_set(values)[of_set.name].items()
        if k.startswith(scores_lib.REWARD)
    ]
    if terms:
      say(f"{kind} mean of reward functions{suffix}: {', '.join(terms)}")
  chosen = any(of_set.chooses for of_set in responses)
  if not (state.step or chosen) and c.evaluate.validation:
    say(
        "no prompt is left for validation, so held-out prompts choose the best"
        " checkpoint, whose score on them will be too high: lower"
        " evaluate.prompts, or add training rows"
    )
  lines = run_log.read_metrics(output.workdir)
  found = alerts.of_evaluation(values, config_lib.flat(c))
  broken = [alert.message for alert in found]
  broken += evaluate_lib.failures(values, responses)
  for line in [*broken, *alerts.of_evaluations(lines)]:
    say(f"warning: {line}")
  if band and band.band:
    if not state.step:
      say(band.band.about())
    band.check(values | dict(stage="evaluate", step=state.step))
  if accuracy.SCORE not in values:
    say(
        f"warning: the evaluation at step {state.step} chooses no checkpoint:"
        " a set that chooses was not measured"
    )
  return values.get(accuracy.SCORE)
