"""Phases: parts of RL, each a run that starts from the state of the last one.

  WORKDIR/phase-0        SFT (or model.path), then RL until the first end
  WORKDIR/phase-1        RL from there (rl.init), with other fields
  WORKDIR/metrics.jsonl  the lines of all phases, by steps of the whole run

The optimizer goes on, unless refresh=optimizer; so does the reference of a KL,
which is the policy before RL, unless refresh=reference makes it the policy that
the phase starts from. Every phase evaluates the held-out sets of all phases so
far, and measures how far each has fallen below its best (`forgetting`).

Each phase is a resumable run, and WORKDIR/metrics.jsonl is made of their logs,
so the loop has no state of its own: the same command continues, with
bit-identical results.
"""

import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import ml_collections
from jax.experimental import multihost_utils

from rl_reason.base import errors, json_files, phase_plan
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import phase_rules
from rl_reason.data import tokenizer
from rl_reason.evaluation import forgetting
from rl_reason.lab import rounds
from rl_reason.monitoring import run_log
from rl_reason.report import compare, page, scores


def run(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    screen: Any,
    stop: threading.Event,
    stages: Callable[..., tuple[Any, Any]],
    stage: str = "all",
) -> tuple[Any, Any]:
  """Runs or resumes all phases.

  Args:
    config: checked, with all phases.
    workdir: work directory of all phases.
    screen: a `Display`.
    stop: set by SIGTERM.
    stages: `run.stages`, which runs the stages of a phase.
    stage: must be 'all'.

  Returns:
    the session of the last phase, and its policy.

  Raises:
    ConfigError: a single stage is asked for.
    RunError, DataError, Stopped: raised by a stage; the same command resumes.
  """
  plan = phase_plan.parse(config.phases)
  count, place = len(plan), phase_rules.directory
  if stage != "all":
    begun = [i for i in range(count) if place(workdir, i).exists()]
    last = max(begun, default=0)
    raise errors.ConfigError(
        f"--stage={stage}: the config has {count} phases, and a single stage"
        f" belongs to one: give --workdir={place(workdir, last)} without"
        " --config"
    )
  configs = [phase_rules.of_phase(config, i, workdir) for i in range(count)]
  found: tuple[Any, Any] = (None, None)
  with rounds.recorded(config, workdir, screen.say) as is_first:
    if is_first and (characters := phase_rules.alphabet(config)):
      where = phase_rules.tokenizer(workdir)
      tokenizer.characters(characters).save_pretrained(where)
    multihost_utils.sync_global_devices("tokenizer of all phases")
    for number, c in enumerate(configs):
      # Of finished phases only the last one is opened, for the return value.
      if number + 1 < count and _finished(c, place(workdir, number)):
        continue
      start = plan[number - 1].until if number else 0
      screen.say(
          f"phase {number}, steps {start} to {plan[number].until} of"
          f" {plan[-1].until}: {place(workdir, number)}"
      )
      found = stages(c, place(workdir, number), screen, stop)
      if is_first:
        lines = merged(workdir, plan)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        json_files.write_text(workdir / run_log.FILES[0], text)
    if is_first:
      screen.table(
          "held-out scores at the end of each phase, and forgetting",
          *summary(workdir, plan),
      )
      directories = [place(workdir, i) for i in range(count)]
      screen.say(f"all phases side by side: {compare.write(directories)}")
      screen.say(f"report: {page.write(workdir)}")
  return found


def merged(
    workdir: pathlib.Path, plan: tuple[phase_plan.Phase, ...]
) -> list[dict[str, Any]]:
  """The log lines of all phases so far, by steps of the whole run.

  The first evaluation of a phase is of the same policy as the last one of the
  phase before: only its metrics of further sets are added.
  """
  out: list[dict[str, Any]] = []
  for number, start in enumerate([0, *(x.until for x in plan[:-1])]):
    for line in _lines(workdir, number):
      if number and line["stage"] not in ("rl", "evaluate"):
        continue
      if line["stage"] in ("rl", "evaluate"):
        line = line | dict(step=line["step"] + start)
      if number and line["stage"] == "evaluate" and line["step"] == start:
        last = [x for x in out if x["stage"] == "evaluate"][-1]
        known = {x for x in line if "forgetting" in x} | last.keys()
        last |= {k: x for k, x in line.items() if k not in known}
        continue
      out.append(line)
  return out


def summary(
    workdir: pathlib.Path, plan: tuple[phase_plan.Phase, ...]
) -> tuple[list[str], list[list[str]]]:
  """A table: a row for each held-out set, and a column for each phase."""
  lines = scores.of_stage(merged(workdir, plan), "evaluate")
  by_step = {x["step"]: scores.by_set(x) for x in lines}
  ends = [x.until for x in plan if x.until in by_step]
  rows = []
  for name in dict.fromkeys(name for x in by_step.values() for name in x):
    if name.startswith(scores.VALIDATION):
      continue
    cells = []
    for end in ends:
      found = by_step[end].get(name, {})
      mean, _ = scores.headline(found)
      cells.append(found[mean].text() if mean else "–")
    lost = lines[-1].get(forgetting.metric(name))
    cells.append(
        "–" if lost is None else forgetting.amount(lost, name, lines[-1])
    )
    rows.append([name, *cells])
  return ["", *(f"step {x}" for x in ends), "forgetting"], rows


def _lines(workdir: pathlib.Path, number: int) -> list[dict[str, Any]]:
  """The log of a phase; [] if it has not begun."""
  place = phase_rules.directory(workdir, number)
  if not (place / run_log.FILES[0]).exists():
    return []
  return run_log.read_metrics(place)


def _finished(c, place: pathlib.Path) -> bool:
  """Whether the last step of a phase is saved and evaluated."""
  newest = checkpoint.newest_host(place / "checkpoints" / "rl")
  if newest is None:
    return False
  step, host = newest
  return step == c.rl.steps and host.get("evaluated", False)
