"""The generate stage: graded samples of a policy, in files that prepare reads.

  WORKDIR/generated/STEP/part-FIRST.jsonl (or .parquet)  rows, by first prompt
  WORKDIR/generated/STEP.json                            hashes and counts

A file gets its name when it is complete, and then an entry in the manifest. The
same command continues after the last complete file, with the same samples.
"""

import functools
import json
import operator
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.base import (
    config as config_lib,
    feature,
    json_files,
    resume_rules,
)
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checkpointing.resumable import check_stop
from rl_reason.checks import config_facts, rules
from rl_reason.checks.run_directory import ENDS_SOURCE
from rl_reason.collect import grading
from rl_reason.collect.reward_runner import Rewards
from rl_reason.data import pipelines
from rl_reason.devices import sharding
from rl_reason.devices.randomness import key
from rl_reason.lab import sample_selection
from rl_reason.lab.sample_selection import Sample
from rl_reason.rollout import sampling_filters
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.stages import scorer, trained_parameters
from rl_reason.stages.session import Session

PURPOSE = "generate"  # names the streams of prompts and of keys
# Fields that change which prompts or samples are written.
FIELDS = (
    *("seed", "tokenizer", "model.path", "task.", "data.", "reward."),
    *("rollout.max_prompt", "rollout.max_tokens", "rollout.stop_tokens"),
    *("rollout.add_special_tokens", "rollout.stop_strings"),
    "rollout.include_stop_str_in_output",
    *("rollout.weights", "rollout.cache", "generate."),
    "content.",  # hashes of files, so that their paths may change
)
FREE = ("generate.prompts",)  # may be raised, to write more


def run(c, session: Session, which: str) -> pathlib.Path:
  """Writes samples of a policy; returns their directory.

  `which` names the policy as in `trained_parameters.policy`.

  Raises:
    ConfigError: a feature of the run has responses of another kind.
    RunError: there is no such checkpoint, or another config wrote there.
    Stopped: SIGTERM; the same command continues.
  """
  model, tok, output = session.model, session.tok, session.output
  g, display, row_source = c.generate, output.display, session.row_source
  for name, why in feature.marked("not_generated", c).items():
    rules.refuse(c, name, f"--stage=generate {why}")
  if {*which} & {*",+"}:  # files are named by one step
    raise RunError(
        f"--step = {which}: samples are of one step: export the mean with"
        " --stage=export, and name it in model.path"
    )
  params, _, step, about = trained_parameters.policy(
      c, which, model=model, output=output
  )
  weights = session.engine.weights(params, c.rollout.weights)
  del params
  out = output.workdir / "generated" / str(step)
  manifest = _opened(out, config_lib.flat(c), step)
  display.say(f"generating with {about}")
  source, _ = row_source.prompts(PURPOSE)
  rewards = functools.cache(
      functools.partial(scorer.rewards, c, session, model.mesh)
  )
  sample = functools.partial(
      _sample,
      c,
      weights,
      engine=session.engine,
      random_key=key(model.mesh, c.seed, PURPOSE),
      tok=tok,
      task=row_source.task,
      rewards=rewards,
      say=display.say,
  )
  totals = manifest["totals"]
  for first in range(0, g.prompts, g.batch):
    check_stop(output.stop)
    name = f"part-{first:09d}.{g.format}"
    # A part with the hash of its entry is complete: an earlier start wrote it.
    if _is_whole(out / name, manifest["files"].get(name)):
      continue
    display.doing(f"generating: prompt {first:,} of {g.prompts:,}")
    ids = range(first, min(first + g.batch, g.prompts))
    rows = [source[i][1] for i in ids]
    groups = sample(ids, rows)
    lines = [
        prompt_columns(row, g.keep)
        | sample_selection.measured(samples)
        | columns
        for row, samples in zip(rows, groups, strict=True)
        for columns in sample_selection.NAMES[g.keep](samples)
    ]
    counts = dict(
        prompts=len(rows),
        responses=sum(map(len, groups)),
        tokens=sum(len(x.ids) for group in groups for x in group),
        correct=sum(x.correct is True for group in groups for x in group),
        rows=len(lines),
    )
    # The part is written before its entry: after a kill in between it is
    # sampled again, with the same bytes.
    if jax.process_index() == 0:
      digest = _write(out / name, lines)
      manifest["files"][name] = dict(sha256=digest) | counts
      manifest["totals"] = _totals(manifest["files"])
      json_files.write_json(_manifest(out), manifest)
    totals = _totals(manifest["files"])
  known = g.keep == "prompts" and row_source.files is not None
  display.say(
      f"generated: {totals['rows']:,} rows of {totals['responses']:,} responses"
      f" to {totals['prompts']:,} prompts, {totals['correct']:,} correct;"
      f" {_advice(out, known)}"
  )
  return out


def _advice(out: pathlib.Path, known: bool) -> str:
  """How to train on the samples of a directory.

  Args:
    out: the directory.
    known: whether the files have rows of a known set.
  """
  advice = f"use them as a source of data.train: {out}"
  if known:
    advice += f"; rows of a known set as NAME@{out}"
  if {*ENDS_SOURCE} & {*str(out)}:
    advice += (
        "; but first make a link to this directory (ln -s) and name the link:"
        f" the path of a source has no {' '.join(ENDS_SOURCE)}"
    )
  return advice


