"""Evaluation as a stage of its own, from a work directory."""

import jax

from rl_reason import evaluate, metrics
from rl_reason.stages import Run, rl, sft


def run(run: Run, which: str) -> dict[str, float]:
  """Evaluates a checkpoint and writes evaluation-<which>.json.

  Args:
    run: everything that the stages share.
    which: 'sft', 'newest', 'best', or a step of RL.

  Returns:
    the metrics.

  Raises:
    RunError: there is no such checkpoint.
  """
  if which == "sft":
    params, at = sft.load(run), 0
  else:
    params, _, at = rl.load(run, which)
  count = run.config.evaluate.prompts
  values, _ = evaluate.evaluate(run, params, count, "evaluating")
  values = {k: metrics.number(v) for k, v in values.items()}
  for name, value in values.items():
    run.display.say(f"{name} = {value:.4g}")
  if jax.process_index() == 0:
    path = run.workdir / f"evaluation-{which}.json"
    metrics.write_json(path, dict(step=at) | values)
    run.display.say(f"written to {path}")
  return values
