"""The outer loop: each round is a run that starts from the last policy.

  WORKDIR/round-0               the initial policy: SFT or model.path
  WORKDIR/round-0/generated     samples of this policy, training data of round 1
  WORKDIR/round-1               SFT on samples, or RL with a reward model
  WORKDIR/round-1/reward_model  the run that trains the reward model on pairs
  WORKDIR/metrics.jsonl         the evaluation after each round

Rejection-sampled SFT (STaR, RAFT, expert iteration) imitates the correct
samples. With generate.keep = "pairs" a reward model learns from pairs of
samples, and RL maximizes its scores: the outer loop of GRPO (arXiv:2402.03300,
algorithm 1), which renews reference policy and reward model every rl.steps
steps.

Every part is a resumable stage, so the only state of the loop is metrics.jsonl:
the same command continues, with bit-identical results.
"""

import contextlib
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_collections

from rl_reason.base import config as config_lib, errors, fields, json_files
from rl_reason.checks import config_checks, path_contents, run_directory
from rl_reason.devices.randomness import host_seed
from rl_reason.monitoring import run_log
from rl_reason.report import charts, compare, page, scores

Stages = Callable[..., tuple[Any, Any]]


def run(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    screen: Any,
    stop: threading.Event,
    stages: Stages,
    stage: str = "all",
) -> tuple[Any, Any]:
  """Runs or resumes all rounds.

  Args:
    config: checked.
    workdir: work directory of all rounds.
    screen: a `Display`.
    stop: set by SIGTERM.
    stages: `run.stages`, which runs the stages of a round.
    stage: must be 'all'.

  Returns:
    the session of the last round, and its policy.

  Raises:
    ConfigError: the config of a round is invalid; raised before any training
      where possible.
    RunError, DataError, Stopped: raised by a stage; the same command resumes.
  """
  count, line_file = config.rounds.count, workdir / run_log.FILES[0]
  lines = json_files.read_jsonl(line_file)
  if stage != "all":
    last = directory(workdir, max(len(lines) - 1, 0))
    raise errors.ConfigError(
        f"--stage={stage}: rounds.count = {count}, and a single stage belongs"
        f" to one round: give --workdir={last} without --config"
    )
  if set(run_directory.NO_SOURCE) & set(str(workdir)):
    raise errors.ConfigError(
        f"--workdir = {workdir}: rounds name sources in this directory:"
        " choose one without the characters"
        f" {' '.join(run_directory.NO_SOURCE)}"
    )
  config_checks.fields(of_round(config, 1, workdir, ".", "rounds/model"))
  found: tuple[Any, Any] = (None, None)
  with recorded(config, workdir, screen.say) as is_first:
    # Of the finished rounds only the last one is opened, for the return value.
    for number in range(min(len(lines), count), count + 1):
      # Writing its line is the last step of a round: without it, it is new.
      new = number == len(lines)
      screen.say(f"round {number} of {count}: {directory(workdir, number)}")
      made, about = number and new, {}
      if made:
        about = _samples(config, number - 1, workdir, screen, stop, stages)
      model = ""
      if number and config.generate.keep == "pairs":
        where = directory(workdir, number) / "reward_model"
        model = str(where / "export" / "reward_model")
        if made:
          learner = _of_reward_model(config, number, workdir)
          stages(learner, where, screen, stop, stage="reward_model")
          about |= _preferences(where)
      c = of_round(
          config, number, workdir, mixture(config, number, workdir), model
      )
      found = stages(c, directory(workdir, number), screen, stop)
      if new:
        after = run_log.read_metrics(directory(workdir, number))
        lines.append(
            _line(number, scores.of_stage(after, "evaluate")[-1], about)
        )
        if is_first:
          text = "".join(json.dumps(line) + "\n" for line in lines)
          json_files.write_text(line_file, text)
    if is_first:
      for text in summary(lines):
        screen.say(text)
      rounds = [directory(workdir, i) for i in range(len(lines))]
      screen.say(f"all rounds side by side: {compare.write(rounds)}")
      screen.say(f"report: {page.write(workdir)}")
  return found


