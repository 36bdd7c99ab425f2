"""The evaluation stage: evaluates checkpoints of work directories.

WORKDIR/evaluation-WHICH.json       all metrics
WORKDIR/results-WHICH.json          the same in the layout of lm-eval-harness
WORKDIR/prompts-WHICH.jsonl         the scores of each prompt
WORKDIR/responses-WHICH.html        all responses, for the browser

Tasks, difficulties and lengths may differ from those of the run (out of
distribution), and the policy may have the precision of an export; the names of
the files then say which. Several checkpoints (and, by further calls, several
work directories) are evaluated by one command, on the same noise. Features add
sets and metrics: see `feature.Evaluator`.
"""

import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.base import (
    config as config_lib,
    feature,
    json_files,
    resume_rules,
)
from rl_reason.base.fields import FIELDS
from rl_reason.base.structs import Rollouts, Tree
from rl_reason.checkpointing.resumable import check_stop
from rl_reason.checks import config_facts, run_directory
from rl_reason.collect import doubtful_verdicts
from rl_reason.collect.reward_runner import Rewards
from rl_reason.data import held_out, pipelines
from rl_reason.data.pipelines import RowSource
from rl_reason.devices import sharding
from rl_reason.devices.randomness import key
from rl_reason.evaluation import results, set_table
from rl_reason.evaluation.accuracy import (
    NOT_MEASURED,
    Responses,
    lines_of_prompts,
    respond,
    summarize_sets,
)
from rl_reason.monitoring import alerts
from rl_reason.report import paired
from rl_reason.rollout import sampling_filters
from rl_reason.stages import lower_precision, scorer, trained_parameters
from rl_reason.stages.session import Session


class Evaluation(NamedTuple):
  """What an evaluation of a policy has found.

  Attributes:
    path: the file with the scores of each prompt, which names the policy.
    metrics: of all sets.
    lines: of `accuracy.lines_of_prompts`, of all sets.
    fields: the flat config.
  """

  path: pathlib.Path
  metrics: dict[str, Any]
  lines: list[dict[str, Any]]
  fields: Mapping[str, Any]


def run(
    c,
    session: Session,
    which: str,
    earlier: Sequence[Evaluation] = (),
) -> list[Evaluation]:
  """Evaluates checkpoints, and writes the files above.

  `which` are names of checkpoints as in `trained_parameters.policy`, separated
  by commas, and `earlier` evaluations of other work directories by the same
  command.

  Returns:
    the earlier evaluations, then one of each checkpoint.

  Raises:
    RunError: there is no such checkpoint.
  """
  names = dict.fromkeys(x.strip() for x in which.split(","))
  for name in names:
    trained_parameters.require(c, name, session.output)
  evaluator = feature.evaluator(
      c,
      feature.Evaluating(
          session.row_source, session.tok, session.output.display
      ),
  )
  rewards = functools.partial(scorer.rewards, c, session, session.model.mesh)
  one = functools.partial(
      _evaluated,
      c,
      session,
      evaluator=evaluator,
      rewards=functools.cache(rewards),
  )
  done = [*earlier]
  for name in names:
    done.append(one(name, done))
  evaluator.end(done)
  return done


def _evaluated(
    c,
    session: Session,
    which: str,
    earlier: Sequence[Evaluation],
    *,
    evaluator: feature.Evaluator,
    rewards: Callable[[], Rewards],
) -> Evaluation:
  """Evaluates one checkpoint, and writes its files.

  `earlier` are evaluations of the same command.
  """
  model, output = session.model, session.output
  row_source = session.row_source
  workdir, say = output.workdir, output.display.say
  params, _, step, about = trained_parameters.policy(
      c, which, model=model, output=output
  )
  if c.export.precision != "same":
    merged = trained_parameters.merged(params)
    params = lower_precision.rounded(c, merged, model)
    about += f" in {c.export.precision}, as it is exported"
  say(f"evaluating {about}")
  further = evaluator.sets()
  found, sets = evaluate(
      c,
      session,
      params,
      c.evaluate.prompts,
      "evaluating",
      further={name: [row for row, _ in x] for name, x in further.items()},
      rewards=rewards,
      sampling=evaluator.sampling,
  )
  values: dict[str, Any] = {k: json_files.number(x) for k, x in found.items()}
  output.display.table(
      f"held-out scores of step {step} ({which}), with 95% intervals over"
      " prompts",
      *set_table.as_text(values, [x for x in sets if x.name not in further]),
  )
  name = which + "".join(
      f",{field}={run_directory.text(value)}"
      for field, value in elsewhere(c, workdir).items()
  )
  lines = [
      line
      for x in sets
      for line in lines_of_prompts(
          x,
          row_source.task.answer,
          originals=[original for _, original in further.get(x.name, ())],
      )
  ]
  path = workdir / f"{paired.PREFIX}{name}.jsonl"
  fields = config_lib.flat(c)
  evaluation = Evaluation(path, values, lines, fields)
  values |= evaluator.metrics(evaluation, sets, earlier)
  if line := perhaps_right(values):
    say(line)
  for line in _warnings(c, which, values, sets, row_source):
    say(f"warning: {line}")
  if jax.process_index() == 0:
    paired.write(path, lines)
    say(f"scores of each prompt: {path}")
    place = workdir / f"evaluation-{name}.json"
    json_files.write_json(place, dict(step=step) | values)
    say(f"all metrics: {place}")
    dropped = held_out.dropped(row_source)
    harness = results.harness_results(values, sets, fields, dropped)
    place = workdir / f"results-{name}.json"
    json_files.write_json(place, harness)
    say(f"in the layout of lm-evaluation-harness: {place}")
    place = workdir / f"responses-{name}.html"
    title = f"{workdir.absolute().name}, step {step}{name.removeprefix(which)}"
    page_text = results.responses_page(
        title, values, sets, row_source.task.answer
    )
    json_files.write_text(place, page_text)
    say(f"responses: {place}")
  return evaluation