def _opened(out: pathlib.Path, fields: dict[str, Any], step: int) -> dict:
  """The manifest of a directory, or a new one.

  Raises:
    RunError: the directory has samples of another config.
  """
  fields = {
      name: list(x) if isinstance(x, tuple) else x
      for name, x in fields.items()
      if name.startswith(FIELDS) and name not in FREE
  }
  path = _manifest(out)
  if not path.exists():
    out.mkdir(parents=True, exist_ok=True)
    return dict(step=step, fields=fields, files={}, totals=_totals({}))
  manifest = json.loads(path.read_text())
  before = resume_rules.complete(manifest["fields"])
  for name, value in fields.items():
    files = fields.get(f"content.{name}")
    moved = files and files == before.get(f"content.{name}")
    if before.get(name) != value and not moved and "content." not in name:
      raise RunError(
          f"{out}: was written with {name} = {before.get(name)!r},"
          f" not {value!r}; move the directory, or use the same value"
      )
  return manifest


def _manifest(out: pathlib.Path) -> pathlib.Path:
  return out.with_name(f"{out.name}.json")  # `out` has rows only


def _totals(files: dict[str, dict]) -> dict[str, int]:
  names = "prompts", "responses", "tokens", "correct", "rows"
  # Files of an earlier version have no number of tokens.
  return {name: sum(x.get(name, 0) for x in files.values()) for name in names}


def _is_whole(path: pathlib.Path, entry: dict | None) -> bool:
  return (
      entry is not None
      and path.exists()
      and checkpoint.sha256(path) == entry["sha256"]
  )


def prompt_columns(row: tasks.Row, keep: str) -> dict[str, Any]:
  """The columns of a prompt, which data.template = 'plain' does not change.

  To keep the prompts alone is to keep the rows of a file with their columns.
  """
  if keep == "prompts" and row.columns:
    return dict(row.columns)
  prompt = [dict(x) for x in row.messages] if row.messages else row.prompt
  return dict(
      prompt=prompt,
      answer=row.answer,
      difficulty=row.difficulty,
      kind=row.kind,
      source=row.source,
      subject=row.subject,
  )


def _sample(
    c,
    weights: Tree,
    ids: range,
    rows: list[tasks.Row],
    *,
    engine: RolloutEngine,
    random_key: Array,
    tok: Any,
    task: Any,
    rewards: Callable[[], Rewards],
    say: Callable[[str], None],
) -> list[list[Sample]]:
  """Samples and grades the responses to some prompts, in groups."""
  g = c.generate
  # The last batch is filled up, so that all batches use one program.
  padding = [rows[0]] * (g.batch - len(rows))
  prompts = pipelines.pack_prompts(
      tok,
      [row.prompt for row in [*rows, *padding]],
      range(ids.start, ids.start + g.batch),
      c.rollout.max_prompt,
  )
  rollouts = sharding.fetch(
      engine.sample(
          weights,
          prompts,
          random_key,
          np.float32(g.temperature),
          group_size=g.samples,
          filters=sampling_filters.of(g),
          cache=c.rollout.cache,
      )
  )
  all_rows, count = [*rows, *padding], len(rows) * g.samples
  rewards_B, unrewarded = np.zeros(count), 0
  rows_B = [row for row in all_rows for _ in range(g.samples)]
  verified_B = np.array([tasks.has_verifier(task, x) for x in rows_B[:count]])
  if c.reward.functions:
    rewards_B, unrewarded = rewards().of_all(
        tok, rollouts, rows_B, count, verified_B
    )
  real = operator.itemgetter(slice(count))
  rollouts = jax.tree.map(real, rollouts)
  texts, correct_B, unverified = grading.start_grading(
      task, tok, rollouts, rows
  )()
  if unverified or unrewarded:
    say(
        f"warning: prompts {ids[0]} to {ids[-1]}: the verifier failed on"
        f" {unverified:,} of {count:,} responses, which get no verdict, and"
        f" reward functions failed {unrewarded:,} times: such responses have no"
        " reward"
    )
  tokens_BT = rollouts.tokens_BL[:, c.rollout.max_prompt :]
  groups: list[list[Sample]] = [[] for _ in rows]
  for b, text in enumerate(texts):
    row, length = rows[b // g.samples], int(rollouts.lengths_B[b])
    # If the verifier failed, the response is neither correct nor incorrect.
    judged, outcome = verified_B[b] and correct_B[b] >= 0, 0.0
    if judged:
      outcome = c.reward.correct if correct_B[b] else c.reward.incorrect
    elif verified_B[b] and config_facts.by_verdict(c):
      outcome = np.nan
    groups[b // g.samples].append(
        Sample(
            response=text,
            final=task.answer(text, row),
            correct=bool(correct_B[b]) if judged else None,
            reward=json_files.number(outcome + rewards_B[b]),
            truncated=bool(rollouts.truncated_B[b]),
            ids=tokens_BT[b, :length].tolist(),
            logps=rollouts.logps_BT[b, :length].tolist(),
        )
    )
  return groups


def _write(path: pathlib.Path, rows: list[dict]) -> str:
  """Writes a file atomically; returns its SHA-256."""
  if path.suffix == ".jsonl":
    json_files.write_text(path, "".join(json.dumps(x) + "\n" for x in rows))
  else:
    import pyarrow
    import pyarrow.parquet

    new = path.with_name(path.name + ".tmp")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), new)
    new.replace(path)
  return checkpoint.sha256(path)