@contextlib.contextmanager
def recorded(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    say: Callable[[str], None],
) -> Iterator[bool]:
  """Locks the work directory of several runs, and records their config.

  Yields whether this process is the first one, which writes.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  is_first = jax.process_index() == 0
  lock = run_directory.lock(workdir, say) if is_first else None
  try:
    if is_first:
      shown = config.copy_and_resolve_references()
      path_contents.record(shown)  # so that its paths may move
      json_files.write_json(workdir / "config.json", config_lib.flat(shown))
    yield is_first
  finally:
    if lock:
      lock.close()


def directory(workdir: pathlib.Path, number: int) -> pathlib.Path:
  """The work directory of a round."""
  return workdir / f"round-{number}"


def of_round(
    config: ml_collections.ConfigDict,
    number: int,
    workdir: pathlib.Path,
    samples: str = "",
    model: str = "",
) -> ml_collections.ConfigDict:
  """The config of the run of a round.

  Args:
    config: config of all rounds.
    number: of the round; round 0 makes the initial policy, without RL.
    workdir: work directory of all rounds.
    samples: sources to imitate, if there is no reward model.
    model: exported reward model of the round.
  """
  c = config.copy_and_resolve_references()
  r = config.rounds
  for name in r:
    c.rounds[name] = fields.FIELDS[f"rounds.{name}"].default
  if c.critic.init == "exported" and not c.critic.path:
    # Without a reward model yet, nothing needs the critic.
    c.critic.init = "exported" if model else "policy"
    c.critic.path = model
  if not number:
    c.rl.steps = 0
    c.optimizer.warmup_steps = c.critic.warmup_steps = 0
    return c
  before = directory(workdir, number - 1)
  c.seed = host_seed(config.seed, f"round {number}")  # other prompts and noise
  c.model.path, c.sft.reuse = str(before / "export" / "policy"), ""
  c.sft.steps = c.sft.warmup_steps = c.sft.habits.steps = 0
  c.sft.difficulties = ()
  if config.generate.keep != "pairs":
    c.sft.samples = samples
    c.sft.update(steps=r.steps, lr=r.lr, threshold=0.0)
  else:
    term = f"{model}*{r.weight}"
    if r.verdict:
      term = ",".join(filter(None, [c.reward.functions, term]))
    else:
      c.reward.correct = c.reward.incorrect = 0.0
    c.reward.functions = term
  return c


def mixture(
    config: ml_collections.ConfigDict, number: int, workdir: pathlib.Path
) -> str:
  """The samples that a round learns from: new ones, and a share of older ones.

  They are sources with weights; '' for round 0.
  """
  r, shown = config.rounds, []
  for i in range(number):
    steps = config.rl.steps if i else 0
    path = directory(workdir, i) / "generated" / str(steps)
    old = r.replay / (number - 1) if number > 1 else 0.0
    weight = old if i < number - 1 else 1 - old * (number - 1)
    if weight:
      shown.append(f"{path}*{weight:.6g}")
  return ",".join(shown)


def _of_reward_model(
    config: ml_collections.ConfigDict, number: int, workdir: pathlib.Path
) -> ml_collections.ConfigDict:
  """The config of the reward model of a round, which continues the last one."""
  c = of_round(config, number, workdir)
  c.reward = config.reward.copy_and_resolve_references()
  parts = [mixture(config, number, workdir), config.reward_model.samples]
  c.reward_model.samples = ",".join(filter(None, parts))
  if number > 1:
    before = directory(workdir, number - 1) / "reward_model"
    c.reward_model.init = str(before / "export" / "reward_model")
  return c


def _samples(
    config: ml_collections.ConfigDict,
    number: int,
    workdir: pathlib.Path,
    screen,
    stop,
    stages,
) -> dict[str, Any]:
  """Exports the policy of a round, writes graded samples; returns counts."""
  c = of_round(config, number, workdir)
  c.rl.steps = config.rl.steps if number else 0
  c.reward = config.reward.copy_and_resolve_references()  # grades the pairs
  place = directory(workdir, number)
  stages(c.copy_and_resolve_references(), place, screen, stop, stage="export")
  stages(c.copy_and_resolve_references(), place, screen, stop, stage="generate")
  manifest = place / "generated" / f"{c.rl.steps}.json"
  totals = json.loads(manifest.read_text())["totals"]
  return {f"rounds/{name}": value for name, value in totals.items()}


def _preferences(workdir: pathlib.Path) -> dict[str, Any]:
  """Metrics of the reward model of a round on held-out pairs."""
  lines = run_log.read_metrics(workdir)
  return {
      name: value
      for name, value in scores.of_stage(lines, "reward_model")[-1].items()
      if name.startswith("val-core/preferences/")
  }


def _line(number: int, evaluation: dict, about: dict) -> dict[str, Any]:
  """A line of metrics.jsonl, whose step is the round."""
  values = {k: x for k, x in evaluation.items() if k.startswith("val-")}
  about = {k.replace("val-core/", "rounds/"): x for k, x in about.items()}
  return dict(stage="evaluate", step=number) | values | about


def lines_of_rl(workdir: pathlib.Path, steps: int) -> list[dict]:
  """The lines of RL and of its evaluations, as if all rounds were one run.

  Steps count on from round to round, and so do generated tokens, which include
  the samples that a round learns from. FLOPs are left out, since none are
  counted for samples and reward models.

  Args:
    workdir: work directory of all rounds.
    steps: RL steps of a round.
  """
  name = charts.COSTS["tokens"]
  out: list[dict] = []
  before = 0
  for about in json_files.read_jsonl(workdir / run_log.FILES[0])[1:]:
    before = tokens = before + about.get("rounds/tokens", 0)
    for line in run_log.read_metrics(directory(workdir, about["step"])):
      if line["stage"] not in ("value", "rl", "evaluate"):
        continue
      tokens = before + line.get(name, tokens - before)
      if line["stage"] == "evaluate" and not line["step"] and out:
        continue  # the round before ended with an evaluation of this policy
      done = steps * (about["step"] - 1)
      line = {k: x for k, x in line.items() if k != charts.COSTS["flops"]}
      out.append(line | {"step": line["step"] + done, name: tokens})
    before = tokens
  return out


def summary(lines: list[dict]) -> list[str]:
  """The headline score after each round, as text."""
  out = []
  for line in lines:
    found = scores.scores(line)
    name, _ = scores.headline(found)
    text = f"round {line['step']}: {name} {found[name].text()}"
    if "rounds/rows" in line:
      text += f", from {line['rounds/rows']:,} rows of the last policy"
    out.append(text)
  return out