def perhaps_right(values: Mapping[str, Any]) -> str:
  """How many rejected responses the verifier may not have read; '' without."""
  count = values.get("val-aux/perhaps_right")
  if not count:
    return ""
  return (
      f"rejected, perhaps right: {count:,} of up to {doubtful_verdicts.MOST}"
      " rejected responses of each set that were read again, leniently: the"
      " verifier may not read this form of answers; responses-WHICH.html lists"
      " them"
      " (val-aux/perhaps_right; docs/rewards.md)"
  )


def elsewhere(c, workdir: pathlib.Path) -> dict[str, Any]:
  """What differs from the run: task, difficulties, lengths, precision.

  Without a run, where model.path is evaluated, it is the precision.
  """
  saved, now = workdir / "config.json", config_lib.flat(c)
  of_run = now | {"export.precision": "same"}
  if saved.exists():
    of_run = config_lib.load(saved)
  return {
      name: now[name]
      for name in resume_rules.elsewhere()
      if of_run.get(name, FIELDS[name].default) != now[name]
  }


def _warnings(
    c,
    which: str,
    values: dict[str, Any],
    sets: Sequence[Responses],
    row_source: RowSource,
) -> list[str]:
  """What makes these scores too high or too low."""
  out = [x.message for x in alerts.of_evaluation(values, config_lib.flat(c))]
  if chose(which, lambda: validation_sets(c, row_source)):
    out.append(
        "held-out prompts chose this checkpoint, so its score on them is too"
        " high: report the last one, or train with evaluate.validation"
    )
  return out + failures(values, sets)


def failures(values: dict[str, Any], sets: Sequence[Responses]) -> list[str]:
  """Lines on failures in an evaluation; [] without any."""
  out = [not_measured(x) for x in sets if not x.measured]
  if (failed := values["val-aux/verifier_failures"]) and not out:
    out.append(
        f"verifier or reward functions failed {failed:,} times in this"
        " evaluation: without a verdict a response counts as incorrect, and"
        " without a score it is left out of the means of rewards"
    )
  return out


def not_measured(responses: Responses) -> str:
  """Why a set has no score, and the remedy."""
  count = responses.lengths_NG.size
  if not responses.unknown:
    return (
        f"{responses.name} has no score: reward.functions returned None for all"
        f" {count:,} responses"
    )
  what = "the verifier" if responses.measure == "acc" else "reward.functions"
  return (
      f"{responses.name} has no score: {what} failed on"
      f" {responses.unknown:,} of {count:,} responses, more than"
      f" {NOT_MEASURED:.0%}; read the first traceback above, repair the"
      " verifier or the server, and evaluate the checkpoint again"
      " (--stage=evaluate)"
  )


def chose(which: str, validation: Callable[[], object]) -> bool:
  """Whether held-out prompts chose the checkpoint that they score."""
  return which == "best" and not validation()


def evaluate(
    c,
    session: Session,
    params: Tree,
    prompts: int,
    title: str,
    *,
    rewards: Callable[[], Rewards] | None = None,
    further: Mapping[str, list[tasks.Row]] | None = None,
    purpose: str = "held out",
    sampling: Callable[[tasks.Row], dict[str, Any]] = lambda row: {},
) -> tuple[dict[str, float], list[Responses]]:
  """Evaluates a policy on the held-out sets of a run, or to choose.

  A threshold or a checkpoint is chosen by validation prompts, if there are any:
  a held-out score that chose would be too high. 'val-aux/score' is the score
  that chooses; it is missing where nothing is chosen.

  Args:
    c: the checked config; config.evaluate says how to sample.
    session: what the run has opened; `Session.engine` samples.
    params: parameters of the policy.
    prompts: maximum number of prompts of each set.
    title: shown during the evaluation.
    rewards: gives the terms of the reward, which are scored on all responses
      and measure rows without a verifier; None: nothing is scored, and no
      response to such rows is correct.
    further: sets besides the held-out ones of the run.
    purpose: 'held out': nothing is chosen; 'choose'; or 'both', where
      validation sets come last.
    sampling: (a row of a set) -> fields with which the set is sampled.

  Returns:
    metrics, and the responses to each set.
  """
  engine, tok, output = session.engine, session.tok, session.output
  mesh, row_source = session.model.mesh, session.row_source
  weights, player = engine.weights(params), feature.first(c, "player")
  random_key = key(mesh, c.seed, "evaluate")

  def sample(of_set, rows, ids, count) -> tuple[Rollouts, Any]:
    e = of_set.evaluate
    temperatures = [e.temperature] * e.samples + [0.0]
    temperature_G = np.array(temperatures, np.float32)
    group_size, limit = len(temperature_G), of_set.rollout.max_tokens
    sizes_N = [group_size] * len(rows)
    played = player.play(session, rows, ids, sizes_N) if player else None
    texts = [row.prompt for row in rows] if played is None else played.prompts
    prompts = pipelines.pack_prompts(tok, texts, ids, c.rollout.max_prompt)

    def stream(**options):
      parts = engine.stream(
          weights,
          prompts,
          random_key,
          temperature_G,
          group_size=group_size,
          filters=sampling_filters.of(e),
          on_dispatch=functools.partial(check_stop, output.stop),
          **dict(limits_B=limit) | slots(c, len(rows) * group_size) | options,
      )
      return (part.with_arrays(sharding.fetch) for part in parts)

    if played is None:  # rows that fill up the batch end at once
      limits_B = np.ones(len(rows) * group_size, np.int32)
      limits_B[: count * group_size] = limit
      *_, sampled = stream(limits_B=limits_B)
    else:
      *_, sampled = played.stream(stream)
    return sampled.rollouts, played

  def progress(text: str) -> None:
    check_stop(output.stop)
    output.display.doing(f"{title}: {text}")

  chooses = validation_sets(c, row_source) if purpose != "held out" else {}
  sets: dict[str, list[tasks.Row]] = {}
  every_set = bool(feature.set_fields(c, "all_sets"))
  if not chooses or purpose == "both" or every_set:
    found = held_out.evaluation_sets(row_source, c.evaluate.prompts)
    sets = {name: rows[:prompts] for name, rows in found.items()}

  def responses_to(name: str, rows: list[tasks.Row]) -> Responses:
    # Each number of samples has a sampler of its own, which is compiled. More
    # samples of a prompt leave room for fewer prompts at a time.
    of_set, batch, changed = c, c.evaluate.batch, sampling(rows[0])
    if changed:
      of_set = config_lib.unflat(config_lib.flat(c) | changed)
      room = batch * (c.evaluate.samples + 1) // (of_set.evaluate.samples + 1)
      shards = sharding.num_shards(mesh, "batch")
      batch = -(-min(max(room, 1), batch, len(rows)) // shards) * shards
    return respond(
        functools.partial(sample, of_set),
        tok,
        row_source.task,
        name,
        rows,
        batch=batch,
        max_prompt=c.rollout.max_prompt,
        num_lines=c.log.samples,
        progress=progress,
        mean_of=of_set.evaluate.mean_of,
        style=c.data.template,
        sampling=changed,
        rewards=rewards,
    )

  responses = list(
      itertools.starmap(
          responses_to, {**sets, **(further or {}), **chooses}.items()
      )
  )
  chosen_by = set(chooses) or set(sets)
  return (
      summarize_sets(
          responses,
          chosen_by if purpose != "held out" else (),
          row_source.task.answer,
          score_of=c.evaluate.interim_prompts,
      ),
      responses,
  )


def slots(c, rows: int) -> dict[str, Any]:
  """Fields of `sampler.Sampler`: an evaluation needs no more memory than RL.

  Where rollout.slots is 0, `rows` responses decode in as many slots as a round
  of RL has responses.
  """
  most = config_facts.most_slots(c)
  if c.rollout.slots or not 0 < most < rows:
    return {}
  return dict(slots=most, least=most)  # each size compiles a program


def validation_sets(c, row_source: RowSource) -> dict[str, list[tasks.Row]]:
  """Rows that choose; {} if the config or the data have none."""
  e = c.evaluate
  if not e.validation:
    return {}
  return held_out.validation_sets(row_source, e.interim_prompts, e.prompts)
